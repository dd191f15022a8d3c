"""Statistics, pictures of parts, single heads and complements of masks, against dense matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import limelight as ll
from conftest import dense_steps, logit_rounding, problems, random_masks
from limelight.core import reference
from limelight.core.masks import Mask, lower_mask


def weights_of(p: dict[str, Any]) -> ll.Weights:
    return ll.weights(**{name: x for name, x in p.items() if name != "v"})


def check_cover(count: torch.Tensor, steps: reference.Steps, share: float, slack: float) -> None:
    """Fewer keys do not reach the share of the row's weight, and so many do, within rounding.

    A row that may attend to nothing has no such keys. One whose weight is 0 because a sink has all of it may have some.
    """
    dense = steps.weights
    largest = dense.sort(-1, descending=True).values
    total = dense.sum(-1)
    sums = torch.cat([torch.zeros_like(largest[..., :1]), largest.cumsum(-1)], -1)
    with_them = sums.gather(-1, count[..., None])[..., 0]
    without_last = sums.gather(-1, (count - 1).clamp(min=0)[..., None])[..., 0]
    assert bool((with_them >= share * total - slack).all())
    assert bool(((without_last < share * total + slack) | (count == 0)).all())
    nothing = (steps.masked == -torch.inf).all(-1)
    assert bool((count[nothing] == 0).all())


@pytest.mark.usefixtures("isa")
def test_max_and_cover(isa: str) -> None:
    @settings(max_examples=60)
    @given(problems((torch.float32, torch.float64)), st.sampled_from([0.1, 0.5, 0.9, 0.99]))
    def run(p: dict[str, Any], share: float) -> None:
        A, steps = weights_of(p), dense_steps(p)
        slack = 4 * logit_rounding(p) + 1e-6 * (p["q"].dtype == torch.float32)
        seen = A.observe(max=True, cover=share)
        torch.testing.assert_close(A.max().double(), steps.weights.amax(-1), atol=slack, rtol=slack)
        torch.testing.assert_close(seen.max, A.max())
        assert torch.equal(seen.cover, A.cover(share))
        check_cover(seen.cover, steps, share, slack)

    run()


def test_cover_in_plain_torch_and_ties() -> None:
    dense = torch.tensor([[[0.5, 0.25, 0.25, 0.0], [0.25, 0.25, 0.25, 0.25], [0.0, 0.0, 0.0, 0.0]]])
    A = ll.Weights.from_dense(dense)
    assert A.cover(0.5).tolist() == [[1, 2, 0]]
    assert A.cover(0.75).tolist() == [[2, 3, 0]]
    assert A.cover(1.0).tolist() == [[3, 4, 0]]
    assert A.max().tolist() == [[0.5, 0.25, 0.0]]
    equal = ll.weights(torch.zeros(1, 7, 5), torch.zeros(1, 11, 5))
    assert equal.cover(0.5).tolist() == [[6] * 7]
    with pytest.raises(ValueError, match=r"share = 1\.5 must be above 0 and at most 1"):
        equal.cover(1.5)
    with pytest.raises(TypeError, match="share must be a number, not str"):
        equal.cover("most")


@settings(max_examples=80)
@given(problems((torch.float32, torch.float64)), st.data())
def test_pictures_of_parts(p: dict[str, Any], data: st.DataObject) -> None:
    A, dense = weights_of(p), ll.Weights.from_dense(dense_steps(p).weights)
    N, M = A.shape[-2:]

    def part(n: int) -> slice:
        begin = data.draw(st.integers(0, n - 1))
        return slice(begin, data.draw(st.integers(begin + 1, n)))

    queries, keys = part(N), part(M)
    rows, cols = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 11))
    reduce = data.draw(st.sampled_from(["mean", "max"]))
    got = A.pool(rows, cols, reduce, queries=queries, keys=keys).double()
    want = dense.pool(rows, cols, reduce, queries=queries, keys=keys)
    slack = 4 * logit_rounding(p) + 1e-6 * (p["q"].dtype == torch.float32)
    torch.testing.assert_close(got, want, atol=slack, rtol=slack)
    crop = ll.Weights.from_dense(dense.dense()[..., queries, keys])
    torch.testing.assert_close(want, crop.pool(rows, cols, reduce))


@settings(max_examples=60)
@given(problems((torch.float32,)), st.data())
def test_one_head(p: dict[str, Any], data: st.DataObject) -> None:
    A = weights_of(p)
    B, H, N, M = A.shape
    b, h = data.draw(st.integers(0, B - 1)), data.draw(st.integers(0, H - 1))
    if data.draw(st.booleans()):
        A.entropy()  # its normalisers are known then
    one = A.select(b, h)
    assert one.shape == (1, N, M)
    torch.testing.assert_close(one.dense()[0], A.dense()[b, h])
    torch.testing.assert_close(one.entropy()[0], A.entropy()[b, h], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(one.pool(3, 5)[0], A.pool(3, 5)[b, h], atol=1e-6, rtol=1e-5)
    assert A.select(b).shape == (H, N, M)


def test_parts_that_are_not_there() -> None:
    A = ll.weights(torch.zeros(2, 3, 7, 5), torch.zeros(2, 3, 11, 5))
    with pytest.raises(ValueError, match=r"slice\(5, 5, None\) must be a range of step 1 inside the 7 queries"):
        A.pool(2, 2, queries=slice(5, 5))
    with pytest.raises(TypeError, match="keys = 3; give a slice"):
        A.pool(2, 2, keys=3)
    with pytest.raises(IndexError, match="index 3 is out of range"):
        A.select(0, 3)
    with pytest.raises(AttributeError, match=r"Weights has no sum\(\): rows sum to 1; received\(\)"):
        A.sum()
    assert np.asarray(A).shape == (2, 3, 7, 11)
    large = ll.weights(torch.zeros(1, 1, 1, 4).expand(1, 4, 40000, 4), torch.zeros(1, 1, 1, 4).expand(1, 4, 40000, 4))
    with pytest.raises(ValueError, match="would make 6,400,000,000 numbers"):
        np.asarray(large)


@settings(max_examples=150)
@given(st.integers(1, 61), st.integers(1, 61), st.data())
def test_boolean_algebra_of_masks(N: int, M: int, data: st.DataObject) -> None:
    a, b = (data.draw(random_masks(2, N, M)) for _ in "ab")

    def lowered(mask: Mask) -> torch.Tensor:
        """Read a mask back from its lowered form."""
        found = lower_mask(mask, N, M)
        allowed = torch.ones(2, 1, N, M, dtype=torch.bool)
        if found.spans is not None:
            begin, end = found.spans[..., 0], found.spans[..., 1]
            j = torch.arange(M)
            allowed &= ((begin[..., None] <= j) & (j < end[..., None])).any(2)[:, None]
        if found.dense is not None:
            allowed &= found.dense
        return allowed

    def dense(mask: Mask) -> torch.Tensor:
        return (
            mask.dense(N, M).expand(2, 1, N, M) if mask.dense(N, M).ndim < 4 else mask.dense(N, M).expand(2, -1, N, M)
        )

    for mask in (~a, ~(a & b), ~(a | b), ~~a, a & ~b):
        assert torch.equal(lowered(mask).expand_as(dense(mask)), dense(mask)), repr(mask)
    assert torch.equal(dense(~(a & b)), dense(~a | ~b))
    assert torch.equal(dense(~(a | b)), dense(~a & ~b))
    assert not bool(lowered(a & ~a).any())
    assert bool(lowered(a | ~a).all())


@pytest.mark.parametrize(("dtype", "depth"), [(torch.float32, 50.0), (torch.float64, 500.0)], ids=str)
@pytest.mark.parametrize("portable", [False, True])
def test_similarity_of_tiny_weights(dtype: torch.dtype, depth: float, portable: bool, isa: str) -> None:
    """Sinks leave weights whose squares underflow; cosines do not depend on the size of a head's weights."""
    q, k = torch.randn(2, 4, 31, 8, dtype=dtype), torch.randn(2, 4, 1301, 8, dtype=dtype)
    k *= torch.linspace(0.1, 2, 1301, dtype=dtype)[:, None]  # each block has larger weights than those before
    sink = torch.tensor([depth, 0.0, 1.1 * depth, depth], dtype=dtype)
    logs = (q.double() @ k.double().mT) / 8**0.5
    logs = logs - torch.logaddexp(logs.logsumexp(-1), sink.double()[:, None])[..., None]
    scaled = (logs - logs.amax((-2, -1), keepdim=True)).exp().flatten(2)
    wanted = torch.nn.functional.cosine_similarity(scaled[:, :, None], scaled[:, None], dim=-1)
    A = ll.weights(q, k, sink=sink)
    found = (ll.Weights.from_dense(A.dense()) if portable else A).similarity()
    torch.testing.assert_close(found.double(), wanted, atol=1e-4 if dtype == torch.float32 else 1e-10, rtol=0)
