"""Properties other than exactness: empty rows, NaN, strides, batch axes, threads, backends."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import limelight as ll
from conftest import assert_sums_close, assert_within, generator, largest, logit_rounding, strided
from limelight import backends
from limelight.backends import sdpa
from limelight.core import reference

BACKENDS = pytest.mark.parametrize("backend", ["native", "portable"])


def qkv(
    B: int = 2, H: int = 6, Hkv: int = 3, N: int = 31, M: int = 43, D: int = 17, Dv: int = 11
) -> tuple[Tensor, ...]:
    g = generator(B * N * M * D)
    return tuple(torch.randn(s, generator=g) for s in ((B, H, N, D), (B, Hkv, M, D), (B, Hkv, M, Dv)))


@BACKENDS
@pytest.mark.parametrize("N", [1, 5, 31])
@pytest.mark.parametrize("sink", [None, 0.5])
def test_a_query_that_may_attend_to_nothing_gives_zeros(backend: str, N: int, sink: float | None) -> None:
    q, k, v = qkv(N=N)
    out = ll.attention(q, k, v, mask=ll.Padding([0, 43]), sink=sink, backend=backend)
    assert torch.equal(out[0], torch.zeros_like(out[0]))
    assert (out[1] != 0).all()
    lse = ll.weights(q, k, mask=ll.Padding([0, 43]), sink=sink).logsumexp()
    assert lse[0].isneginf().all()
    assert lse[1].isfinite().all()


@BACKENDS
def test_minus_infinity_removes_a_key_and_a_row_of_it_gives_zeros(backend: str) -> None:
    q, k, v = qkv()
    bias = torch.zeros(31, 43)
    bias[:, 7] = -torch.inf
    bias[4] = -torch.inf
    out = ll.attention(q, k, v, bias=ll.DenseBias(bias), backend=backend)
    assert out.isfinite().all()
    assert (out[:, :, 4] == 0).all()
    allowed = bias > -torch.inf
    assert_sums_close(out, ll.attention(q, k, v, mask=ll.Dense(allowed), backend=backend), terms=43)


@BACKENDS
@pytest.mark.parametrize("N", [1, 31])
@pytest.mark.parametrize("scale", [1e3, -1e3])
def test_huge_scores_give_no_nan(backend: str, N: int, scale: float) -> None:
    q, k, v = qkv(N=N)
    for options in ({"scale": scale, "mask": ll.Causal()}, {"bias": ll.DenseBias(torch.randn(N, 43) * 1e4)}):
        out = ll.attention(q, k, v, **options, backend=backend)
        want = reference.attention(q.double(), k.double(), v.double(), **options)
        assert_within(out, want, logit_rounding({"q": q, "k": k, **options}) * largest(v))


@BACKENDS
@pytest.mark.parametrize("N", [1, 3, 31])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", ["q", "k", "v"])
@pytest.mark.parametrize(
    "mask",
    [
        None,
        ll.Causal() & ll.Window(5),
        ll.Dense(torch.rand(1, 43, generator=generator(1)) > 0.5),
    ],
    ids=repr,
)
def test_what_is_not_finite_reaches_what_it_touches_and_nothing_else(
    backend: str, N: int, bad: float, where: str, mask: Any
) -> None:
    q, k, v = qkv(N=N)
    clean = ll.attention(q, k, v, mask=mask, backend=backend)
    x = {"q": q, "k": k, "v": v}[where]
    key = 40
    x[1, 2, 0 if where == "q" else key, 3] = bad
    out = ll.attention(q, k, v, mask=mask, backend=backend)
    touched = torch.zeros_like(out, dtype=torch.bool)
    allowed = torch.ones(N, 43, dtype=torch.bool) if mask is None else mask.dense(N, 43)
    if where == "q":
        touched[1, 2, 0] = bool(allowed[0].any())
    elif where == "k":
        touched[1, 4:6] = allowed[:, key, None]
    else:
        touched[1, 4:6, :, 3] = allowed[:, key]
    assert_sums_close(out[~touched], clean[~touched], terms=43)
    if bad != bad or where == "v":
        assert not out[touched].isfinite().any()


@BACKENDS
@pytest.mark.parametrize(
    "sizes", [{"N": 0}, {"M": 0}, {"B": 0}, {"N": 0, "M": 0}, {"Dv": 0}, {"M": 0, "N": 1}], ids=str
)
def test_empty_sequences(backend: str, sizes: dict[str, int]) -> None:
    q, k, v = qkv(**sizes)
    for mask in (None, ll.Causal(), ll.Window(2) | ll.First(1)):
        out = ll.attention(q, k, v, mask=mask, bias=ll.ALiBi(6), backend=backend)
        assert out.shape == (*q.shape[:3], v.shape[3])
        assert (out == 0).all()
    assert ll.weights(q, k).logsumexp().shape == q.shape[:3]


@BACKENDS
@pytest.mark.parametrize("lead", [(), (2, 3), (2, 1, 2)])
def test_any_number_of_batch_axes(backend: str, lead: tuple[int, ...]) -> None:
    q, k, v = torch.randn(*lead, 4, 7, 5), torch.randn(*lead, 2, 11, 5), torch.randn(*lead, 2, 11, 3)
    lengths = torch.randint(1, 12, lead) if lead else 6
    out = ll.attention(q, k, v, mask=ll.Padding(lengths), backend=backend)
    assert out.shape == (*lead, 4, 7, 3)
    flat = [x.reshape(-1, *x.shape[-3:]) for x in (q, k, v)]
    want = ll.attention(*flat, mask=ll.Padding(lengths), backend=backend)
    assert torch.equal(out.reshape(want.shape), want)
    assert torch.equal(ll.weights(q, k, mask=ll.Padding(lengths)) @ v, ll.attention(q, k, v, mask=ll.Padding(lengths)))
    assert ll.weights(q, k).shape == (*lead, 4, 7, 11)


@pytest.mark.parametrize("kind", [1, 2, 3])
@pytest.mark.parametrize("N", [2, 61])
def test_strided_inputs_are_read_in_place(kind: int, N: int) -> None:
    """Bit for bit what contiguous ones give, with nothing copied and NaN in the gaps never seen."""
    q, k, v = qkv(N=N, D=16, Dv=16)
    want = ll.attention(q, k, v, mask=ll.Causal())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = ll.attention(*(strided(x, kind) for x in (q, k, v)), mask=ll.Causal())
    assert torch.equal(got, want)


def test_expanded_inputs() -> None:
    q, k, v = qkv(B=1)
    out = ll.attention(q.expand(3, -1, -1, -1), k.expand(3, -1, -1, -1), v.expand(3, -1, -1, -1))
    assert torch.equal(out, ll.attention(q, k, v).expand(3, -1, -1, -1))


def test_the_output_lies_as_the_queries_lie() -> None:
    x = torch.randn(2, 13, 4, 8)
    q = x.transpose(1, 2)
    for width in (8, 5):
        out = ll.attention(q, q, q[..., :width])
        assert out.transpose(1, 2).is_contiguous(), "heads inside rows come out inside rows: nothing to copy"


def test_a_strided_last_axis_is_copied_and_said() -> None:
    q, k, v = qkv(D=16, Dv=16)
    odd = k.mT.contiguous().mT
    with pytest.warns(ll.SlowPathWarning, match=r"last axis of k \(2, 3, 43, 16\) is not contiguous"):
        out = ll.attention(q, odd, v)
    assert torch.equal(out, ll.attention(q, k, v))


def test_negative_views() -> None:
    z = torch.randn(2, 3, 9, 4, dtype=torch.complex64)
    x = z.conj().imag
    assert x.is_neg()
    with pytest.warns(ll.SlowPathWarning, match="last axis"):
        got = ll.attention(x, x, x)
    assert_sums_close(got, ll.attention(*[-z.imag.contiguous()] * 3), terms=9)


def test_an_overlapping_view() -> None:
    q = torch.randn(1, 2, 10).unfold(-1, 8, 1)
    k, v = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    assert torch.equal(ll.attention(q, k, v), ll.attention(q.contiguous(), k, v))


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_the_lowest_number_is_not_infinity(backend: str, dtype: torch.dtype) -> None:
    """A row in which every key has it still has weights, as in PyTorch."""
    q, k, v = (x.to(torch.promote_types(dtype, torch.float32)) for x in qkv())
    bias = torch.zeros(31, 43, dtype=dtype)
    bias[3] = torch.finfo(dtype).min
    bias[5, 7:] = torch.finfo(dtype).min
    out = ll.attention(q, k, v, bias=ll.DenseBias(bias), backend=backend)
    mean = v.mean(2).repeat_interleave(2, 1)
    assert_sums_close(out[:, :, 3], mean, terms=43)
    assert_sums_close(out[:, :, 5], ll.attention(q, k, v, mask=ll.First(7))[:, :, 5], terms=43)
    table = torch.full((6, 3), torch.finfo(dtype).min, dtype=dtype)
    out = ll.attention(q, k, v, bias=ll.Relative(table), backend=backend)
    assert_sums_close(out, mean[:, :, None].expand_as(out), terms=43)


@BACKENDS
def test_a_sink_far_above_every_logit(backend: str) -> None:
    q, k, v = qkv()
    assert ll.attention(q, k, v, sink=2000.0, backend=backend).abs().max() == 0
    v[:, :, 5] = torch.nan
    assert ll.attention(q, k, v, sink=2000.0, backend=backend).isnan().all()
    torch.testing.assert_close(ll.weights(q, k, sink=2000.0).logsumexp(), torch.full((2, 6, 31), 2000.0))


def test_negative_views_of_sink_and_slopes() -> None:
    q, k, v = qkv(H=3)
    x = torch.rand(3)
    view = torch._neg_view(-x)
    assert torch.equal(ll.attention(q, k, v, sink=view), ll.attention(q, k, v, sink=x))
    assert torch.equal(ll.attention(q, k, v, bias=ll.ALiBi(view)), ll.attention(q, k, v, bias=ll.ALiBi(x)))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_a_bias_of_eight_bits(dtype: torch.dtype) -> None:
    q, k, v = qkv()
    bias = torch.randn(31, 43).to(dtype)
    want = ll.attention(q, k, v, bias=ll.DenseBias(bias.float()))
    assert_sums_close(ll.attention(q, k, v, bias=ll.DenseBias(bias)), want, terms=43)


def test_flushing_of_subnormals_changes_nothing(two_threads: None) -> None:
    q, k, v = (torch.randn(1, 8, 128, 64).half() for _ in range(3))
    v = v * 1e-6
    want = ll.attention(q, k, v)
    assert (want != 0).any()
    try:
        if not torch.set_flush_denormal(True):
            pytest.skip("this machine cannot flush")
        for _ in range(4):
            assert torch.equal(ll.attention(q, k, v).view(torch.int16), want.view(torch.int16))
    finally:
        torch.set_flush_denormal(False)


def test_the_kernels_leave_the_arithmetic_of_threads_as_it_was(two_threads: None) -> None:
    """While they run, subnormal results are 0; what torch computes afterwards, on all threads, is not flushed."""
    ll.attention(*(torch.randn(1, 8, 128, 64) for _ in range(3)))
    smallest = torch.finfo(torch.float32).tiny
    assert (torch.full((1 << 20,), smallest) / 2 > 0).all()


def test_tensors_without_memory() -> None:
    q, k, _ = qkv(Hkv=6)
    zero = torch._efficientzerotensor((2, 6, 43, 5))
    assert torch.equal(ll.attention(q, k, zero), torch.zeros(2, 6, 31, 5))


CASES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((1, 3, 3, 389, 389, 31, 29), {"mask": ll.Causal() & ll.Window(50)}),
    ((2, 8, 2, 1, 4099, 64, 64), {}),
    ((1, 8, 2, 3, 2053, 32, 40), {"mask": ll.Causal(), "bias": ll.ALiBi(8), "sink": 1.0}),
    ((1, 2, 1, 40, 5003, 16, 16), {"mask": ll.First(3000) | ll.Window(9)}),
]


@pytest.mark.parametrize(("shape", "options"), CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_results_do_not_depend_on_threads_to_the_bit(
    shape: tuple[int, ...], options: dict[str, Any], dtype: torch.dtype, isa: str, two_threads: None
) -> None:
    q, k, v = (x.to(dtype) for x in qkv(*shape))
    results = []
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        results.append(ll.attention(q, k, v, **options))
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_instruction_sets_agree(isa: str) -> None:
    q, k, v = qkv(N=67, D=29)
    want = reference.attention(q.double(), k.double(), v.double(), softcap=2.0)
    assert_sums_close(ll.attention(q, k, v, softcap=2.0), want, terms=43)
    assert backends.isa() == isa


def test_a_missing_instruction_set_is_named() -> None:
    with pytest.raises(ValueError, match=r"'sse9' is not available on this machine, which has baseline"):
        backends.set_isa("sse9")


def test_the_environment_forces_an_instruction_set() -> None:
    code = "import torch, limelight as ll; from limelight import backends\n"
    code += "x = torch.ones(1, 1, 2, 2); ll.attention(x, x, x); print(backends.isa())"
    for name in backends.available_isas():
        run = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "LIMELIGHT_ISA": name}, capture_output=True, text=True
        )
        assert run.stdout.strip() == name
    wrong = {**os.environ, "LIMELIGHT_ISA": "mmx"}
    run = subprocess.run([sys.executable, "-c", code], env=wrong, capture_output=True, text=True)
    assert run.returncode == 1
    assert "'mmx' is not available on this machine, which has baseline" in run.stderr


def test_weights_is_attention() -> None:
    q, k, v = qkv()
    A = ll.weights(q, k, mask=ll.Causal(), bias=ll.ALiBi(6), softcap=3.0, temperature=0.5, sink=torch.randn(6))
    want = ll.attention(q, k, v, mask=ll.Causal(), bias=ll.ALiBi(6), softcap=3.0, temperature=0.5, sink=A._problem.sink)
    assert torch.equal(A @ v, want)
    assert repr(A) == (
        "Weights(shape=(2, 6, 31, 43), dtype=float32, mask=Causal(), bias=ALiBi(6), softcap=3, sink, temperature=0.5)"
    )
    dense = A.dense()
    assert_sums_close(dense @ v.repeat_interleave(2, 1), want, terms=43)
    assert (dense.sum(-1) < 1).all(), "the sink takes its share"


def test_the_choice_of_backend_is_visible_and_said() -> None:
    q, k, v = qkv()
    assert ll.backend_for(q, k, v).name == "native"
    assert ll.backend_for(q.requires_grad_(), k, v).name == "native"
    meta = [x.detach().to("meta") for x in (q, k, v)]
    chosen = ll.backend_for(*meta)
    assert str(chosen) == "portable: the tensors are on meta, the kernels run on the CPU"
    with pytest.raises(ValueError, match="backend='native' cannot compute this: the tensors are on meta"):
        ll.attention(*meta, backend="native")
    assert ll.attention(*meta, mask=ll.Causal()).shape == (2, 6, 31, 11)


def test_gradients_of_the_portable_backend() -> None:
    g = generator(5)
    q, k, v, table, sink, slopes, dense, tau = (
        torch.rand(s, generator=g, dtype=torch.float64).requires_grad_()
        for s in ((1, 4, 5, 3), (1, 2, 7, 3), (1, 2, 7, 2), (4, 5), (4,), (4,), (1, 5, 7), ())
    )

    def f(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        table: Tensor,
        sink: Tensor,
        slopes: Tensor,
        dense: Tensor,
        tau: Tensor,
    ) -> Tensor:
        bias = ll.Relative(table) + ll.ALiBi(slopes) + ll.DenseBias(dense)
        mask = ll.Causal() & ll.Window(3)
        return ll.attention(
            q, k, v, mask=mask, bias=bias, sink=sink, softcap=2.0, temperature=tau + 0.5, backend="portable"
        )

    assert torch.autograd.gradcheck(f, (q, k, v, table, sink, slopes, dense, tau))
    empty = ll.attention(q, k, v, mask=ll.First(0), backend="portable")
    grads = torch.autograd.grad(empty.sum(), (q, k, v))
    assert all((x == 0).all() for x in grads), "rows that see nothing have zero gradients, not NaN"


def test_matrix_units_are_used_where_torch_can_express_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU is made to claim AMX for bfloat16; other types and other calls stay with the kernels."""
    monkeypatch.setattr(sdpa, "matrix_units", lambda: {torch.bfloat16: "AMX"})
    q, k, v = (torch.randn(2, h, 37, 19) for h in (6, 2, 2))
    half = [x.bfloat16() for x in (q, k, v)]
    assert ll.backend_for(q, k, v).name == "native"
    assert str(ll.backend_for(*half)).startswith("sdpa: PyTorch's kernel computes bfloat16")
    assert ll.backend_for(*half, mask=ll.Causal()).name == "sdpa"
    beyond: list[dict[str, Any]] = [
        {"mask": ll.Window(5)},
        {"bias": ll.ALiBi(6)},
        {"softcap": 5.0},
        {"temperature": 2.0},
        {"sink": 0.0},
    ]
    for options in beyond:
        assert ll.backend_for(*half, **options).name == "native", options
    assert ll.backend_for(half[0][:, :, :20], *half[1:], mask=ll.Causal()).name == "native"  # aligned at the end
    assert ll.backend_for(half[0][:, :, :1], *half[1:]).name == "native"  # decoding
    for options in ({}, {"mask": ll.Causal()}, {"scale": 0.3}):
        got = ll.attention(*half, **options)
        torch.testing.assert_close(got, ll.attention(*half, **options, backend="native"), atol=0.03, rtol=0.02)
    leaf = half[0].clone().requires_grad_()
    ll.attention(leaf, *half[1:]).sum().backward()
    assert leaf.grad is not None


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("N", [1, 3, 23, 64])
def test_an_infinite_value_that_is_allowed_gives_infinity(N: int, dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(2, 3, n, 16, dtype=dtype) for n in (N, 29, 29))
    v[0, 1, 5, 2], v[1, 2, 7, 11] = torch.inf, -torch.inf
    want = torch.softmax(q @ k.mT / 4, -1) @ v
    got = ll.attention(q, k, v)
    assert want.isinf().sum() == 2 * N
    assert torch.equal(got.isposinf(), want.isposinf())
    assert torch.equal(got.isneginf(), want.isneginf())
    assert not got.isnan().any()
