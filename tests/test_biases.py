"""Biases against published values and against their definitions."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch

import limelight as ll
from limelight.core.biases import Buckets, alibi_slopes


def test_published_alibi_slopes() -> None:
    assert alibi_slopes(8).tolist() == [2.0**-k for k in range(1, 9)]
    assert torch.allclose(alibi_slopes(16), torch.tensor([2.0 ** (-k / 2) for k in range(1, 17)]))
    # 12 heads: those of 8, then every other of 16.
    assert torch.allclose(
        alibi_slopes(12),
        torch.tensor([2.0**-k for k in range(1, 9)] + [2.0 ** (-k / 2) for k in (1, 3, 5, 7)]),
    )


def test_alibi_by_distance() -> None:
    got = ll.ALiBi(4).dense(3, 5)
    for h, slope in enumerate((2**-2, 2**-4, 2**-6, 2**-8)):
        for i in range(3):
            assert got[h, i].tolist() == [-slope * abs(2 + i - j) for j in range(5)]


def t5_bucket(distance: int, count: int, longest: int, two_sided: bool) -> int:
    """T5's buckets, number by number, from the description in its paper."""
    side = count // 2 if two_sided else count
    start = side if two_sided and distance > 0 else 0
    far = abs(distance) if two_sided else max(-distance, 0)
    exact = side // 2
    if far < exact:
        return start + far
    grown = exact + int(math.log(far / exact) / math.log(longest / exact) * (side - exact) + 1e-6)
    return start + min(grown, side - 1)


@pytest.mark.parametrize("two_sided", [True, False])
@pytest.mark.parametrize(("count", "longest"), [(32, 128), (13, 40), (8, 20)])
def test_t5_buckets(count: int, longest: int, two_sided: bool) -> None:
    distances = list(range(-300, 301))
    got = Buckets(count, longest, two_sided).of(torch.tensor(distances)).tolist()
    assert got == [t5_bucket(x, count, longest, two_sided) for x in distances]


def test_relative_reads_its_table_by_distance() -> None:
    table = torch.randn(3, 7)
    got = ll.Relative(table).dense(5, 11)
    for i in range(5):
        for j in range(11):
            distance = max(-3, min(3, j - (6 + i)))
            assert torch.equal(got[:, i, j], table[:, distance + 3])


@pytest.mark.parametrize(
    "bias",
    [
        ll.ALiBi(3),
        ll.Relative(torch.randn(3, 9)),
        ll.Relative.t5(torch.randn(3, 32)),
        ll.ALiBi(3) + ll.Relative(torch.randn(1, 5)),
    ],
)
def test_lowered_equals_dense_without_a_square(bias: ll.ALiBi) -> None:
    N, M = 5, 13
    slopes, offsets, dense = bias.lower(N, M)
    assert dense is None
    r = torch.arange(N)[:, None] + (M - N) - torch.arange(M)
    total = torch.zeros(3, N, M)
    if slopes is not None:
        total = total - slopes[:, None, None] * r.abs()
    if offsets is not None:
        assert offsets.shape[-1] == N + M - 1
        total = total + offsets[:, r + N - 1]
    assert torch.allclose(total, bias.dense(N, M).expand(3, N, M))


def test_sum_pickle_and_repr() -> None:
    bias = ll.ALiBi(2) + ll.DenseBias(torch.ones(4, 4))
    assert repr(bias) == "ALiBi(2) + DenseBias(<(4, 4)>)"
    for other in (pickle.loads(pickle.dumps(bias)), copy.deepcopy(bias)):
        assert torch.equal(other.dense(4), ll.ALiBi(2).dense(4) + 1)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: ll.ALiBi(0), ValueError, "heads = 0"),
        (lambda: ll.ALiBi(torch.zeros(2, 2)), ValueError, r"shape \(heads,\)"),
        (lambda: ll.Relative(torch.zeros(3, 4)), ValueError, "odd number of columns"),
        (lambda: ll.Relative(torch.zeros(3)), ValueError, r"\(heads, distances\)"),
        (lambda: ll.Relative.t5(torch.zeros(3, 2)), ValueError, "at least 4 buckets"),
        (lambda: ll.DenseBias(torch.zeros(3, 3, dtype=torch.int32)), TypeError, "floats, not torch.int32"),
        (lambda: ll.DenseBias(torch.zeros(3, 4)).dense(3, 3), ValueError, "does not fit 3 queries × 3 keys"),
        (lambda: ll.ALiBi(2) + torch.zeros(3), TypeError, "wrap the tensor as DenseBias"),
        (lambda: ll.ALiBi(2) + ll.ALiBi(3), ValueError, r"\(1, 2\) and the other \(1, 3\)"),
    ],
)
def test_errors(make: object, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make()  # type: ignore[operator]
