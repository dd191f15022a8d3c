"""Parts of the matrix: by index, by pairs of queries and keys, by heads and rows, against the dense matrix."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import limelight as ll
from conftest import assert_within, problems
from dense_weights import close, dense_of, weights_of
from limelight.matrix.joined import JoinedWeights


@settings(max_examples=40)
@given(problems((torch.float32, torch.float64)), st.data())
def test_any_part_of_it(p: dict[str, Any], data: st.DataObject) -> None:
    A, dense = weights_of(p), dense_of(p)

    def index(n: int) -> Any:
        slices = st.builds(
            slice,
            st.none() | st.integers(-n - 2, n + 2),
            st.none() | st.integers(-n - 2, n + 2),
            st.none() | st.integers(1, 4),
        )
        return data.draw(st.integers(-n, n - 1) | slices)

    full = tuple(index(n) for n in dense.shape)
    for at in (full, full[:2], (..., *full[2:]), (full[0], ..., full[3]), full[0], ...):
        want = dense[at]
        got = A[at]
        assert got.shape == want.shape
        close(got, want, p)
    step = slice(None, None, -1)
    close(A[:, :, step, 1::2], dense.flip(2)[..., 1::2], p)


def test_pairs_of_an_index() -> None:
    """``A[…, queries, keys]`` with two lists, against the dense matrix."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 6, 11, 8, dtype=torch.float64), torch.randn(2, 3, 13, 8, dtype=torch.float64)
    i, j = torch.randint(0, 11, (40,)), torch.randint(0, 13, (40,))
    for options in (
        {},
        {"mask": ll.Causal() & ll.Padding([7, 13])},
        {"mask": ll.Documents(torch.tensor([[0] * 5 + [1] * 8, [0] * 6 + [1] * 7])), "softcap": 3.0},
        {"bias": ll.ALiBi(6), "sink": torch.randn(6)},
        {"mask": ll.Dense(torch.rand(2, 1, 11, 13) > 0.5), "bias": ll.DenseBias(torch.randn(6, 11, 13))},
    ):
        A = ll.weights(q, k, temperature=1.7, **options)  # type: ignore[arg-type]
        torch.testing.assert_close(A[:, :, i, j], A.dense()[:, :, i, j])
        torch.testing.assert_close(A[1, 2:5, i.tolist(), j.tolist()], A.dense()[1, 2:5, i, j])
    with pytest.raises(IndexError, match="do not make pairs"):
        A[0, 0, [1, 2], [3]]
    with pytest.raises(IndexError, match="out of range"):
        A[0, 0, [1, 11], [3, 4]]
    far = ll.weights(100 * q, 100 * k)  # whose logits leave few digits
    torch.testing.assert_close(far[:, :, i, j], far.dense()[:, :, i, j])


def test_joined_weights() -> None:
    """Heads of several matrices give the statistics of one."""
    q, k, v = torch.randn(2, 6, 7, 5), torch.randn(2, 3, 11, 5), torch.randn(2, 3, 11, 4)
    A = ll.weights(q, k, mask=ll.Causal())
    heads = [[4, 0], [1, 2, 3], [5]]
    joined = JoinedWeights([A.part(some) for some in heads], heads)
    assert joined.shape == A.shape
    for name, arguments in (
        ("dense", ()),
        ("entropy", ()),
        ("received", ()),
        ("similarity", ()),
        ("logsumexp", ()),
        ("mass", (ll.First(2),)),
        ("pool", (3, 4)),
        ("distance", ()),
    ):
        assert_within(getattr(joined, name)(*arguments), getattr(A, name)(*arguments), 1e-6, name)
    assert torch.equal(joined.top(3).indices, A.top(3).indices)
    assert_within(joined @ v, A @ v, 1e-6)
    u = torch.randn(2, 6, 7, 3)
    assert_within(joined.T @ u, A.T @ u, 1e-5)
    assert_within(joined[1, 4:, 2, :5], A[1, 4:, 2, :5], 1e-6)
    assert_within(joined[1, :, [2, 3], [0, 4]], A[1, :, [2, 3], [0, 4]], 1e-6)
    assert_within(joined.select(1, 4).dense(), A.select(1, 4).dense(), 1e-6)
    assert_within(joined.part([5, 0, 2], range(2, 6)).dense(), A.dense()[:, [5, 0, 2], 2:6], 1e-6)
    assert_within(joined.by_value(v).dense(), A.by_value(v).dense(), 1e-6)


def test_parts_of_weights() -> None:
    """Rows of the middle keep their positions, whatever the mask and the bias."""
    q, k = torch.randn(2, 4, 9, 5), torch.randn(2, 2, 13, 5)
    options: list[dict[str, Any]] = [
        {"mask": ll.Window(3)},
        {"bias": ll.ALiBi(4)},
        {"bias": ll.Relative(torch.randn(4, 7)) + ll.ALiBi(4), "mask": ll.Causal()},
        {"bias": ll.DenseBias(torch.randn(2, 4, 9, 13)), "sink": torch.randn(4)},
        {"mask": ll.Dense(torch.rand(2, 4, 9, 13) > 0.3) & ll.Padding([13, 10])},
    ]
    for option in options:
        A = ll.weights(q, k, **option)
        got, want = A.part([3, 0], range(2, 7)).dense(), A.dense()[:, [3, 0], 2:7]
        assert_within(got, want, 1e-6, repr(option))
    A = ll.weights(q, k, mask=ll.Causal(), bias=ll.ALiBi(4))
    assert_within(A.part(None, range(2, 7), 11).dense(), A.dense()[:, :, 2:7, :11], 1e-6)
