"""Gradients of statistics from the kernels: against the dense reference in float64, and one pass with attention."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import limelight as ll
from conftest import EPS, assert_sums_close, assert_within, examples, generator, gradient_bounds, largest, problems
from limelight.backends import autograd
from limelight.backends.native import gradient
from limelight.core import reference
from limelight.core.masks import lower_mask
from test_gradients import in_doubles


def dense_statistics(P: Tensor, asked: dict[str, Any]) -> dict[str, Tensor]:
    """The definitions, on the dense matrix."""
    N, M = P.shape[-2:]
    away = torch.arange(M) - (torch.arange(N)[:, None] + M - N)  # key - position
    found = {
        "entropy": lambda _: torch.special.entr(P).sum(-1),
        "distance": lambda _: (P * away.abs()).sum(-1),
        "received": lambda _: P.sum(-2),
        "mass": lambda mask: (P * mask.dense(N, M)).sum(-1),
        "profile": lambda radius: torch.stack(
            [(P * (away == d)).sum((-2, -1)) / max(1, int((away == d).sum())) for d in range(-radius, radius + 1)], -1
        ),
        "pool": lambda cells: torch.nn.functional.adaptive_avg_pool2d(P, cells),
    }
    return {name: found[name](value) for name, value in asked.items()}


@st.composite
def statistics(draw: st.DrawFn, N: int, M: int) -> dict[str, Any]:
    """Draw some of the statistics, with their parameters."""
    number = st.integers(1, 40)
    masks = [ll.First(draw(number)), ll.Window(draw(number), draw(number)), ll.Causal(), ~ll.Window(3)]
    masks.append(ll.Dense(torch.rand(N, M, generator=generator(N, M)) > 0.5))
    every = {
        "entropy": True,
        "distance": True,
        "received": True,
        "mass": draw(st.sampled_from(masks)),
        "profile": draw(number),
        "pool": (draw(number), draw(number)),
    }
    names = draw(st.sets(st.sampled_from(sorted(every)), min_size=1))
    return {name: every[name] for name in sorted(names)}


def leaves_of(p: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors of a problem to which a gradient may flow."""
    found = {name: x for name, x in p.items() if isinstance(x, Tensor)}
    return found | ({f"bias {n}": x for n, x in enumerate(p["bias"].tensors())} if "bias" in p else {})


def zero_free(P: Tensor) -> Tensor:
    """Give weights of 0 no gradient, as their limit has it: autograd makes 0 · ∞ of them."""
    return torch.where(P == 0, 0.0, P)


def check(p: dict[str, Any], asked: dict[str, Any], with_values: bool) -> None:
    if "temperature" in p:
        p = {**p, "temperature": torch.tensor(p["temperature"], dtype=torch.float64)}
    r = generator(5)
    dense = {name: in_doubles(x) for name, x in p.items()}
    leaves, dense_leaves = leaves_of(p), leaves_of(dense)
    for x in (*leaves.values(), *dense_leaves.values()):
        x.requires_grad_()
    A = ll.weights(**{name: x for name, x in p.items() if name != "v"})
    y = A @ p["v"]
    seen = A.observe(**asked)
    steps = reference.steps(**dense)
    want = dense_statistics(zero_free(steps.weights), asked)
    coefficients = {name: torch.randn(x.shape, generator=r, dtype=torch.float64) for name, x in want.items()}
    dout = torch.randn(y.shape, generator=r).to(y.dtype) * with_values
    loss = sum((getattr(seen, name).double() * g).sum() for name, g in coefficients.items())
    loss = loss + (y * dout).double().sum() if with_values else loss
    assert steps.output is not None
    dense_loss = sum((want[name] * g).sum() for name, g in coefficients.items()) + (steps.output * dout).sum()
    terms, *of_leaves = torch.autograd.grad(
        dense_loss, [steps.weights, *dense_leaves.values()], retain_graph=True, allow_unused=True
    )
    terms = torch.autograd.grad(dense_loss - (steps.output * dout).sum(), steps.weights)[0]
    got = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    for x in leaves.values():
        x.requires_grad_(False)
    bounds = gradient_bounds(p, dout, torch.where(steps.weights == 0, 0.0, terms))
    for name, a, b in zip(leaves, got, of_leaves, strict=True):
        b = torch.zeros_like(leaves[name]) if b is None else b
        a = torch.zeros_like(leaves[name]) if a is None else a
        assert_within(a, b, bounds[name.split()[0]] + EPS[a.dtype] * largest(b), name)


@st.composite
def cases(draw: st.DrawFn, dtypes: tuple[torch.dtype, ...]) -> tuple[dict[str, Any], dict[str, Any], bool]:
    p = draw(problems(dtypes))
    return p, draw(statistics(p["q"].shape[2], p["k"].shape[2])), draw(st.booleans())


@settings(max_examples=examples(100))
@given(cases((torch.float32, torch.bfloat16, torch.float16, torch.float64)))
def test_gradients_equal_those_of_the_dense_matrix(case: tuple[Any, ...]) -> None:
    check(*case)


@pytest.mark.usefixtures("isa")
def test_gradients_on_every_instruction_set(isa: str) -> None:
    @settings(max_examples=examples(15))
    @given(cases((torch.float32, torch.float64)))
    def run(case: tuple[Any, ...]) -> None:
        check(*case)

    run()


EVERY = {
    "entropy": True,
    "distance": True,
    "received": True,
    "mass": ll.First(3),
    "profile": 50,
    "pool": (7, 13),
    "max": True,
}


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("mask", [None, ll.Causal(), ll.Window(9) | ll.First(2)], ids=repr)
@pytest.mark.parametrize("k", [1, 5, 151])
def test_the_strongest_weights(mask: Any, k: int) -> None:
    """The gradient goes to the keys that were chosen, with attention in one backward pass or alone."""
    q, keys, v = (torch.randn(2, h, n, 7, generator=generator(n, h)).double() for h, n in ((6, 53), (3, 151), (3, 151)))
    results = []
    for dense in (False, True):
        leaves = [x.clone().requires_grad_() for x in (q, keys, v)]
        if dense:
            steps = reference.steps(*leaves, mask=mask, softcap=3.0)
            y, largest_weight, values = steps.output, steps.weights.amax(-1), steps.weights.topk(k).values
        else:
            A = ll.weights(*leaves[:2], mask=mask, softcap=3.0)
            y, largest_weight, values = A @ leaves[2], A.max(), A.top(k).values
        assert y is not None
        alone = torch.autograd.grad(
            (values * torch.arange(values.numel()).reshape(values.shape).sin()).sum(), leaves[:2], retain_graph=True
        )
        loss = (y**2).sum() + (largest_weight**2).sum() + (values**3).sum()
        results.append([*alone, *torch.autograd.grad(loss, leaves)])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


def leaf(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=generator(seed, *shape)).requires_grad_()


def test_gradients_do_not_depend_on_threads_to_the_bit(two_threads: None) -> None:
    q, k, v = leaf(2, 4, 499, 16), leaf(2, 2, 1201, 16), leaf(2, 2, 1201, 8)
    found = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        A = ll.weights(q, k, mask=ll.Causal())
        y, seen = A @ v, A.observe(**EVERY)
        loss = y.square().sum() + sum(getattr(seen, name).square().sum() for name in EVERY)
        found.append(torch.autograd.grad(loss, (q, k, v)))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_pool_of_a_window_and_several_statistics_of_a_kind() -> None:
    """Pictures of two rectangles and two masses, each from its own call."""
    q, k = leaf(1, 2, 101, 8), leaf(1, 2, 151, 8)

    def loss(A: ll.Weights) -> Tensor:
        a = A.pool(5, 7, queries=slice(20, 90), keys=slice(33, 140))
        b = A.pool(3, 2, queries=slice(0, 31), keys=slice(149, 151))
        c = A.pool(cell=11, queries=slice(7, 60), keys=slice(5, 77))  # cells that the window cuts off
        parts = (a, b, c, A.mass(ll.First(9)), A.mass(ll.Window(4)), A.profile(3), A.profile(200))
        return sum((x * torch.arange(x.numel()).reshape(x.shape).sin()).sum() for x in parts)  # type: ignore[return-value]

    got = torch.autograd.grad(loss(ll.weights(q, k)), (q, k))
    d = [x.detach().double().requires_grad_() for x in (q, k)]
    want = torch.autograd.grad(loss(ll.Weights.from_dense(reference.steps(*d).weights)), d)
    for a, b in zip(got, want, strict=True):
        assert_sums_close(a, b, terms=4 * 151)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The number of terms of every backward pass of the kernels."""
    found: list[int] = []
    compute = autograd.native.backward

    def counted(*args: Any) -> Any:
        found.append(len(args[9]) if len(args) > 9 else 0)
        return compute(*args)

    monkeypatch.setattr(autograd.native, "backward", counted)
    return found


@pytest.fixture
def qkv() -> list[Tensor]:
    return [leaf(2, 4, 31, 8, seed=1), leaf(2, 2, 43, 8, seed=2), leaf(2, 2, 43, 8, seed=3)]


def graph(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    A = ll.weights(q, k, mask=ll.Causal())
    y = A @ v
    return y.square().sum(), A.entropy().square().sum(), A.mass(ll.First(2)).square().sum()


def apart(qkv: list[Tensor], *which: int) -> list[Tensor]:
    """The sum of gradients, each from a matrix of its own."""
    totals = [torch.zeros_like(x) for x in qkv]
    for i in which:
        for total, g in zip(totals, torch.autograd.grad(graph(*qkv)[i], qkv, allow_unused=True), strict=True):
            total += 0 if g is None else g
    return totals


def assert_same(got: list[Tensor], want: list[Tensor]) -> None:
    for a, b in zip(got, want, strict=True):
        assert_sums_close(a, b, terms=4 * 43)


def test_attention_and_its_statistics_share_one_backward_pass(qkv: list[Tensor], passes: list[int]) -> None:
    sum(graph(*qkv)).backward()  # type: ignore[union-attr]
    assert passes == [2]
    assert_same([x.grad for x in qkv], apart(qkv, 0, 1, 2))  # type: ignore[misc]


def test_retained_graphs_share_every_time(qkv: list[Tensor], passes: list[int]) -> None:
    y, h, m = graph(*qkv)
    first = torch.autograd.grad(y + h + m, qkv, retain_graph=True)
    without = torch.autograd.grad(y + m, qkv, retain_graph=True)
    second = torch.autograd.grad(y + h + m, qkv)
    assert passes == [2, 1, 2]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert_same(list(without), apart(qkv, 0, 2))


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 0, 1)])
def test_one_after_the_other_without_retaining(qkv: list[Tensor], passes: list[int], order: tuple[int, ...]) -> None:
    parts = graph(*qkv)
    for i in order:
        parts[i].backward()
    assert sorted(passes) == [0, 1, 1]
    assert_same([x.grad for x in qkv], apart(qkv, 0, 1, 2))  # type: ignore[misc]


def test_statistics_alone_give_values_no_gradient(qkv: list[Tensor], passes: list[int]) -> None:
    _, h, m = graph(*qkv)
    (h + m).backward()
    assert passes == [1, 1]
    assert qkv[2].grad is None
    with pytest.raises(RuntimeError, match="not have been used"):
        torch.autograd.grad(graph(*qkv)[1], qkv[2])


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2)])
def test_gradients_of_some_inputs(qkv: list[Tensor], wanted: tuple[int, ...]) -> None:
    leaves = [qkv[i] for i in wanted]
    got = torch.autograd.grad(sum(graph(*qkv)), leaves)  # type: ignore[arg-type]
    assert_same(list(got), [apart(qkv, 0, 1, 2)[i] for i in wanted])


def test_hooks_see_the_whole_gradient_once(qkv: list[Tensor]) -> None:
    seen: list[Tensor] = []
    inner = [x * 1.0 for x in qkv]
    inner[0].register_hook(seen.append)
    sum(graph(*inner)).backward()  # type: ignore[union-attr]
    assert_same(seen, apart(qkv, 0, 1, 2)[:1])


def test_statistics_before_the_product_are_differentiated_apart(qkv: list[Tensor], passes: list[int]) -> None:
    A = ll.weights(qkv[0], qkv[1], mask=ll.Causal())
    h = A.entropy().square().sum()
    got = torch.autograd.grad((A @ qkv[2]).square().sum() + h, qkv)
    assert sorted(passes) == [0, 1]
    assert_same(list(got), apart(qkv, 0, 1))


def test_a_product_that_is_gone_shares_nothing(qkv: list[Tensor], passes: list[int]) -> None:
    _, h, _ = graph(*qkv)
    gc.collect()
    assert_same(list(torch.autograd.grad(h, qkv[:2])), apart(qkv, 1)[:2])
    assert passes[0] == 1


def test_a_leaf_that_began_to_need_gradients_later_gets_its_own(qkv: list[Tensor], passes: list[int]) -> None:
    q, k, v = (x.detach() for x in qkv)
    A = ll.weights(q.requires_grad_(), k)
    y = (A @ v).square().sum()
    k.requires_grad_()
    h = A.entropy().square().sum()
    dq, dk = torch.autograd.grad(y + h, (q, k))
    assert passes == [1, 0]
    (want,) = torch.autograd.grad(ll.weights(q, k).entropy().square().sum(), k)
    torch.testing.assert_close(dk, want)
    assert dq.isfinite().all()


@pytest.mark.parametrize("reentrant", [False, True])
def test_under_checkpointing(qkv: list[Tensor], reentrant: bool) -> None:
    def block(*x: Tensor) -> Tensor:
        return sum(graph(*x))  # type: ignore[return-value]

    checkpoint(block, *qkv, use_reentrant=reentrant).backward()
    assert_same([x.grad for x in qkv], apart(qkv, 0, 1, 2))  # type: ignore[misc]


def test_gradients_of_gradients_with_values(qkv: list[Tensor]) -> None:
    q, k, v = (x.detach()[:1, :2, :5, :3].double().requires_grad_() for x in (qkv[0], qkv[1][:, :, :7], qkv[2]))

    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        A = ll.weights(q, k, mask=ll.Causal())
        y = A @ v
        seen = A.observe(entropy=True, received=True, pool=(2, 3))
        return y.square().sum() + seen.entropy.square().sum() + seen.received.square().sum() + seen.pool.sum()

    assert torch.autograd.gradcheck(f, (q, k, v))
    assert torch.autograd.gradgradcheck(f, (q, k, v))


def test_nothing_is_kept_alive(qkv: list[Tensor]) -> None:
    """The matrix does not hold the graph, and a failed pass leaves nothing that a later one would add."""
    A = ll.weights(qkv[0] * 1.0, qkv[1])
    y = A @ qkv[2]
    h = A.entropy()
    node = weakref.ref(y.grad_fn)

    def fail(_: Tensor) -> None:
        raise RuntimeError("on purpose")

    handle = y.register_hook(fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        (y.sum() + h.square().sum()).backward(retain_graph=True)
    handle.remove()
    got = torch.autograd.grad(y.square().sum(), qkv, retain_graph=True)
    want = torch.autograd.grad(ll.attention(*qkv).square().sum(), qkv)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    del y, h
    gc.collect()
    assert node() is None


def test_a_mask_lives_until_its_gradient_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The spans of a dense mask are made for the call: the kernels must not read them after they are freed."""
    made: list[weakref.ref[Any]] = []
    alive: list[bool] = []

    def lower(*args: Any) -> Any:
        lowered = lower_mask(*args)
        made.append(weakref.ref(lowered.spans))
        return lowered

    def run(*args: Any, **options: Any) -> None:
        alive.extend(x() is not None for x in made)
        compute(*args, **options)

    compute = gradient._run
    monkeypatch.setattr(gradient, "lower_mask", lower)
    monkeypatch.setattr(gradient, "_run", run)
    q, k = leaf(1, 1, 301, 5), leaf(1, 1, 701, 5, seed=1)
    kept = torch.rand(301, 701, generator=generator(3)) < 0.1
    kept[:, 150:] = False  # blocks without a key, for which there are spans
    ll.weights(q, k).observe(mass=ll.Dense(kept), entropy=True).mass.sum().backward()
    assert alive == [True]
