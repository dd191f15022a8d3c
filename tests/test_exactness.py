"""Both backends against the dense reference in float64, and their errors against those of the dense softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

import limelight as ll
from conftest import EPS, assert_within, dense_steps, examples, generator, largest, logit_rounding, problems, rounding
from limelight import backends
from limelight.core import reference

HALVES = (torch.bfloat16, torch.float16)
FLOAT_ISAS = [
    isa for isa in backends.available_isas() if isa != "avx512_bf16"
]  # the one left out differs for bfloat16 alone


def truth(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return reference.attention(q.double(), k.double(), v.double(), **options)


def check(p: dict[str, Any], backend: str) -> None:
    """Compare with float64: a sum over the keys of weights, which are as inexact as their logits, times values."""
    got, want = ll.attention(**p, backend=backend), truth(**p)
    assert got.dtype == p["v"].dtype
    size = max(1.0, largest(p["v"]))
    sums = rounding(p["k"].shape[2], size, torch.promote_types(p["q"].dtype, torch.float32))
    assert_within(got, want, sums + logit_rounding(p) * size + EPS[got.dtype] / 2 * size)


@settings(max_examples=examples(400))
@given(problems((torch.float32, torch.float32, *HALVES, torch.float64)))
def test_native_equals_the_reference(p: dict[str, Any]) -> None:
    check(p, "native")


@pytest.mark.usefixtures("isa")
def test_native_equals_the_reference_on_every_instruction_set(isa: str) -> None:
    @settings(max_examples=examples(250))
    @given(problems((torch.float32, *HALVES, torch.float64)))
    def run(p: dict[str, Any]) -> None:
        check(p, "native")

    run()


@settings(max_examples=examples(60))
@given(problems((torch.float32, torch.bfloat16, torch.float64)))
def test_portable_equals_the_reference(p: dict[str, Any]) -> None:
    check(p, "portable")


@settings(max_examples=examples(80))
@given(problems((torch.float32, torch.float64)))
def test_logsumexp(p: dict[str, Any]) -> None:
    got = ll.weights(**{name: x for name, x in p.items() if name != "v"}).logsumexp()
    want = dense_steps(p).logsumexp
    assert torch.equal(got.isneginf(), want.isneginf())
    sums = rounding(p["k"].shape[2], max(1.0, largest(want)), p["q"].dtype)
    assert_within(got, want, sums + logit_rounding(p))


# Root-mean-square errors as multiples of those of the dense softmax in float32.
FORWARD_BOUND, GRADIENT_BOUND = 1.1, 1.1


def bounds_of(isa: str) -> tuple[float, float]:
    """Return the bounds of the output and of the gradients.

    The baseline has no fused multiply-add and four lanes, while the dense softmax here uses all that the machine has.
    """
    return (1.5, 2.0) if isa == "baseline" else (FORWARD_BOUND, GRADIENT_BOUND)


class ChainedProduct(torch.autograd.Function):
    """a @ b in float32 with one chain of fused multiply-adds for each sum, as a plain loop computes it.

    How exact a library's product of few rows is depends on its choice of chains, and so on the machine; this does not.
    """

    @staticmethod
    def product(a: Tensor, b: Tensor) -> Tensor:
        # Products of floats are exact in doubles, so that each step rounds once, as a fused multiply-add does.
        total = torch.zeros(*a.shape[:-1], b.shape[-1], dtype=torch.float64)
        rounded = total.float()
        for column, row in zip(a.double().split(1, -1), b.double().split(1, -2), strict=True):
            total.copy_(rounded)
            rounded.copy_(total.addcmul_(column, row))
        return rounded

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return ChainedProduct.product(a, b)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return ChainedProduct.product(d, b.mT), ChainedProduct.product(a.mT, d)


def dense_softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Any = None,
    bias: Any = None,
    product: Callable[[Tensor, Tensor], Tensor] = torch.matmul,
) -> Tensor:
    """Attention as every textbook writes it, in the type of its inputs."""
    N, M = q.shape[2], k.shape[2]
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    logits = product(q, k.mT) * q.shape[3] ** -0.5
    if bias is not None:
        logits = logits + bias.dense(N, M).to(logits.dtype)
    if mask is not None:
        logits = logits.masked_fill(~mask.dense(N, M), -torch.inf)
    return product(torch.softmax(logits, -1), v)


def errors(f: Any, inputs: list[Tensor], dtype: torch.dtype, want: list[Tensor]) -> list[float]:
    """Return the root-mean-square errors of the output and of the gradients of q, k and v."""
    return [float((x - y).square().mean().sqrt()) for x, y in zip(results(f, inputs, dtype), want, strict=True)]


def results(f: Any, inputs: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    *qkv, dout = (x.to(dtype) for x in inputs)
    out = f(*(x.requires_grad_() for x in qkv))
    return [x.detach().double() for x in (out, *torch.autograd.grad(out, qkv, dout))]


def assert_as_exact_as_the_dense_softmax(
    B: int,
    H: int,
    Hkv: int,
    N: int,
    M: int,
    D: int,
    bounds: tuple[float, float] = (FORWARD_BOUND, GRADIENT_BOUND),
    product: Callable[[Tensor, Tensor], Tensor] = torch.matmul,
    **options: Any,
) -> None:
    """Compare our errors in float32 with those of the dense softmax in float32, measured against float64.

    ``product`` is the matrix product of the latter.

    Root mean squares over at least 600 rows: the errors of one row have its normaliser in common, and with 200 rows the
    ratio is uncertain by 0.03 (a standard deviation).
    """
    r = generator(N, M, D)
    shapes = (B, H, N, D), (B, Hkv, M, D), (B, Hkv, M, D), (B, H, N, D)
    inputs = [torch.randn(s, generator=r) for s in shapes]
    want = results(lambda *x: dense_softmax(*x, **options), inputs, torch.float64)
    ours = errors(lambda *x: ll.attention(*x, **options), inputs, torch.float32, want)
    theirs = errors(lambda *x: dense_softmax(*x, **options, product=product), inputs, torch.float32, want)
    ratios = {name: a / b for name, a, b in zip(("out", "dq", "dk", "dv"), ours, theirs, strict=True)}
    text = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
    assert ratios["out"] <= bounds[0], f"width {D}: {text}"
    assert max(ratios.values()) <= bounds[1], f"width {D}: {text}"


def kinds(N: int, M: int) -> dict[str, dict[str, Any]]:
    """Every mask and bias once, each with at least one key for every query."""
    r = generator(N, M)
    return {
        "full": {},
        "causal": {"mask": ll.Causal()},
        "window": {"mask": ll.Window(400)},
        "causal, window, first": {"mask": ll.Causal() & (ll.Window(300) | ll.First(3))},
        "padding": {"mask": ll.Padding(M - 97)},
        "documents": {"mask": ll.Documents(torch.arange(M) // 613)},
        "prefix": {"mask": ll.Prefix(M - N // 2)},
        "dense mask": {"mask": ll.Dense(torch.rand(N, M, generator=r) > 0.5)},
        "alibi": {"bias": ll.ALiBi(2)},
        "relative": {"bias": ll.Relative(torch.randn(2, 129, generator=r))},
        "dense bias": {"bias": ll.DenseBias(torch.randn(N, M, generator=r))},
    }


@pytest.mark.parametrize("M", [1009, 3001, 9001])
@pytest.mark.parametrize("kind", kinds(2, 200))
def test_as_exact_as_the_dense_softmax(kind: str, M: int) -> None:
    """Sums over 1,009 to 9,001 keys: the error does not grow with them, of the output or of the gradients."""
    options = kinds(331, M)[kind]
    assert_as_exact_as_the_dense_softmax(B=1, H=2, Hkv=2, N=331, M=M, D=16, **options)


@pytest.mark.parametrize(
    "sizes",
    [
        {"B": 1, "H": 4, "Hkv": 2, "N": 9001, "M": 211, "D": 17},  # long sums over the queries
        {"B": 1, "H": 6, "Hkv": 2, "N": 1013, "M": 1009, "D": 64},
        {"B": 1, "H": 6, "Hkv": 1, "N": 211, "M": 1009, "D": 251},
        {"B": 5, "H": 120, "Hkv": 30, "N": 1, "M": 2003, "D": 32},  # decoding steps
        {"B": 3, "H": 84, "Hkv": 84, "N": 3, "M": 1009, "D": 64},
        {"B": 3, "H": 84, "Hkv": 84, "N": 3, "M": 4001, "D": 7},  # narrower than a vector
    ],
    ids=str,
)
@pytest.mark.parametrize("isa", FLOAT_ISAS, indirect=True)
def test_as_exact_as_the_dense_softmax_in_other_shapes(sizes: dict[str, int], isa: str) -> None:
    forward, gradient = bounds_of(isa)
    # How exact torch's sums over 18,002 rows are depends on the machine. With few features a weight may be close to 1,
    # where dP and δ nearly cancel; the dense gradient makes δ of the same dP, so that their roundings cancel, too.
    if sizes["N"] > 5000 or sizes["D"] < 8:
        gradient = max(gradient, 1.3)
    assert_as_exact_as_the_dense_softmax(**sizes, bounds=(forward, gradient))


@pytest.mark.parametrize("isa", FLOAT_ISAS, indirect=True)
@pytest.mark.parametrize("M", [2, 17, 61, 211, 331])
@pytest.mark.parametrize("N", [1, 3, 97])
def test_short_sums_are_as_exact_as_the_dense_softmax(N: int, M: int, isa: str) -> None:
    """Rows with few keys, in which no error averages out: the exponential and the sum of each row show."""
    heads = 4 * (max(300 // N, 600 // M) + 1)  # at least 1,200 queries, and 600 keys
    bounds = (1.15, 1.3) if isa == "baseline" else (FORWARD_BOUND, GRADIENT_BOUND)
    for D in (8, 67, 251):
        assert_as_exact_as_the_dense_softmax(1, heads, heads // 4, N, M, D, bounds=bounds, product=ChainedProduct.apply)


@pytest.mark.parametrize("D", [67, 96])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("options", [{}, {"mask": ll.Causal()}, {"bias": ll.ALiBi(6)}], ids=str)
def test_halves_are_rounded_once(dtype: torch.dtype, options: dict[str, Any], D: int) -> None:
    """The output in halves is as exact as the dense softmax of the same numbers in float32, stored in halves."""
    r = generator(7)
    q, k, v = (torch.randn(2, h, 1009, D, generator=r).to(dtype) for h in (6, 2, 2))
    want = dense_softmax(q.double(), k.double(), v.double(), **options)
    ours = ll.attention(q, k, v, **options).double()
    theirs = dense_softmax(q.float(), k.float(), v.float(), **options).to(dtype).double()
    a, b = (float((x - want).square().mean().sqrt()) for x in (ours, theirs))
    assert a <= 1.1 * b, f"{a:.2e} against {b:.2e}"


@pytest.mark.parametrize(
    "types",
    [
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float16),
        (torch.float64, torch.bfloat16),
        (torch.float32, torch.float64),
    ],
    ids=str,
)
@pytest.mark.parametrize("N", [1, 37])
def test_values_of_another_type(types: tuple[torch.dtype, torch.dtype], N: int) -> None:
    qk, vt = types
    q, k, v = (
        torch.randn(2, 3, N, 19).to(qk),
        torch.randn(2, 3, 53, 19).to(qk),
        torch.randn(2, 3, 53, 23).to(vt),
    )
    for backend in ("native", "portable"):
        check({"q": q, "k": k, "v": v, "mask": ll.Causal()}, backend)


def test_the_reference_against_numbers_by_hand() -> None:
    """softmax([0, ln 3]) = [1/4, 3/4], with every option once."""
    q, k = (
        torch.tensor([[[[1.0]]]]).double(),
        torch.tensor([[[[0.0], [torch.log(torch.tensor(3.0))]]]]).double(),
    )
    v = torch.tensor([[[[4.0], [8.0]]]]).double()
    close = {"abs": 1e-7}
    assert reference.attention(q, k, v, scale=1.0).item() == pytest.approx(7.0, **close)
    assert reference.attention(q, k, v, scale=2.0, temperature=2.0).item() == pytest.approx(7.0, **close)
    assert reference.attention(q, k, v, scale=1.0, sink=torch.zeros(1)).item() == pytest.approx(
        (4 + 3 * 8) / 5, **close
    )
    assert reference.attention(q, k, v, scale=1.0, mask=ll.First(1)).item() == 4.0
    bias = ll.DenseBias(torch.log(torch.tensor([[[3.0, 1.0]]])))
    assert reference.attention(q, k, v, scale=1.0, bias=bias).item() == pytest.approx(6.0, **close)
    capped = torch.tanh(torch.log(torch.tensor(3.0, dtype=torch.float64)))
    want = (4 + 8 * capped.exp()) / (1 + capped.exp())
    assert reference.attention(q, k, v, scale=1.0, softcap=1.0).item() == pytest.approx(want.item(), **close)
