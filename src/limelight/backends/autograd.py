"""The kernels as operators of PyTorch, with what autograd, ``torch.compile`` and ``torch.func`` need.

``limelight::attention`` gives the output and the log-sum-exp, ``limelight::attention_backward`` their gradients. A
gradient that is itself to be differentiated is computed in blocks of plain torch instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from limelight.backends import blocks, native
from limelight.backends.native import Normalisers, Wanted
from limelight.backends.statistic import Statistic
from limelight.core.problem import LoweredSpec, Problem, Sizes, compute_dtype, raise_spec
from limelight.core.tracing import has_subclass, is_traced

_SPEC = (
    "Tensor? spans, Tensor? mask, Tensor? slopes, Tensor? offsets, Tensor? bias, Tensor? sink, Tensor temperature, "
    "float scale, float softcap, float dropout, Tensor? seed"
)
_LEARNED = Wanted._fields  # the fields of a lowered specification to which a gradient may flow
_PLACES = [LoweredSpec._fields.index(name) for name in _LEARNED]

_library = torch.library.Library("limelight", "FRAGMENT")
_library.define(f"attention(Tensor q, Tensor k, Tensor v, {_SPEC}) -> (Tensor, Tensor)")
_library.define(
    "attention_backward(Tensor dout, Tensor dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
    f"{_SPEC}, bool[] wanted) -> Tensor[]"
)


def attention(q: Tensor, k: Tensor, v: Tensor, lowered: LoweredSpec) -> tuple[Tensor, Tensor]:
    """Compute the output and the log-sum-exp, differentiably."""
    apply: Any
    if torch.compiler.is_compiling() or torch._C._is_tracing() or has_subclass(q, k, v):
        apply = torch.ops.limelight.attention
    elif is_traced():
        apply = _FunctionalAttention.apply
    else:
        apply = _EagerAttention.apply
        learned = (getattr(lowered, name) for name in _LEARNED)
        result: tuple[Tensor, Tensor] = apply(lowered, q, k, v, *learned)
        return result
    result = apply(q, k, v, *_with_tensors(lowered))
    return result


def _with_tensors(lowered: LoweredSpec) -> LoweredSpec:
    """Make the temperature a tensor, as the operators take it."""
    if isinstance(lowered.temperature, Tensor):
        return lowered
    return lowered._replace(temperature=torch.tensor(lowered.temperature, dtype=torch.float64))


class _EagerAttention(torch.autograd.Function):
    """Attention outside of tracing, with as little around the kernels as autograd allows."""

    @staticmethod
    def forward(
        ctx: Any, lowered: LoweredSpec, q: Tensor, k: Tensor, v: Tensor, *learned: Tensor | float | None
    ) -> tuple[Tensor, Tensor]:
        """Run the kernels and keep what their derivative needs."""
        (B, Hq, N, D), (_, Hkv, M, _) = q.shape, k.shape
        out, lse = native.forward_with_lse(q, k, v, lowered, Sizes(B, Hq, Hkv, N, M, D))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse, *(x if isinstance(x, Tensor) else None for x in learned))
        ctx.lowered = lowered
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Any, ...]:
        """Run the kernels of the gradient, or plain torch where it is differentiated once more."""
        q, k, v, out, lse, *learned = ctx.saved_tensors
        lowered: LoweredSpec = ctx.lowered
        if any(x is not None for x in learned):
            current = {name: x for name, x in zip(_LEARNED, learned, strict=True) if x is not None}
            lowered = lowered._replace(**current)
        dout = torch.zeros_like(out) if dout is None else dout
        wanted = Wanted(*ctx.needs_input_grad[4:])
        if not (torch.is_grad_enabled() or is_traced() or has_subclass(dout)):
            return (None, *native.backward(dout, dlse, q, k, v, out, lse, lowered, wanted))
        dq, dk, dv, *rest = _differentiate(dout, dlse, q, k, v, out, lse, lowered, wanted)
        found = iter(rest)
        return None, dq, dk, dv, *(next(found) if wants else None for wants in wanted)


def _forward(q: Tensor, k: Tensor, v: Tensor, *spec: Any) -> tuple[Tensor, Tensor]:
    (B, Hq, N, D), (_, Hkv, M, _) = q.shape, k.shape
    return native.forward_with_lse(q, k, v, LoweredSpec(*spec), Sizes(B, Hq, Hkv, N, M, D))


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *spec: Any) -> tuple[Tensor, Tensor]:
    return native.empty_output(q, v), q.new_empty(q.shape[:3], dtype=compute_dtype(q))


def _backward(
    dout: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any
) -> list[Tensor]:
    *spec, wanted = rest
    found = native.backward(dout, dlse, q, k, v, out, lse, LoweredSpec(*spec), Wanted(*wanted))
    return [x for x in found if x is not None]


def _fake_backward(
    dout: Tensor, dlse: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any
) -> list[Tensor]:
    *spec, wanted = rest
    learned = [spec[i] for i, wants in zip(_PLACES, wanted, strict=True) if wants]
    return [*(native.zeros_like(x, x.dtype) for x in (q, k, v)), *(x.new_empty(x.shape) for x in learned)]


def _differentiate(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    lowered: LoweredSpec,
    wanted: Wanted,
) -> Sequence[Tensor]:
    """Gradients of q, k, v and what else is wanted, which can be differentiated themselves."""
    compiled = torch.compiler.is_compiling() or has_subclass(dout, q, k, v)
    apply: Any = torch.ops.limelight.attention_backward if compiled else _Gradient.apply
    dlse = torch.zeros_like(lse) if dlse is None else dlse
    found: Sequence[Tensor] = apply(dout, dlse, q, k, v, out, lse, *_with_tensors(lowered), list(wanted))
    return found


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any = ()) -> None:
    ctx.places = [i for i, x in enumerate(inputs) if isinstance(x, Tensor)]
    ctx.others = [None if isinstance(x, Tensor) else x for x in inputs]
    ctx.save_for_backward(*(inputs[i] for i in ctx.places), *output)


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _save(ctx, inputs)


def _saved(ctx: Any) -> tuple[list[Any], list[Tensor]]:
    """The inputs, and the outputs that were saved with them."""
    inputs = list(ctx.others)
    tensors = list(ctx.saved_tensors)
    for i in ctx.places:
        inputs[i] = tensors.pop(0)
    return inputs, tensors


def _operator_gradient(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Any, ...]:
    (q, k, v, *spec), (out, lse) = _saved(ctx)
    dout = torch.zeros_like(out) if dout is None else dout
    wanted = Wanted(*(spec[i] is not None and ctx.needs_input_grad[3 + i] for i in _PLACES))
    dq, dk, dv, *learned = _differentiate(dout, dlse, q, k, v, out, lse, LoweredSpec(*spec), wanted)
    gradients: list[Tensor | None] = [None] * len(spec)
    for i, wants in zip(_PLACES, wanted, strict=True):
        gradients[i] = learned.pop(0) if wants else None
    return dq, dk, dv, *gradients


def _second_gradient(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
    """The gradient of the gradient, in blocks of plain torch, whose every step torch can differentiate."""
    (dout, dlse, q, k, v, _, _, *spec, wanted), _ = _saved(ctx)
    places = [i for i, wants in zip(_PLACES, wanted, strict=True) if wants]

    def attend(q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> tuple[Tensor, Tensor]:
        fields = list(spec)
        for i, x in zip(places, learned, strict=True):
            fields[i] = x
        lowered = LoweredSpec(*fields)
        out, lse = blocks.forward(raise_spec(q, k, lowered), v, lowered)
        return out, torch.where(lse == -torch.inf, 0.0, lse)

    def gradient(dout: Tensor, dlse: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = torch.func.vjp(attend, *inputs)[1]((dout, dlse))
        return found

    pull = torch.func.vjp(gradient, dout, dlse, q, k, v, *(spec[i] for i in places))[1]
    listed = isinstance(cotangents[0], (list, tuple))  # an operator's list of results
    ddout, ddlse, dq, dk, dv, *learned = pull(tuple(cotangents[0] if listed else cotangents))
    gradients: list[Tensor | None] = [None] * len(spec)
    for i, x in zip(places, learned, strict=True):
        gradients[i] = x
    return ddout, ddlse, dq, dk, dv, None, None, *gradients, None


def _one_by_one(op: Any) -> Any:
    """Make a rule for ``vmap`` that calls ``op`` for every element of the mapped axes."""

    def rule(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        parts = [
            x.unbind(d) if isinstance(d, int) else [x] * info.batch_size for x, d in zip(args, in_dims, strict=True)
        ]
        results = [op(*part) for part in zip(*parts, strict=True)]
        stacked = [torch.stack(x) for x in zip(*results, strict=True)]
        return (tuple(stacked), (0,) * len(stacked)) if isinstance(results[0], tuple) else (stacked, [0] * len(stacked))

    return rule


class _FunctionalAttention(torch.autograd.Function):
    """The same in the form that ``torch.func`` takes."""

    forward = staticmethod(torch.ops.limelight.attention)
    setup_context = staticmethod(_save)
    backward = staticmethod(_operator_gradient)
    vmap = staticmethod(lambda *args: _one_by_one(_FunctionalAttention.apply)(*args))


class _Gradient(torch.autograd.Function):
    """The gradient, where it is to be differentiated itself."""

    forward = staticmethod(lambda *inputs: tuple(torch.ops.limelight.attention_backward(*inputs)))
    setup_context = staticmethod(_save_inputs)
    backward = staticmethod(_second_gradient)
    vmap = staticmethod(lambda *args: _one_by_one(_Gradient.apply)(*args))


def _register(name: str, compute: Any, fake: Any, gradient: Any, save: Any) -> None:
    _library.impl(name, compute, "CPU")
    qualified = f"limelight::{name}"
    torch.library.register_fake(qualified, fake, lib=_library)
    torch.library.register_autograd(qualified, gradient, setup_context=save, lib=_library)
    torch.library.register_vmap(qualified, _one_by_one(getattr(torch.ops.limelight, name)), lib=_library)


_register("attention", _forward, _fake_forward, _operator_gradient, _save)
_register("attention_backward", _backward, _fake_backward, _second_gradient, _save_inputs)


def statistics(p: Problem, asked: Sequence[Statistic], known: Normalisers | None) -> tuple[list[Any], Normalisers]:
    """Compute statistics with the kernels, differentiably, and the normalisers of each row."""
    operand = next((x.operand for x in asked if x.operand is not None), None)
    apply: Any = _Statistics.apply
    *flat, lse, scaled = apply(asked, known, operand, p.q, p.k, *p.lower())
    return [statistic.unflatten(flat) for statistic in asked], Normalisers(lse, scaled)


class _Statistics(torch.autograd.Function):
    """Statistics computed by the kernels, with a derivative in blocks of plain torch."""

    @staticmethod
    def forward(
        ctx: Any, asked: Any, known: Normalisers | None, operand: Tensor | None, q: Tensor, k: Tensor, *spec: Any
    ) -> tuple[Tensor, ...]:
        """Return the results one after the other, and the normalisers, which have no gradient here."""
        (B, Hq, N, D), (_, Hkv, M, _) = q.shape, k.shape
        lowered = LoweredSpec(*spec)
        results, normalisers = native.statistics(q, k, lowered, Sizes(B, Hq, Hkv, N, M, D), asked, known)
        ctx.asked = asked
        ctx.set_materialize_grads(False)
        _save(ctx, (operand, q, k, *spec))
        flat = [x for statistic, result in zip(asked, results, strict=True) for x in statistic.flatten(result)]
        ctx.mark_non_differentiable(*normalisers, *(x for x in flat if not x.is_floating_point()))
        return *flat, *normalisers

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        """Compute the statistics again, block by block, in plain torch, and differentiate that."""
        inputs, _ = _saved(ctx)
        wanted = ctx.needs_input_grad[2:]
        twice = torch.is_grad_enabled()
        if not twice:
            inputs = [x.detach().requires_grad_() if w else x for x, w in zip(inputs, wanted, strict=True)]
        operand, q, k, *spec = inputs
        asked = [x if x.operand is None else x.with_operand(operand) for x in ctx.asked]
        with torch.enable_grad():
            results = blocks.statistics(raise_spec(q, k, LoweredSpec(*spec)), asked, True)
        flat = [x for statistic, result in zip(asked, results, strict=True) for x in statistic.flatten(result)]
        used = [(x, g.to(x.dtype)) for x, g in zip(flat, gradients, strict=False) if g is not None and x.requires_grad]
        leaves = [x for x, w in zip(inputs, wanted, strict=True) if w]
        found: list[Any] = [None] * len(leaves)
        if used:
            outs, cotangents = zip(*used, strict=True)
            found = list(torch.autograd.grad(outs, leaves, cotangents, allow_unused=True, create_graph=twice))
        return None, None, *(found.pop(0) if w else None for w in wanted)
