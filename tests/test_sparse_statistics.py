"""Statistics of weights whose mask is computed in passes, against the dense matrix in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import limelight as ll
from conftest import assert_sums_close, largest
from limelight.backends import native
from limelight.core import reference
from limelight.core.masks import Mask

B, H, HKV, M, D = 2, 6, 3, 97, 11
GLOBAL = [0, 5, 9, 17, 41, 42, 96]
MASKS = [
    ll.Strided(5),
    ll.Causal() & ll.Strided(7),
    ll.Dilated(3, 5),
    ll.Strided(113),
    ll.Causal() & (ll.Window(3) | ll.Strided(5)),
    ll.Padding([61, 97]) & (ll.Dilated(2, 3) | ll.Window(2) | ll.First(2)),
    ll.Window(2) | ll.Global(GLOBAL),
    ll.Causal() & ll.Global(GLOBAL),
    ll.Causal() & (ll.Window(2) | ll.Global(GLOBAL) | ll.Strided(6)),
    ll.Strided(3) & ~ll.Window(1) & ll.Documents(torch.arange(97) // 23),
]
OTHERS = [
    ll.First(3),
    ll.Window(4, 11),
    ll.Strided(10),
    ~ll.Strided(5),
    ll.Causal() & (ll.Window(3) | ll.Strided(4)),
    ll.Global([1, 17, 50, 96]),
    ll.Global([200, 300, 400]),
    ll.Dense(torch.rand(97, generator=torch.Generator().manual_seed(3)) > 0.5),
]


def operands(N: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Queries and keys with strides of their own."""
    q, k = (torch.randn(B, n, h, D, dtype=dtype).transpose(1, 2) for n, h in ((N, H), (M, HKV)))
    return 2 * q, k


def check_top(found: Any, A: Tensor, k: int) -> None:
    want = A.sort(dim=-1, descending=True, stable=True).values[..., :k]
    assert_sums_close(found.values, want, M)
    assert_sums_close(A.gather(-1, found.indices).to(found.values.dtype), want, M)
    assert (found.indices.sort(-1).values.diff(dim=-1) > 0).all(), "each key once"


def expected_distance(A: Tensor) -> Tensor:
    i, j = torch.arange(A.shape[2])[:, None] + M - A.shape[2], torch.arange(M)
    return (A * (i - j).abs()).sum(-1)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("mask", MASKS, ids=repr)
@pytest.mark.parametrize(("N", "dtype"), [(97, torch.float32), (53, torch.float64), (1, torch.float32)])
@pytest.mark.parametrize("sink", [False, True])
def test_every_statistic_equals_the_dense_matrix(mask: Mask, N: int, dtype: torch.dtype, sink: bool) -> None:
    q, k = operands(N, dtype)
    options: dict[str, Any] = {"mask": mask, "softcap": 4.0, "sink": torch.randn(H) if sink else None}
    A = reference.steps(q.double(), k.double(), **options).weights
    W = ll.weights(q, k, **options)
    seen = W.observe(entropy=True, received=True, max=True, top=9, distance=True, mass=ll.First(3), similarity=True)
    assert_sums_close(seen.entropy, torch.special.entr(A).sum(-1), M)
    assert_sums_close(seen.received, A.sum(-2), N)
    assert_sums_close(seen.max, A.amax(-1), M)
    check_top(seen.top, A, 9)
    assert_sums_close(seen.distance, expected_distance(A), M, M)
    assert_sums_close(seen.mass, A[..., :3].sum(-1), M)
    assert_sums_close(seen.similarity, ll.Weights.from_dense(A).similarity(), N * M)
    # With the normalisers that it has kept, and for new weights, whose normalisers are to be found.
    for weights in (W, ll.weights(q, k, **options)):
        assert_sums_close(weights.max(), A.amax(-1), M)
        assert_sums_close(weights.entropy(), torch.special.entr(A).sum(-1), M)
        assert_sums_close(weights.profile(30), ll.Weights.from_dense(A).profile(30), M)
        assert_sums_close(weights.pool(5, 7), ll.Weights.from_dense(A).pool(5, 7), M)
    u = torch.randn(B, H, N, 5, dtype=dtype)
    # A sum over the queries of weights, each of which has a sum over the keys in it.
    assert_sums_close(W.T @ u, A.mT @ u.double(), N + M, largest(A.mT @ u.double().abs()))
    lse = reference.steps(q.double(), k.double(), **options).logsumexp
    assert_sums_close(ll.weights(q, k, **options).logsumexp(), lse, M)


@pytest.mark.parametrize("mask", [*MASKS, ll.Causal(), None], ids=repr)
@pytest.mark.parametrize("N", [97, 41])
def test_mass_of_any_mask_under_any_mask(mask: Mask | None, N: int) -> None:
    q, k = operands(N, torch.float32)
    sink = torch.randn(H)
    A = reference.steps(q.double(), k.double(), mask=mask, sink=sink).weights
    W = ll.weights(q, k, mask=mask, sink=sink)
    for other in OTHERS:
        want = torch.where(other.dense(N, M), A, 0.0).sum(-1)
        assert_sums_close(W.mass(other), want, M)
        assert_sums_close(ll.weights(q, k, mask=mask, sink=sink).observe(mass=other, max=True).mass, want, M)


@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_cover(mask: Mask) -> None:
    q, k = operands(53, torch.float64)
    A = reference.steps(q, k, mask=mask).weights
    assert torch.equal(ll.weights(q, k, mask=mask).cover(0.83), ll.Weights.from_dense(A).cover(0.83))


@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_ties_go_to_the_lower_key_and_what_is_missing_is_filled(mask: Mask) -> None:
    q, k = torch.ones(1, 2, M, 4), torch.zeros(1, 2, M, 4)
    k[:, :, 3::4] = 1.0  # two values of logits, so that keys of different passes have the same
    W = ll.weights(q, k, mask=mask if mask.batch_and_heads()[0] == 1 else ll.Strided(4))
    A = W.dense()
    for n in (1, 4, 40, M):
        want = A.sort(dim=-1, descending=True, stable=True).indices[..., :n]
        assert torch.equal(W.top(n).indices, want)


def test_rows_that_see_nothing_and_rows_that_are_nan() -> None:
    q, k = operands(M, torch.float32)
    mask = ll.Causal() & (ll.Dilated(2, 6) | ll.Global([7, 30, 50, 70])) & ~ll.Window(0)
    empty = ~mask.dense(M).any(-1)
    assert 0 < int(empty.sum()) < 8
    q[1, 2, 60] = torch.nan
    W = ll.weights(q, k, mask=mask)
    seen = W.observe(entropy=True, max=True, top=3, mass=ll.First(40), received=True, distance=True)
    for x in (seen.entropy, seen.max, seen.mass, seen.distance):
        assert (x[:, :, empty] == 0).all()
        assert x[1, 2, 60].isnan()
        assert x.isnan().sum() == 1
    assert (seen.top.indices[:, :, 0] == torch.arange(3)).all()
    assert torch.equal(seen.received[1, 2].isnan(), mask.dense(M)[60]), "NaN reaches the keys that it touches"
    assert seen.received.isnan().any(-1).sum() == 1
    assert (W.logsumexp()[:, :, empty] == -torch.inf).all()


def test_gradients_of_statistics_under_such_masks() -> None:
    for mask in MASKS[::3]:
        q, k = operands(M, torch.float64)
        found = []
        for statistics in (
            lambda q, k, mask=mask: ll.weights(q, k, mask=mask),
            lambda q, k, mask=mask: ll.Weights.from_dense(reference.steps(q, k, mask=mask).weights),
        ):
            leaves = [x.clone().requires_grad_() for x in (q, k)]
            seen = statistics(*leaves).observe(entropy=True, received=True, mass=ll.First(5))
            loss = seen.entropy.sum() + (seen.received**2).sum() + (seen.mass**3).sum()
            found.append(torch.autograd.grad(loss, leaves))
        for got, want in zip(*found, strict=True):
            torch.testing.assert_close(got, want)


def test_a_part_keeps_the_passes_of_its_mask() -> None:
    q, k = operands(M, torch.float32)
    W = ll.weights(q, k, mask=ll.Strided(5), sink=torch.randn(H))
    chosen = W.select(1, 4)
    assert chosen.mask == ll.Strided(5)
    assert_sums_close(chosen.entropy(), W.entropy()[1, 4:5], M)
    assert_sums_close(W.part([1, 2]).max(), W.max()[:, 1:3], M)


@pytest.mark.parametrize(
    ("mask", "ask"),
    [
        (ll.Strided(5), lambda W: W.observe(entropy=True, received=True, top=3, max=True, mass=ll.First(2), cover=0.5)),
        (ll.Strided(5), lambda W: W.observe(distance=True, profile=9, similarity=True)),
        (ll.Causal() & (ll.Window(3) | ll.Strided(5)), lambda W: W.observe(entropy=True, top=3, mass=ll.Window(4))),
        (ll.Window(2) | ll.Global(GLOBAL), lambda W: W.observe(max=True, received=True, similarity=True)),
        (ll.Causal(), lambda W: W.mass(ll.Strided(5))),
    ],
)
def test_the_spans_of_the_mask_are_never_made(
    mask: Mask, ask: Callable[[ll.Weights], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that gets no more than a few spans for each query is a kernel that costs what the mask allows."""
    counts = count_spans(monkeypatch)
    ask(ll.weights(*operands(M, torch.float32), mask=mask))
    assert counts
    assert max(counts) <= 2


def count_spans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the spans of a query in every call of the kernels from now on."""
    counts: list[int] = []
    modules = (native.statistic_requests, native.running_statistics, native.gradient, native.outputs)
    operands_of = native.description.Operands

    def count(lowered: Any, *rest: Any) -> Any:
        counts.append(0 if lowered.spans is None else lowered.spans.shape[2])
        return operands_of(lowered, *rest)

    for module in modules:
        monkeypatch.setattr(module, "Operands", count)
    return counts
