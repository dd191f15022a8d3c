"""Both backends against the dense reference in float64, and their errors against those of SDPA."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import limelight as ll
from conftest import problems, strided
from limelight.core import reference

HALVES = (torch.bfloat16, torch.float16)
# The spacing of numbers near 1, in which the output is rounded.
EPS = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10, torch.float64: 2.0**-52}


def truth(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return reference.attention(q.double(), k.double(), v.double(), **options)


def dense_options(mask: Any, bias: Any, N: int, M: int) -> Tensor | None:
    """Mask and bias as the one additive tensor that SDPA takes."""
    added = None if bias is None else bias.dense(N, M).double()
    if mask is not None:
        allowed = mask.dense(N, M)
        added = (torch.zeros((), dtype=torch.float64) if added is None else added).masked_fill(~allowed, -torch.inf)
    return added


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Any = None, bias: Any = None, scale: float | None = None) -> Tensor:
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    added = dense_options(mask, bias, q.shape[2], k.shape[2])
    if added is not None:
        added = added.to(q.dtype).expand(torch.broadcast_shapes(added.shape, (q.shape[2], k.shape[2])))
    return scaled_dot_product_attention(q, k, v, attn_mask=added, scale=scale)


def check(p: dict[str, Any], backend: str) -> None:
    got = ll.attention(**p, backend=backend)
    want = truth(**p)
    assert got.dtype == p["v"].dtype
    assert got.shape == want.shape
    if not got.numel():
        return
    error = float((got.double() - want).abs().max())
    # A logit x is rounded by |x| · ε, which multiplies its weight by as much; then sums and output round.
    options = {name: x for name, x in p.items() if name not in ("q", "k", "v")}
    logits = reference.steps(p["q"].double(), p["k"].double(), **options).masked
    hottest = float(logits[logits.isfinite()].abs().max()) if logits.isfinite().any() else 0.0
    within = EPS[torch.promote_types(p["q"].dtype, torch.float32)]
    size = max(1.0, float(p["v"].double().abs().max()))
    allowed = (within * (8 + 4 * hottest / p.get("temperature", 1.0)) + EPS[p["v"].dtype]) * size
    assert error <= allowed, f"{error:.2e} > {allowed:.2e}"


@settings(max_examples=800)
@given(problems((torch.float32, torch.float32, *HALVES, torch.float64)))
def test_native_equals_the_reference(p: dict[str, Any]) -> None:
    check(p, "native")


@pytest.mark.usefixtures("isa")
def test_native_equals_the_reference_on_every_instruction_set(isa: str) -> None:
    @settings(max_examples=250)
    @given(problems((torch.float32, *HALVES, torch.float64)))
    def run(p: dict[str, Any]) -> None:
        check(p, "native")

    run()


@settings(max_examples=60)
@given(problems((torch.float32, torch.bfloat16, torch.float64)))
def test_portable_equals_the_reference(p: dict[str, Any]) -> None:
    check(p, "portable")


@settings(max_examples=80)
@given(problems((torch.float32, torch.float64)))
def test_logsumexp(p: dict[str, Any]) -> None:
    p = {**p}
    p.pop("v")
    got = ll.weights(**p).logsumexp()
    q, k = p.pop("q"), p.pop("k")
    want = reference.steps(q.double(), k.double(), **p).logsumexp
    assert torch.equal(got.isneginf(), want.isneginf())
    finite = want.isfinite()
    torch.testing.assert_close(
        got[finite].double(), want[finite], atol=2e-5 if q.dtype == torch.float32 else 1e-11, rtol=3e-6
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("N", "M", "D", "options"),
    [
        (1021, 1021, 64, {}),
        (1, 4099, 128, {}),
        (997, 997, 67, {"mask": ll.Causal()}),
        (503, 1511, 32, {"mask": ll.Causal() & (ll.Window(97) | ll.First(3))}),
        (211, 211, 251, {"mask": ll.Padding([150, 211])}),
        (607, 607, 64, {"bias": ll.ALiBi(6)}),
        (
            401,
            523,
            16,
            {"bias": ll.DenseBias(torch.randn(6, 401, 523, generator=torch.Generator().manual_seed(3)))},
        ),
        (13, 2, 1, {}),
        (3001, 3001, 8, {"mask": ll.Documents(torch.arange(3001) // 331)}),
    ],
    ids=str,
)
def test_error_at_most_twice_that_of_sdpa(dtype: torch.dtype, N: int, M: int, D: int, options: dict[str, Any]) -> None:
    g = torch.Generator().manual_seed(N * M)
    q, k, v = (torch.randn(2, h, n, D, generator=g).to(dtype) for h, n in ((6, N), (2, M), (2, M)))
    want = truth(q, k, v, **options)
    ours = float((ll.attention(q, k, v, **options).double() - want).abs().max())
    theirs = float((sdpa(q, k, v, **options).double() - want).abs().max())
    # An error below the rounding of the output itself says nothing, nor does one below that of the reference.
    floor = 16 * EPS[dtype] if dtype == torch.float64 else EPS[dtype] / 2
    assert ours <= 2 * theirs + floor, f"{ours:.2e} against {theirs:.2e}"


@settings(max_examples=60)
@given(problems((torch.float32, *HALVES)), st.sampled_from([1.0, 4.0]))
def test_error_at_most_twice_that_of_sdpa_anywhere(p: dict[str, Any], size: float) -> None:
    p = {k: x for k, x in p.items() if k in ("q", "k", "v", "mask", "bias", "scale")}
    p["q"] = strided(p["q"] * size, 2)
    want = truth(**p)
    got = ll.attention(**p)
    theirs = sdpa(**p)
    seen = theirs.isfinite()  # SDPA gives NaN where nothing is allowed
    ours, other = ((x.double() - want)[seen].abs().max().item() if seen.any() else 0.0 for x in (got, theirs))
    scale = max(1.0, float(p["v"].abs().max()))
    assert ours <= 2 * other + 4 * EPS[p["v"].dtype] * scale, f"{ours:.2e} against {other:.2e}"


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
        got = ll.attention(q, k, v, mask=ll.Causal(), backend=backend)
        assert got.dtype == vt
        assert (got.double() - truth(q, k, v, mask=ll.Causal())).abs().max() <= 4 * max(EPS[vt], 2.0**-20)


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
