"""Few query rows against a cache: every number of rows, widths and lengths that fill no vector, every type."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import limelight as ll
from conftest import assert_within, generator, largest, logit_rounding, rounding, strided
from limelight.backends.native import kernels
from limelight.core import reference

# Rows to a key head, keys, width of keys, width of values: 1 to 15 rows have few keys, whole blocks, and more than two.
SHAPES = [
    (1, 131, 64, 64),
    (1, 1, 3, 5),
    (2, 259, 37, 96),
    (3, 17, 80, 29),
    (4, 300, 128, 48),
    (5, 16, 71, 67),
    (7, 127, 32, 128),
    (8, 193, 67, 40),
    (6, 137, 40, 65),
    (13, 277, 50, 33),
    (15, 31, 16, 256),
]
TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def inputs(rows: int, M: int, D: int, Dv: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values, the last two not contiguous."""
    g = generator(rows, M, D)
    q, k, v = (torch.randn(s, generator=g).to(dtype) for s in ((2, 2 * rows, 1, D), (2, 2, M, D), (2, 2, M, Dv)))
    return q, strided(k, 1), strided(v, 2)


@pytest.mark.parametrize("dtype", TYPES)
def test_decoding_agrees_with_the_dense_reference(isa: str, dtype: torch.dtype) -> None:
    for rows, M, D, Dv in SHAPES:
        q, k, v = inputs(rows, M, D, Dv, dtype)
        for options in ({}, {"mask": ll.Padding([M, M // 2 + 1]), "bias": ll.ALiBi(2 * rows)}):
            want = reference.attention(q.double(), k.double(), v.double(), **options)
            relative = logit_rounding({"q": q, "k": k, **options}) + rounding(1, 1.0, dtype)
            assert_within(ll.attention(q, k, v, **options), want, relative * largest(v), f"{isa} {rows} {M} {D} {Dv}")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("D", [32, 96, 73])
def test_scores_of_halves_are_as_exact_as_in_float32(isa: str, D: int, dtype: torch.dtype) -> None:
    """Log-sum-exps, which are float32, of 1 to 16 rows and a last tile with few keys."""
    for rows in range(1, 17):
        q, k, _ = inputs(rows, 150 + 11 * rows, D, 1, dtype)
        got = ll.weights(q, k).logsumexp()
        want = reference.steps(q.double(), k.double()).logsumexp
        assert got.dtype == torch.float32
        assert_within(got, want, logit_rounding({"q": q.float(), "k": k.float()}), f"{isa} {rows} {D}")


@pytest.mark.parametrize("rows", [8, 16])
def test_as_many_rows_as_lanes_with_a_cache_in_memory(isa: str, rows: int) -> None:
    q, k, v = (x[:1, : 2 * rows] for x in inputs(rows, 8209, 64, 67, torch.float32))
    want = reference.attention(q.double(), k.double(), v.double())
    assert_within(ll.attention(q, k, v), want, logit_rounding({"q": q, "k": k}) * largest(v), isa)


# Rows to a key head, widths of keys and values, and their type. Some widths fill pairs of vectors, some fill none.
LARGE = [
    (1, 64, 64, torch.float32),
    (1, 96, 80, torch.bfloat16),
    (2, 128, 256, torch.float32),
    (3, 80, 64, torch.float32),
    (4, 67, 128, torch.float32),
    (8, 32, 256, torch.float16),
    (8, 64, 64, torch.float64),
    (13, 64, 128, torch.float32),
]


@pytest.mark.parametrize(
    ("family", "in_a_row"),
    [(0, True), (25, True), (26, True), (26, False)],
    ids=["other", "Zen 4", "Zen 5", "Zen 5, rows apart"],
)
def test_caches_that_come_from_memory(family: int, in_a_row: bool) -> None:
    """More than 16 MB, as each kind of processor reads them, whether rows of keys lie one after the other or apart."""
    bound = {torch.float32: 2e-6, torch.float64: 1e-14}
    kernels.force_amd_family(family)
    try:
        for rows, D, Dv, dtype in LARGE:
            M = (17 << 20) // (2 * (D + Dv) * dtype.itemsize) + 131
            g = generator(rows, M, D)
            q, k, v = (
                torch.randn(s, generator=g).to(dtype) for s in ((1, 2 * rows, 1, D), (1, 2, M, D), (1, 2, M, Dv))
            )
            if not in_a_row:
                k, v = strided(k, 1), strided(v, 2)
            for options in ({}, {"mask": ll.Padding([M - 77])}):
                want = reference.attention(q.double(), k.double(), v.double(), **options)
                # A bound for the largest number would not see that a key was left out: every weight is small.
                error = (ll.attention(q, k, v, **options) - want).square().mean().sqrt() / want.square().mean().sqrt()
                assert error < bound.get(dtype, 2e-2), f"{rows} {D} {Dv} {dtype} {options}"
    finally:
        kernels.force_amd_family(-1)


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 11])
def test_a_row_does_not_depend_on_its_neighbours(isa: str, rows: int) -> None:
    """Values of weight 0 that are not finite stay away from the other rows of a tile."""
    q, k, v = inputs(rows, 137, 64, 33, torch.float32)
    allowed = torch.rand(2, 2 * rows, 1, 137, generator=generator(rows)) > 0.3
    v[:, :, 17] = torch.inf
    allowed[:, ::2, :, 17] = False
    allowed[:, 1::2, :, 17] = True
    out = ll.attention(q, k, v, mask=ll.Dense(allowed))
    assert out[:, ::2].isfinite().all(), isa
    assert not out[:, 1::2].isfinite().any(), isa
