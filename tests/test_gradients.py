"""Gradients: both backends against autograd through the dense reference in float64, and to the bit over threads."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import limelight as ll
from conftest import (
    EPS,
    assert_sums_close,
    assert_within,
    examples,
    generator,
    gradient_bounds,
    largest,
    problems,
    strided,
)
from limelight.core import reference
from limelight.core.biases import Bias

BACKENDS = pytest.mark.parametrize("backend", ["native", "portable"])


def gradients(f: Any, inputs: dict[str, Any], dout: Tensor) -> dict[str, Tensor]:
    """Return the gradients of q, k, v, sink, temperature and the tensors of the bias."""
    inputs = {name: x.detach().requires_grad_() if isinstance(x, Tensor) else x for name, x in inputs.items()}
    leaves = {name: x for name, x in inputs.items() if isinstance(x, Tensor)}
    if "bias" in inputs:
        leaves |= {f"bias {n}": x.requires_grad_() for n, x in enumerate(inputs["bias"].tensors())}
    found = torch.autograd.grad(f(**inputs), list(leaves.values()), dout, allow_unused=True)
    for x in leaves.values():
        x.requires_grad_(False)
    return {n: torch.zeros_like(x) if g is None else g for (n, x), g in zip(leaves.items(), found, strict=True)}


def in_doubles(x: Any) -> Any:
    """Return a tensor in float64, a bias with tensors in float64, and anything else as it is."""
    if isinstance(x, Bias):
        x = copy.deepcopy(x)
        for tensor in x.tensors():
            tensor.data = tensor.data.double()
    return x.double() if isinstance(x, Tensor) else x


def check(p: dict[str, Any], backend: str) -> None:
    v = p["v"]
    shape = (*p["q"].shape[:3], v.shape[3])
    dout = strided(torch.randn(shape, generator=generator(7)).to(v.dtype), p["q"].shape[2] % 4)
    bounds = gradient_bounds(p, dout)
    if "temperature" in p:
        p = {**p, "temperature": torch.tensor(p["temperature"], dtype=torch.float64)}
    got = gradients(lambda **o: ll.attention(**o, backend=backend), p, dout)
    want = gradients(reference.attention, {n: in_doubles(x) for n, x in p.items()}, dout.double())
    for name, a in got.items():
        assert_within(a, want[name], bounds[name.split()[0]] + EPS[a.dtype] * largest(want[name]), name)


@settings(max_examples=examples(300))
@given(problems((torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64)))
def test_native_equals_the_reference(p: dict[str, Any]) -> None:
    check(p, "native")


@pytest.mark.usefixtures("isa")
def test_native_equals_the_reference_on_every_instruction_set(isa: str) -> None:
    @settings(max_examples=examples(80))
    @given(problems((torch.float32, torch.bfloat16, torch.float64)))
    def run(p: dict[str, Any]) -> None:
        check(p, "native")

    run()


@settings(max_examples=examples(40))
@given(problems((torch.float32, torch.float64)))
def test_portable_equals_the_reference(p: dict[str, Any]) -> None:
    check(p, "portable")


def leaf(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    g = generator(seed, *shape)
    return torch.rand(shape, generator=g, dtype=dtype).requires_grad_()


def warm() -> Tensor:
    return torch.tensor(0.8, dtype=torch.float64, requires_grad=True)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"mask": ll.Causal()},
    {"mask": ll.Causal() & (ll.Window(2) | ll.First(1)), "softcap": 1.5},
    {"mask": ll.Padding([0, 5]), "sink": leaf(4)},
    {"mask": ll.Dense(torch.eye(5, 7) > 0), "scale": -0.7},
    {"bias": ll.Relative(leaf(4, 5)), "temperature": warm()},
    {"bias": ll.Relative(leaf(1, 5)), "mask": ll.Window(3)},
    {"bias": ll.Relative.t5(leaf(4, 8), max_distance=6)},
    {"bias": ll.ALiBi(leaf(4)), "softcap": 0.8},
    {"bias": ll.ALiBi(leaf(1))},
    {"bias": ll.DenseBias(leaf(5, 7)), "sink": leaf(4, seed=1), "temperature": warm()},
    {"bias": ll.DenseBias(leaf(2, 1, 1, 7))},
    {"bias": ll.DenseBias(leaf(4, 5, 1))},
    {"bias": ll.DenseBias(leaf(1, 1)) + ll.ALiBi(leaf(4)) + ll.Relative(leaf(4, 3))},
    {"mask": ll.Documents([0, 0, 0, 1, 1, 2, 2]), "dropout": 0.3},
]


def learned(options: dict[str, Any]) -> list[Tensor]:
    found = [x for x in options.values() if isinstance(x, Tensor)]
    return found + (options["bias"].tensors() if "bias" in options else [])


@BACKENDS
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradcheck(options: dict[str, Any], backend: str) -> None:
    q, k, v = leaf(2, 4, 5, 3), leaf(2, 2, 7, 3), leaf(2, 2, 7, 2)

    def f(q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> Tensor:
        torch.manual_seed(3)
        return ll.attention(q, k, v, **options, backend=backend)

    leaves = (q, k, v, *learned(options))
    assert torch.autograd.gradcheck(f, leaves)
    assert torch.autograd.gradgradcheck(f, leaves, fast_mode=True)


@pytest.mark.parametrize("sink", [False, True])
def test_gradient_of_the_log_sum_exp(sink: bool) -> None:
    s = leaf(4) if sink else None
    q, k = leaf(2, 4, 5, 3), leaf(2, 2, 7, 3)
    assert torch.autograd.gradcheck(
        lambda q, k, *_: ll.weights(q, k, mask=ll.Causal(), sink=s).logsumexp(), (q, k, *([s] if sink else []))
    )


EVERYTHING = [
    ((1, 2, 2, 1009, 2111, 16, 24), {"mask": ll.Causal() & ll.Window(300)}),
    ((1, 1, 1, 701, 2111, 8, 7), {"bias": ll.ALiBi(torch.tensor([0.01]))}),
    ((3, 4, 2, 307, 601, 31, 8), {"bias": ll.DenseBias(torch.randn(307, 601)), "softcap": 3.0}),
    ((2, 4, 4, 499, 1201, 8, 8), {"bias": ll.DenseBias(torch.randn(4, 1, 1))}),
    ((1, 4, 1, 509, 1201, 8, 8), {"bias": ll.DenseBias(torch.randn(509, 1))}),
    ((1, 4, 1, 509, 1201, 8, 8), {"bias": ll.DenseBias(torch.randn(1, 1201))}),
    ((2, 4, 4, 499, 1201, 8, 8), {"bias": ll.DenseBias(torch.randn(2, 1, 1, 1201))}),
    ((2, 4, 2, 601, 1103, 16, 16), {"bias": ll.Relative(torch.randn(4, 999)) + ll.ALiBi(torch.rand(4))}),
    ((1, 2, 1, 1103, 1103, 16, 16), {"sink": torch.randn(2), "temperature": torch.tensor(0.7), "dropout": 0.2}),
]


@pytest.mark.parametrize(("shape", "options"), EVERYTHING, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_gradients_do_not_depend_on_threads_to_the_bit(
    shape: tuple[int, ...], options: dict[str, Any], dtype: torch.dtype, isa: str, two_threads: None
) -> None:
    B, H, Hkv, N, M, D, Dv = shape
    g = generator(11)
    q, k, v = (torch.randn(s, generator=g).to(dtype) for s in ((B, H, N, D), (B, Hkv, M, D), (B, Hkv, M, Dv)))
    dout = torch.randn(B, H, N, Dv, generator=g).to(dtype)
    results = []
    for threads in (1, 2, 3, 7, 2):
        torch.set_num_threads(threads)
        torch.manual_seed(5)
        results.append(gradients(ll.attention, {"q": q, "k": k, "v": v, **options}, dout))
    for other in results[1:]:
        assert all(torch.equal(a, other[name]) for name, a in results[0].items())
    if dtype == torch.float64:  # and they are right, however the work was cut
        torch.manual_seed(5)
        inputs = {"q": q, "k": k, "v": v, **options}
        want = gradients(lambda **o: ll.attention(**o, backend="portable"), inputs, dout)
        for name, a in results[0].items():
            assert_sums_close(a, want[name], terms=H * N * M)


@BACKENDS
@pytest.mark.parametrize("sink", [None, 0.5])
def test_a_query_that_may_attend_to_nothing_has_zero_gradients(backend: str, sink: float | None) -> None:
    q, k, v = (torch.randn(2, 3, n, 8, requires_grad=True) for n in (31, 43, 43))
    out = ll.attention(q, k, v, mask=ll.Padding([0, 43]), sink=sink, softcap=2.0, backend=backend)
    grads = torch.autograd.grad(out.sum() + out.square().sum(), (q, k, v))
    for x in grads:
        assert (x[0] == 0).all()
        assert x[1].isfinite().all()
        assert (x[1] != 0).any()


@BACKENDS
@pytest.mark.parametrize("sizes", [{"N": 0}, {"M": 0}, {"B": 0}, {"Dv": 0}], ids=str)
def test_empty_sequences(backend: str, sizes: dict[str, int]) -> None:
    n = {"B": 2, "N": 5, "M": 7, "Dv": 4, **sizes}
    q, k, v = leaf(n["B"], 4, n["N"], 3), leaf(n["B"], 2, n["M"], 3), leaf(n["B"], 2, n["M"], n["Dv"])
    table, sink = leaf(4, 5), leaf(4)
    out = ll.attention(q, k, v, mask=ll.Causal(), bias=ll.Relative(table), sink=sink, backend=backend)
    for x, g in zip((q, k, v), torch.autograd.grad(out.sum(), (q, k, v, table, sink), allow_unused=True)):  # noqa: B905
        assert g is None or (g.shape == x.shape and (g == 0).all())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("where", ["q", "k", "v", "dout"])
@pytest.mark.parametrize("mask", [None, ll.Causal() & ll.Window(5), ll.Dense(torch.eye(31, 43) > 0)], ids=repr)
def test_what_is_not_finite_reaches_what_it_touches_and_nothing_else(bad: float, where: str, mask: Any) -> None:
    g = generator(1)
    x = {n: torch.randn(1, 2, r, 8, generator=g) for n, r in (("q", 31), ("k", 43), ("v", 43), ("dout", 31))}

    def run() -> dict[str, Tensor]:
        leaves = {n: x[n].clone().requires_grad_() for n in "qkv"}
        out = ll.attention(**leaves, mask=mask)
        return dict(zip("qkv", torch.autograd.grad(out, list(leaves.values()), x["dout"]), strict=True))

    clean = run()
    row = 17 if where in ("q", "dout") else 29
    x[where][0, 1, row, 3] = bad
    got = run()
    allowed = torch.ones(31, 43, dtype=torch.bool) if mask is None else mask.dense(31, 43)
    rows = torch.zeros(31, dtype=torch.bool)  # queries whose weights or gradients may be touched
    if where in ("q", "dout"):
        rows[row] = True
    else:
        rows = allowed[:, row]
    keys = allowed[rows].any(0)
    for name, touched in (("q", rows), ("k", keys), ("v", keys)):
        assert torch.equal(got[name][0, 0], clean[name][0, 0]), "the other head"
        torch.testing.assert_close(got[name][0, 1, ~touched], clean[name][0, 1, ~touched])
    if bad != bad:
        assert not got["q"][0, 1, rows].isfinite().all(-1).any()


def test_a_row_of_nan_stays_within_its_window() -> None:
    """The row's weights are NaN, but not for keys that it may not attend to, in whatever block they are."""
    q, k, v = (torch.randn(1, 1, 512, 8, generator=generator(s)) for s in range(3))
    k[0, 0, 5] = torch.nan
    leaves = [x.requires_grad_() for x in (q, k, v)]
    bias = torch.zeros(512, 512, requires_grad=True)
    mask = ll.Causal() & ll.Window(200)
    out = ll.attention(*leaves, mask=mask, bias=ll.DenseBias(bias))
    dq, dk, dv, dbias = torch.autograd.grad(out.sum(), [*leaves, bias])
    rows = torch.arange(512)
    touched = (rows >= 5) & (rows <= 205)
    assert dq[0, 0, ~touched].isfinite().all()
    keys = mask.dense(512)[touched].any(0)
    assert dk[0, 0, ~keys].isfinite().all()
    assert dv[0, 0, ~keys].isfinite().all()
    assert dbias[~mask.dense(512)].isfinite().all()
    assert dbias[~touched].isfinite().all()


@given(st.sampled_from([1, 2, 3]), st.sampled_from([torch.float32, torch.float64]))
@settings(max_examples=examples(6))
def test_strided_inputs_give_the_same_bits(kind: int, dtype: torch.dtype) -> None:
    g = generator(kind)
    q, k, v, dout = (torch.randn(2, 3, n, 16, generator=g).to(dtype) for n in (61, 67, 67, 61))

    def run(*x: Tensor) -> tuple[Tensor, ...]:
        *leaves, d = (y.detach().requires_grad_() for y in x)
        return torch.autograd.grad(ll.attention(*leaves, mask=ll.Causal()), leaves, d.detach())

    want = run(q, k, v, dout)
    got = run(*(strided(x, kind) for x in (q, k, v, dout)))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 11, 13])
@pytest.mark.parametrize("width", [1, 19, 37, 71])
def test_fewer_rows_than_lanes(width: int, rows: int) -> None:
    """Their products have features in the lanes, as in decoding."""
    g = generator(rows)
    q, k, v = (
        torch.randn(1, h, n, d, generator=g) for h, n, d in ((rows, 1, width), (1, 29, width), (1, 29, width + 2))
    )
    check({"q": q, "k": k, "v": v}, "native")
    q = torch.randn(2, 3, rows, width, generator=g)
    check({"q": q, "k": k.repeat(2, 3, 1, 1), "v": v.repeat(2, 3, 1, 1), "softcap": 1.3, "mask": ll.Causal()}, "native")


def test_the_gradient_of_a_sum_is_expanded() -> None:
    q, k, v = (torch.randn(1, 2, n, 8, requires_grad=True) for n in (5, 7, 7))
    got = torch.autograd.grad(ll.attention(q, k, v).sum(), (q, k, v))
    want = torch.autograd.grad(ll.attention(q, k, v), (q, k, v), torch.ones(1, 2, 5, 8))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("twice", [False, True])
def test_lengths_that_change_before_the_backward_pass_change_nothing(twice: bool) -> None:
    q, k, v = (torch.randn(2, 3, n, 11, requires_grad=True) for n in (5, 13, 13))
    seen, lengths = torch.tensor([7, 13]), torch.tensor([7, 13])
    expected = torch.autograd.grad(reference.attention(q, k, v, mask=ll.Padding(seen)).square().sum(), (q, k, v))
    out = ll.attention(q, k, v, mask=ll.Padding(lengths))
    lengths.sub_(4)
    found = torch.autograd.grad(out.square().sum(), (q, k, v), create_graph=twice)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"bias": ll.ALiBi(3)}, {"sink": 0.5}, {"dropout": 0.1}])
def test_a_dense_mask_that_changes_before_the_backward_pass_is_an_error(options: dict[str, Any]) -> None:
    x = torch.randn(2, 3, 13, 11, requires_grad=True)
    allowed = torch.rand(13, 13) < 0.7
    out = ll.attention(x, x, x, mask=ll.Dense(allowed), **options)
    allowed.logical_not_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("mask", [ll.Causal(), ll.Window(37, 5)], ids=str)
def test_what_is_not_finite_stays_in_its_head(mask: ll.Mask, isa: str) -> None:
    """Memory in which a head with NaN was computed is used again for others, whose rows do not see all keys."""
    random = generator()
    inputs = {name: torch.randn(1, 7, 331, 19, generator=random) for name in "qkv"}
    dout = torch.randn(1, 7, 331, 19, generator=random)
    attend = partial(ll.attention, mask=mask)
    expected = gradients(attend, inputs, dout)
    inputs["v"][:, 2], dout[:, 2] = torch.nan, torch.nan
    others = [0, 1, 3, 4, 5, 6]
    for name, x in gradients(attend, inputs, dout).items():
        assert torch.equal(x[:, others], expected[name][:, others])
