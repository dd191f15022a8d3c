"""Blocks whose ALiBi weights vanish are skipped, and the result stays the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import limelight as ll
from conftest import EPS, assert_sums_close, assert_within, generator, gradient_bounds, largest, logit_rounding
from limelight.core import reference

SLOPES = torch.tensor([4.0, 0.9, 0.3, 0.0, -0.1, -1.5])
OPTIONS: list[dict[str, Any]] = [
    {},
    {"mask": ll.Causal()},
    {"mask": ll.Causal() & ll.Padding([151, 467])},
    {"mask": ll.First(60)},  # the row's own position is forbidden to most
    {"softcap": 3.0, "temperature": 0.5},
    {"sink": torch.tensor([300.0, 0.0, -300.0, 1.0, 2.0, 3.0])},
    {"scale": 25.0},  # logits as large as the slopes' own
]


def inputs(dtype: torch.dtype, N: int = 499, M: int = 701) -> tuple[Tensor, ...]:
    g = generator(2)
    shapes = (2, 6, N, 13), (2, 2, M, 13), (2, 2, M, 7), (2, 6, N, 7)
    return tuple(torch.randn(s, generator=g).to(dtype) for s in shapes)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_outputs_and_gradients_are_those_of_the_reference(dtype: torch.dtype, options: dict[str, Any]) -> None:
    *qkv, dout = inputs(dtype, N=211, M=467)
    slopes = SLOPES * (20 if dtype == torch.float64 else 1)  # doubles reach further down

    def run(f: Any, dtype: torch.dtype) -> list[Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in qkv]
        s = slopes.clone().requires_grad_()
        out = f(*leaves, bias=ll.ALiBi(s), **options)
        return [out.detach(), *torch.autograd.grad(out, [*leaves, s], dout.to(dtype))]

    want, got = run(reference.attention, torch.float64), run(ll.attention, dtype)
    # Logits are as large as slope · distance, and a weight is as inexact as its logit.
    problem = {"q": qkv[0], "k": qkv[1], "v": qkv[2], "bias": ll.ALiBi(slopes), **options}
    bounds = gradient_bounds(problem, dout)
    weights = logit_rounding(problem) * largest(qkv[2])
    for name, a, b in zip(("out", "q", "k", "v", "bias"), got, want, strict=True):
        assert_within(a, b, bounds.get(name, weights) + 2 * EPS[a.dtype] * largest(b), name)


def test_the_same_bits_as_from_the_keys_that_are_near() -> None:
    """At a slope of 4 everything further than 40 away has weight 0: a window says the same."""
    q, k, v, _ = inputs(torch.float32)
    bias = ll.ALiBi(torch.full((6,), 4.0))
    full = ll.attention(q, k, v, bias=bias)
    near = ll.attention(q, k, v, bias=bias, mask=ll.Window(200))
    assert_sums_close(full, near, terms=40)


@pytest.mark.parametrize("where", ["q", "k", "v"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_is_not_skipped(where: str, bad: float) -> None:
    q, k, v, _ = inputs(torch.float32)
    x = {"q": q, "k": k, "v": v}[where]
    x[1, 1, 650 if where != "q" else 3, 2] = bad
    out = ll.attention(q, k, v, bias=ll.ALiBi(torch.full((6,), 4.0)))
    dense = ll.attention(q, k, v, bias=ll.DenseBias(ll.ALiBi(torch.full((6,), 4.0)).dense(499, 701)))
    assert torch.equal(out.isfinite(), dense.isfinite())
    assert not out.isfinite().all()
