"""NaN, infinity and very large logits in the matrix: they reach the rows and keys that they touch and no others."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import limelight as ll


@pytest.mark.parametrize(("where", "bad"), [("q", torch.nan), ("q", torch.inf), ("k", torch.nan)])
def test_what_is_no_number_stays_where_it_is(where: str, bad: float) -> None:
    """A query spoils its row, a key the rows that attend to it."""
    q, k = torch.randn(1, 2, 61, 17), torch.randn(1, 2, 61, 17)
    mask = ll.Window(5)
    clean = ll.weights(q.clone(), k.clone(), mask=mask)
    (q if where == "q" else k)[0, 0, 25, 3] = bad
    rows = torch.zeros(1, 2, 61, dtype=torch.bool)
    rows[0, 0, 25 if where == "q" else slice(20, 31)] = True
    keys = (rows[..., None, :].float() @ mask.dense(61).float())[..., 0, :] > 0  # that a spoilt row attends to
    u = torch.randn(1, 2, 61, 3)
    A = ll.weights(q, k, mask=mask)
    A @ k
    for ask in (
        ll.Weights.entropy,
        ll.Weights.distance,
        lambda A: A.observe(entropy=True, received=True).entropy,
        lambda A: A.mass(ll.Causal()),
        lambda A: A.top(2).values.sum(-1),
    ):
        assert ask(A)[rows].isnan().all()
        torch.testing.assert_close(ask(A)[~rows], ask(clean)[~rows])
    for ask in (ll.Weights.received, lambda A: (A.T @ u).sum(-1)):
        assert ask(A)[keys].isnan().all()
        torch.testing.assert_close(ask(A)[~keys], ask(clean)[~keys])
    for reduce in ("mean", "max"):
        spoilt = A.pool(61, 61, reduce).isnan()
        assert torch.equal(spoilt, rows[..., None] & mask.dense(61))
    assert A.similarity().isnan()[0].tolist() == [[True, True], [True, False]]


def test_what_is_sent_back_reaches_only_what_was_attended_to() -> None:
    q, k, u = torch.randn(3, 1, 1, 50, 8)
    u = u.clone()
    u[..., 20, :] = torch.inf
    got = ll.weights(q, k, mask=ll.Window(4)).T @ u
    assert got[..., 16:25, :].isinf().all()
    assert got[..., :16, :].isfinite().all()
    assert got[..., 25:, :].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("low", [-1e5, -1e9, -1e20, "lowest", 1e9])
def test_rows_of_large_logits(low: Any, dtype: torch.dtype) -> None:
    """A row whose keys are all made hardly possible, or all likely, in the same way, is uniform."""
    q, k, bias = (
        torch.zeros(1, 1, 4, 8, dtype=dtype),
        torch.zeros(1, 1, 4, 8, dtype=dtype),
        torch.zeros(4, 4, dtype=dtype),
    )
    bias[1] = torch.finfo(dtype).min if low == "lowest" else low
    A = ll.weights(q, k, bias=ll.DenseBias(bias))
    uniform = torch.full((4, 4), 0.25, dtype=dtype)
    torch.testing.assert_close(A.received()[0, 0], torch.ones(4, dtype=dtype))
    torch.testing.assert_close(A.pool(4, 4, "max")[0, 0], uniform)
    torch.testing.assert_close(A[0, 0], uniform)
    torch.testing.assert_close((A.T @ torch.ones(1, 1, 4, 1, dtype=dtype))[0, 0, :, 0], torch.ones(4, dtype=dtype))
    sunk = ll.weights(q, k, bias=ll.DenseBias(bias), sink=0.0).entropy()[0, 0]
    assert sunk.isfinite().all()


def test_what_is_no_number_is_sent_as_far_as_it_goes() -> None:
    """A slope makes far weights vanish, and 0 · ∞ is no number."""
    q, k, u = torch.randn(1, 1, 512, 8), torch.randn(1, 1, 512, 8), torch.randn(1, 1, 512, 2)
    u[0, 0, 0] = torch.inf
    bias = ll.ALiBi(torch.ones(1))
    got = ll.weights(q, k, bias=bias).T @ u
    want = ll.weights(q, k, bias=ll.DenseBias(bias.dense(512))).T @ u
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isinf(), want.isinf())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_no_weight_is_subnormal(dtype: torch.dtype, isa: str) -> None:
    """Weights that fall by a tenth of a power of two from key to key reach 0 without subnormal numbers on the way.

    They are what the keys receive from a single query.
    """
    smallest = torch.finfo(dtype).tiny
    M = 1400 if dtype == torch.float32 else 11_000
    k = torch.arange(M, dtype=dtype)[None, None, :, None] * -0.1 * math.log(2)
    A = ll.weights(torch.ones(1, 1, 1, 1, dtype=dtype), k, scale=1.0)
    found, exact = A.received().flatten(), torch.softmax(k.double().flatten(), 0)
    assert ((found == 0) | (found >= smallest)).all()
    kept = exact > 2 * smallest
    assert 0 < (~kept).sum() < M
    torch.testing.assert_close(found[kept].double(), exact[kept], rtol=M * torch.finfo(dtype).eps, atol=0.0)
