"""bfloat16 in products of pairs, where the processor has them: scores of many rows, as exact as float32's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import limelight as ll
from conftest import assert_sums_close, assert_within, generator, largest, logit_rounding, rounding
from limelight.core import reference
from test_gradients import check as check_gradients

OPTIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"mask": ll.Causal()},
    "window": {"mask": ll.Window(23)},
    "strided": {"mask": ll.Causal() & ll.Strided(5)},
    "dense": {"mask": ll.Dense(torch.arange(307 * 331).view(307, 331) % 7 > 2)},
    "softcap": {"softcap": 3.0, "temperature": 0.7},
    "ALiBi": {"bias": ll.ALiBi(6), "scale": 0.3},
}
LAYOUTS = ["heads", "tokens", "far", "odd"]


def operand(layout: str, heads: int, n: int, D: int, seed: int) -> Tensor:
    """Return (2, heads, n, D) in bfloat16: whole heads, tokens, tokens that lie far apart, or at odd places."""
    g = generator(seed)
    if layout == "heads":
        return torch.randn(2, heads, n, D, generator=g).bfloat16()
    if layout == "odd":
        return torch.randn(2, heads, n, D + 1, generator=g).bfloat16()[..., 1:]
    width = D if layout == "tokens" else 1200
    return torch.randn(2, n, heads, width, generator=g).bfloat16().transpose(1, 2)[..., :D]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPTIONS)
def test_scores_are_as_exact_as_in_float32(name: str, layout: str, isa: str) -> None:
    q, k, v = operand(layout, 6, 307, 96, 1), operand(layout, 3, 331, 96, 2), operand(layout, 3, 331, 29, 3)
    options = OPTIONS[name]
    p = {"q": q.float(), "k": k.float(), **options}
    W, want = ll.weights(q, k, **options), reference.steps(q.double(), k.double(), **options)
    lse = W.logsumexp()
    assert lse.dtype == torch.float32
    assert_within(lse, want.logsumexp, logit_rounding(p), isa)
    assert_sums_close(W.received(), want.weights.sum(-2), 307)
    out = reference.attention(q.double(), k.double(), v.double(), **options)
    assert_within(W @ v, out, (logit_rounding(p) + rounding(1, 1.0, torch.bfloat16)) * largest(v), isa)


@pytest.mark.parametrize("D", [32, 64, 128])
def test_every_number_of_rows(D: int, isa: str) -> None:
    """From one row in lanes to several tiles, and keys that fill no tile."""
    for N in (17, 31, 48, 49, 97, 150):
        q, k = operand("heads", 3, N, D, N), operand("heads", 3, 128 + N, D, 7)
        want = reference.steps(q.double(), k.double()).logsumexp
        error = logit_rounding({"q": q.float(), "k": k.float()})
        assert_within(ll.weights(q, k).logsumexp(), want, error, f"{isa} {N}")


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize(("name", "layout"), [*zip(OPTIONS, LAYOUTS + LAYOUTS[::-1], strict=False)])
def test_gradients(name: str, layout: str, isa: str) -> None:
    q, k, v = operand(layout, 6, 307, 32, 1), operand(layout, 3, 331, 32, 2), operand(layout, 3, 331, 64, 3)
    options = OPTIONS[name]
    check_gradients({"q": q, "k": k, "v": v, **options}, "native")
    # The bounds are for the worst case. On the whole only the output and the gradients are rounded to bfloat16.
    dout = operand("heads", 6, 307, 64, 4)
    ours, exact = ([x.to(dtype).detach().requires_grad_() for x in (q, k, v)] for dtype in (q.dtype, torch.float64))
    got = torch.autograd.grad(ll.attention(*ours, **options), ours, dout)
    want = torch.autograd.grad(reference.attention(*exact, **options), exact, dout.double())
    for a, b in zip(got, want, strict=True):
        assert (a - b).square().mean().sqrt() < 0.02 * b.square().mean().sqrt(), isa
