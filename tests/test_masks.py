"""Masks as spans against masks as dense booleans."""

from __future__ import annotations

import copy
import pickle
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import limelight as ll
from conftest import random_masks
from limelight.core.masks import Lowered, Mask


def spans_to_dense(lowered: Lowered, N: int, M: int) -> torch.Tensor:
    """Count the keys of the spans one by one, as the kernels read them."""
    spans = lowered.spans if lowered.spans is not None else torch.tensor([0, M]).reshape(1, 1, 1, 2)
    allowed = torch.zeros(spans.shape[0], 1, N, M, dtype=torch.bool)
    for b in range(spans.shape[0]):
        for i in range(N):
            for begin, end in spans[b, i % spans.shape[1]].tolist():
                allowed[b, 0, i, begin:end] = True
    return allowed if lowered.dense is None else allowed & lowered.dense


@given(st.data())
def test_spans_equal_the_definition(data: st.DataObject) -> None:
    B = data.draw(st.sampled_from([1, 3]))
    N, M = data.draw(st.sampled_from([1, 2, 7, 13, 29])), data.draw(st.sampled_from([1, 3, 11, 23, 31]))
    mask = data.draw(random_masks(B, N, M))
    lowered = mask.lower(N, M)
    got = spans_to_dense(lowered, N, M)
    want = mask.dense(N, M)
    assert torch.equal(got.expand(torch.broadcast_shapes(got.shape, want.shape)), want.expand_as(got | want))
    if lowered.spans is not None:
        s = lowered.spans
        assert s.dtype == torch.int32
        assert (s[..., 0] <= s[..., 1]).all()
        assert (s >= 0).all()
        assert (s <= M).all()
        assert (s[:, :, 1:, 0] >= s[:, :, :-1, 1]).all(), "sorted and disjoint"


@given(st.data())
def test_algebra_of_dense_booleans(data: st.DataObject) -> None:
    N, M = 11, 17
    a, b = data.draw(random_masks(2, N, M)), data.draw(random_masks(2, N, M))
    x, y = a.dense(N, M), b.dense(N, M)
    assert torch.equal((a & b).dense(N, M), x & y)
    assert torch.equal((a | b).dense(N, M), x | y)
    assert torch.equal((a & (a | b)).dense(N, M).expand_as(x | y), x.expand_as(x | y))


@pytest.mark.parametrize(
    ("mask", "rule"),
    [
        (ll.Causal(), lambda p, j: j <= p),
        (ll.Window(3), lambda p, j: abs(p - j) <= 3),
        (ll.Window(3, 1), lambda p, j: -3 <= j - p <= 1),
        (ll.Window(0), lambda p, j: p == j),
        (ll.First(4), lambda p, j: j < 4),
        (ll.Prefix(5), lambda p, j: j < 5 or j <= p),
        (ll.Padding(6), lambda p, j: j < 6),
        (
            ll.Documents([0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]),
            lambda p, j: [0, 3, 7, 11][d(p)] <= j < [0, 3, 7, 11][d(p) + 1],
        ),
    ],
)
def test_definitions_with_positions_aligned_at_the_end(mask: Mask, rule: object) -> None:
    N, M = 7, 11
    want = [[rule(M - N + i, j) for j in range(M)] for i in range(N)]  # type: ignore[operator]
    assert mask.dense(N, M).tolist() == want


def d(p: int) -> int:
    return 0 if p < 3 else 1 if p < 7 else 2


@pytest.mark.parametrize("wide", [np.int8(127), 2**63 - 2, 2**80])
def test_windows_of_any_width(wide: int) -> None:
    everything = torch.ones(100, 120, dtype=torch.bool)
    for mask in (ll.Window(wide), ll.Window(wide, wide)):
        assert torch.equal(spans_to_dense(mask.lower(100, 120), 100, 120)[0, 0], everything)
        assert torch.equal(mask.dense(100, 120), everything)
    assert str(ll.Window(100_000)).count("\n") == 24


def test_more_queries_than_keys() -> None:
    assert ll.Causal().dense(5, 3).tolist() == [[0, 0, 0], [0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert not ll.Documents([4, 4, 4]).dense(5, 3)[:2].any(), "a query before the first key is in no document"


def test_long_masks_are_linear_in_memory() -> None:
    n = 1_000_000
    mask = ll.Causal() & (ll.Window(256) | ll.First(4)) & ll.Documents(torch.arange(n) // 1000) | ll.Prefix(9)
    tracemalloc.start()
    spans = mask.lower(n, n).spans
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert spans is not None
    assert spans.shape[:2] == (1, n)
    assert peak < 600 * n


def test_drawings() -> None:
    assert str(ll.Window(1) & ll.Padding(3)) == "\n".join(
        ["Window(1) & Padding(3), 9 queries × 9 keys", *(" ".join(r) for r in zip_window())]
    )
    assert "▨" in str(ll.Window(100))
    assert repr(ll.Causal() & (ll.Window(2, 3) | ll.First(1))) == "Causal() & (Window(2, 3) | First(1))"


def zip_window() -> list[list[str]]:
    return [["■" if abs(i - j) <= 1 and j < 3 else "·" for j in range(9)] for i in range(9)]


@pytest.mark.parametrize(
    "mask",
    [
        ll.Causal() & ll.Window(3),
        ll.Padding([2, 5]),
        ll.Documents([1, 1, 2, 2, 2]),
        ll.Dense(torch.eye(5) > 0),
    ],
)
def test_pickle_and_deepcopy(mask: Mask) -> None:
    for other in (pickle.loads(pickle.dumps(mask)), copy.deepcopy(mask)):
        assert repr(other) == repr(mask)
        assert torch.equal(other.dense(5), mask.dense(5))


def test_scattered_documents_are_exact_or_refused() -> None:
    ids = torch.tensor([0, 1, 0, 1, 2, 0])
    assert torch.equal(spans_to_dense(ll.Documents(ids).lower(6, 6), 6, 6)[0, 0], ids[:, None] == ids)
    with pytest.raises(ValueError, match="separate runs; sort the tokens"):
        ll.Documents(torch.arange(200) % 2).lower(200, 200)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: ll.Window(-1), ValueError, "left = -1 is negative"),
        (lambda: ll.Window(2, -3), ValueError, "right = -3 is negative"),
        (lambda: ll.Window(2.5), TypeError, "left must be a whole number, not 2.5"),
        (lambda: ll.First(-2), ValueError, "n = -2 is negative"),
        (lambda: ll.First(torch.tensor([1.5])), TypeError, "whole numbers, not torch.float32"),
        (lambda: ll.Padding([3, -1]), ValueError, "lengths = -1 is negative"),
        (lambda: ll.Padding("long"), TypeError, "lengths must be whole numbers, not 'long'"),
        (lambda: ll.Padding([9]).dense(3, 4), ValueError, "length 9 is more than the 4 keys"),
        (lambda: ll.Documents(torch.rand(4)), TypeError, "ids must be whole numbers"),
        (lambda: ll.Documents([1, 2]).dense(3, 3), ValueError, "2 ids for 3 keys"),
        (lambda: ll.Documents([1, 2], [1]).dense(2, 2), ValueError, "1 query ids for 2 queries"),
        (lambda: ll.Dense(torch.zeros(2, 2)), TypeError, "boolean tensor, not torch.float32"),
        (
            lambda: ll.Dense(torch.ones(2, 3, dtype=torch.bool)).dense(4, 4),
            ValueError,
            r"\(2, 3\) does not fit 4 queries",
        ),
        (lambda: ll.Causal() & torch.ones(2, 2, dtype=torch.bool), TypeError, "wrap the tensor as Dense"),
        (lambda: ll.Causal() | True, TypeError, "both sides must be masks"),
    ],
)
def test_errors(make: object, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make()  # type: ignore[operator]


def test_padding_follows_lengths_that_change_in_place() -> None:
    lengths = torch.tensor([3, 5])
    mask = ll.Padding(lengths)
    q, k, v = (torch.randn(2, 3, n, 7, dtype=torch.float64) for n in (1, 11, 11))
    for now in ([3, 5], [11, 2]):  # lowered masks are kept, by the lengths that they were lowered with
        lengths.copy_(torch.tensor(now))
        allowed = torch.arange(11) < lengths[:, None, None, None]
        want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        torch.testing.assert_close(ll.attention(q, k, v, mask=mask), want)
