"""Masks that are computed in passes: gradients of statistics, dropout, tensors as biases, against float64."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import limelight as ll
from conftest import assert_sums_close, generator, largest
from limelight.core import reference
from limelight.core.dropout import factors
from limelight.core.masks import Mask
from limelight.experiments.measuring import peak_bytes
from test_sparse_statistics import GLOBAL, HKV, MASKS, B, D, H, M, count_spans, operands
from test_statistic_gradients import dense_statistics, zero_free

EVERY = {"entropy": True, "distance": True, "received": True, "mass": ll.First(3), "profile": 30, "pool": (7, 13)}
STRONGEST = {"max": True, "top": 4}
WIDTH = 5


def learned(N: int, which: str) -> dict[str, Tensor]:
    """Tensors of options to which a gradient flows."""
    g = generator(N)
    shapes = {"slopes": (H,), "table": (H, 23), "by_key": (B, H, 1, M), "full": (H, N, M), "sink": (H,)}
    found = {name: torch.randn(shapes[name], generator=g).double() for name in which.split() if name in shapes}
    return found | ({"temperature": torch.tensor(0.8).double()} if "temperature" in which else {})


def options_of(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The options of a call that are made of such tensors."""
    biases: dict[str, Callable[[Tensor], Any]] = {
        "slopes": ll.ALiBi,
        "table": ll.Relative,
        "by_key": ll.DenseBias,
        "full": ll.DenseBias,
    }
    bias = None
    for name, x in tensors.items():
        if name in biases:
            bias = biases[name](x) if bias is None else bias + biases[name](x)
    return {"bias": bias, **{name: x for name, x in tensors.items() if name in ("sink", "temperature")}}


@pytest.mark.parametrize("mask", MASKS, ids=repr)
@pytest.mark.parametrize(("N", "which"), [(97, "sink temperature slopes table"), (53, "slopes by_key full sink")])
def test_gradients_of_statistics_equal_those_of_the_dense_matrix(mask: Mask, N: int, which: str) -> None:
    q, k = operands(N, torch.float64)
    results = []
    for dense in (False, True):
        leaves = [x.clone().requires_grad_() for x in (q, k, *learned(N, which).values())]
        options = options_of(dict(zip(learned(N, which), leaves[2:], strict=True)))
        if dense:
            P = zero_free(reference.steps(leaves[0], leaves[1], mask=mask, **options).weights)
            found = {**dense_statistics(P, EVERY), "other": dense_statistics(P, {"mass": ll.Strided(4)})["mass"]}
            found |= {"max": P.amax(-1), "top": P.topk(4).values}
        else:
            A = ll.weights(leaves[0], leaves[1], mask=mask, **options)
            seen = A.observe(**EVERY, **STRONGEST)
            found = {**{name: getattr(seen, name) for name in EVERY}, "other": A.mass(ll.Strided(4))}
            found |= {"max": seen.max, "top": seen.top.values}
        g = generator(3)
        loss = sum((x * torch.randn(x.shape, generator=g).double()).sum() for x in found.values())
        results.append(torch.autograd.grad(loss, leaves))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("mask", [ll.Causal(), None, *MASKS[:2]], ids=repr)
def test_gradients_of_the_mass_on_a_pattern(mask: Mask | None) -> None:
    q, k = operands(M, torch.float64)
    results = []
    for dense in (False, True):
        leaves = [x.clone().requires_grad_() for x in (q, k)]
        other = ll.Causal() & (ll.Window(3) | ll.Strided(4))
        if dense:
            P = reference.steps(*leaves, mask=mask).weights
            found = (P * other.dense(M)).sum(-1)
        else:
            found = ll.weights(*leaves, mask=mask).mass(other)
        results.append(torch.autograd.grad((found**3).sum(), leaves))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("mask", MASKS[::3], ids=repr)
def test_statistics_without_kernels_for_their_gradient_and_second_derivatives(mask: Mask) -> None:
    q, k = operands(23, torch.float64)
    results = []
    u = torch.randn(B, H, 23, 3).double().requires_grad_()
    for dense in (False, True):
        leaves = [x.clone().requires_grad_() for x in (q, k)]
        if dense:
            P = zero_free(reference.steps(*leaves, mask=mask).weights)
            found = [P.amax(-1), P.mT @ u, -(P * torch.where(P == 0, 1.0, P).log()).sum(-1)]
        else:
            A = ll.weights(*leaves, mask=mask)
            found = [A.max(), A.T @ u, A.entropy()]
        loss = sum((x**2).sum() for x in found)
        once = torch.autograd.grad(loss, [*leaves, u], retain_graph=True)
        first = torch.autograd.grad(loss, [*leaves, u], create_graph=True)
        results.append([*once, *first, *torch.autograd.grad(sum((x**2).sum() for x in first[:2]), leaves)])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


def dropped(q: Tensor, k: Tensor, v: Tensor, rate: float, seed: int, **options: Any) -> Tensor:
    """Attention by its equation, with the weights dropped that the definition of dropout names."""
    torch.manual_seed(seed)
    A = reference.steps(q, k, **options).weights
    N = q.shape[2]
    kept = factors(rate, torch.randint(0, 2**63 - 1, ()), *A.shape[:2], torch.arange(N), torch.arange(M), A.dtype)
    return (A * kept) @ v.repeat_interleave(H // HKV, 1)


@pytest.mark.parametrize("mask", [*MASKS[1::2], ll.Strided(2), MASKS[6]], ids=repr)
@pytest.mark.parametrize(("N", "dtype"), [(97, torch.float64), (53, torch.float32)])
def test_dropout_removes_the_same_weights_in_passes(mask: Mask, N: int, dtype: torch.dtype) -> None:
    q, k = operands(N, dtype)
    v = torch.randn(B, M, HKV, WIDTH, dtype=dtype).transpose(1, 2)
    sink, dout = torch.randn(H), torch.randn(B, H, N, WIDTH)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    torch.manual_seed(29)
    out = ll.attention(*leaves, mask=mask, sink=sink, dropout=0.3)
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    want = dropped(*exact, 0.3, 29, mask=mask, sink=sink.double())
    assert_sums_close(out, want, M, largest(v))
    found = torch.autograd.grad(out, leaves, dout.to(dtype))
    for got, true in zip(found, torch.autograd.grad(want, exact, dout.double()), strict=True):
        assert_sums_close(got, true, M * D, largest(true))
    assert " pass" in ll.backend_for(q, k, v, mask=mask, sink=sink).reason


def test_dropout_in_passes_can_be_differentiated_twice() -> None:
    q, k = operands(13, torch.float64)
    v = torch.randn(B, HKV, M, WIDTH).double()
    results = []
    for dense in (False, True):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        torch.manual_seed(7)
        mask = ll.Causal() & (ll.Window(3) | ll.Strided(5))
        bias = ll.DenseBias(torch.arange(13.0 * M).sin().reshape(13, M).double())
        attend = dropped if dense else ll.attention
        out = (
            attend(*leaves, 0.4, 7, mask=mask, bias=bias)
            if dense
            else ll.attention(*leaves, mask=mask, bias=bias, dropout=0.4)
        )
        first = torch.autograd.grad((out**2).sum(), leaves, create_graph=True)
        results.append([*first, *torch.autograd.grad(sum((x**2).sum() for x in first), leaves)])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("mask", MASKS, ids=repr)
@pytest.mark.parametrize(("N", "which"), [(97, "full table"), (53, "full slopes by_key"), (1, "table")])
def test_tensors_and_tables_are_read_where_they_lie(mask: Mask, N: int, which: str) -> None:
    q, k = operands(N, torch.float64)
    tensors = {"q": q, "k": k, "v": torch.randn(B, HKV, M, WIDTH).double(), **learned(N, which)}
    dout = torch.randn(B, H, N, WIDTH).double()
    results = []
    for attend in (ll.attention, reference.attention):
        leaves = {name: x.clone().requires_grad_() for name, x in tensors.items()}
        q, k, v = (leaves.pop(name) for name in "qkv")
        options = {"mask": mask, **options_of(leaves)}
        out = attend(q, k, v, **options)
        results.append([out, *torch.autograd.grad(out, [q, k, v, *leaves.values()], dout)])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)
    assert " pass" in ll.backend_for(q, k, v, **options).reason


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("mask", [MASKS[4], MASKS[8]], ids=repr)
def test_the_same_on_every_instruction_set(mask: Mask) -> None:
    test_gradients_of_statistics_equal_those_of_the_dense_matrix(mask, 53, "slopes by_key full sink")
    test_dropout_removes_the_same_weights_in_passes(mask, 53, torch.float32)
    test_tensors_and_tables_are_read_where_they_lie(mask, 97, "full table")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_strided_tensor_of_another_type_as_bias(dtype: torch.dtype) -> None:
    q, k = operands(M, torch.float32)
    v = torch.randn(B, HKV, M, WIDTH)
    tensor = torch.randn(M, H, M).to(dtype).permute(1, 2, 0)  # keys lie far apart
    options = {"mask": ll.Causal() & (ll.Window(2) | ll.Strided(6)), "bias": ll.DenseBias(tensor)}
    exact = {**options, "bias": ll.DenseBias(tensor.double())}
    want = reference.attention(q.double(), k.double(), v.double(), **exact)
    assert_sums_close(ll.attention(q, k, v, **options), want, M, largest(v))
    A = reference.steps(q.double(), k.double(), **exact).weights
    assert_sums_close(ll.weights(q, k, **options).entropy(), torch.special.entr(A).sum(-1), M)


def test_slopes_of_a_narrower_type_lose_nothing() -> None:
    """Slopes in float32 and logits in float64: in a pass with every seventh key, slopes are seven times as steep."""
    q, k, v = (torch.randn(1, 2, 29, 3, dtype=torch.float64, generator=generator(n)) for n in range(3))
    options: dict[str, Any] = {"mask": ll.Strided(7), "bias": ll.ALiBi(torch.tensor([0.241, 0.7]))}
    for x in (slice(None), slice(-1, None)):
        got, want = ll.attention(q[:, :, x], k, v, **options), reference.attention(q[:, :, x], k, v, **options)
        torch.testing.assert_close(got, want, atol=1e-14, rtol=0)


@pytest.mark.parametrize("mask", MASKS, ids=repr)
@pytest.mark.parametrize("N", [97, 53])
def test_pictures(mask: Mask, N: int) -> None:
    q, k = operands(N, torch.float32)
    A = reference.steps(q.double(), k.double(), mask=mask).weights
    W, dense = ll.weights(q, k, mask=mask), ll.Weights.from_dense(A)
    part = {"queries": slice(11, 47), "keys": slice(5, 90)}
    without_global = {"queries": slice(18, 40), "keys": slice(0, M)} if N == M else part
    every = [{"rows": 5, "cols": 120}, {"rows": 60, "cols": 7, **part}, {"cell": 9}, {"cell": 11, **without_global}]
    for asked in every:
        for reduce in ("mean", "max"):
            assert_sums_close(W.pool(reduce=reduce, **asked), dense.pool(reduce=reduce, **asked), M)


def differentiate(A: ll.Weights, **asked: Any) -> None:
    """Differentiate statistics of weights."""
    seen = A.observe(**asked)
    sum(getattr(seen, name).sum() for name in asked).backward()


@pytest.mark.parametrize(
    "mask", [ll.Strided(5), ll.Causal() & (ll.Window(3) | ll.Strided(5)), ll.Window(2) | ll.Global(GLOBAL)], ids=repr
)
@pytest.mark.parametrize(
    "ask",
    [
        lambda q, k, v, **o: ll.weights(q, k, **o).pool(5, 7),
        lambda q, k, v, **o: ll.weights(q, k, **o).observe(distance=True, profile=9, max=True),
        lambda q, k, v, **o: ll.weights(q[:, :, 31:], k, **o).observe(distance=True, profile=9),
        lambda q, k, v, **o: differentiate(ll.weights(q.requires_grad_(), k, **o), **EVERY),
        lambda q, k, v, **o: differentiate(ll.weights(q.requires_grad_(), k, **o), mass=ll.Strided(10), max=True),
        lambda q, k, v, **o: ll.attention(q.requires_grad_(), k, v, dropout=0.1, **o).sum().backward(),
        lambda q, k, v, **o: ll.attention(q, k, v, bias=ll.DenseBias(torch.randn(M, M)), **o),
        lambda q, k, v, **o: ll.attention(q[:, :, 31:], k, v, bias=ll.ALiBi(H), **o),
        lambda q, k, v, **o: ll.weights(q, k, **o).cover(0.7),
    ],
)
def test_the_kernels_never_get_the_spans_of_the_mask(
    mask: Mask, ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that gets no more than a few spans for each query is a kernel that costs what the mask allows."""
    counts = count_spans(monkeypatch)
    q, k = operands(M, torch.float32)
    ask(q, k, torch.randn(B, HKV, M, WIDTH), mask=mask)
    assert counts
    assert max(counts) <= 4


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
@pytest.mark.parametrize(
    "case",
    ["pool", "cover", "profile", "distance", "gradient of entropy", "gradient of pool", "dropout, with gradient"],
)
def test_memory_does_not_grow_with_the_allowed_pairs(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than a byte for each allowed pair; a span has eight."""
    benchmarks = str(Path(__file__).parents[1] / "benchmarks")
    monkeypatch.syspath_prepend(benchmarks)
    monkeypatch.setenv("PYTHONPATH", benchmarks)  # for the process that measures memory
    compute = importlib.import_module("sparse_statistics").compute
    n = 16384
    pairs = n * n // 16  # and those of the window
    for mask in (ll.Causal() & (ll.Window(3) | ll.Strided(8)), ll.Window(3) | ll.Global(range(5, n, 67))):
        (peak,) = peak_bytes(compute, (n,), 1, 16, mask=mask, case=case)
        assert peak < pairs, f"{peak / 2**20:.1f} MiB for {pairs / 2**20:.1f} Mi pairs"


@pytest.mark.parametrize("name", ["entropy", "received", "max"])
def test_lengths_that_change_before_the_backward_pass_change_nothing(name: str) -> None:
    q, k = (torch.randn(2, 3, 17, 7, dtype=torch.float64, requires_grad=True) for _ in range(2))
    seen, lengths = torch.tensor([11, 17]), torch.tensor([11, 17])

    def statistic(lengths: Tensor) -> Tensor:
        found: Tensor = getattr(ll.weights(q, k, mask=ll.Strided(3) & ll.Padding(lengths)), name)()
        return found.square().sum()

    expected = torch.autograd.grad(statistic(seen), (q, k))
    total = statistic(lengths)
    lengths.sub_(6)
    for a, b in zip(torch.autograd.grad(total, (q, k)), expected, strict=True):
        torch.testing.assert_close(a, b)
