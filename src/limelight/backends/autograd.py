"""The kernels as operators of PyTorch, with what autograd, ``torch.compile`` and ``torch.func`` need.

``limelight::attention`` gives the output and the normalisers, ``limelight::attention_backward`` their gradients. A
gradient that is itself to be differentiated is computed in blocks of plain torch instead. Statistics of the weights add
their gradients to those of attention where both are differentiated at once (shared.py, statistic_autograd.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from limelight.backends import blocks, native
from limelight.backends.gradients import Normalisers, Wanted
from limelight.backends.shared import SharedBackward
from limelight.core.problem import LoweredSpec, Problem, Sizes, compute_dtype, problem_from_lowered
from limelight.core.torch_modes import has_subclass, is_traced

_SPEC = (
    "Tensor? spans, Tensor? mask, Tensor? slopes, Tensor? offsets, Tensor? bias, Tensor? sink, Tensor temperature, "
    "float scale, float softcap, float dropout, Tensor? seed, Tensor? queries, Tensor? keys, int[]? whole"
)
_LEARNED = Wanted._fields  # the fields of a lowered specification to which a gradient may flow
_NOTHING_ELSE = Wanted(False, False, False, False, False)
PLACES = [LoweredSpec._fields.index(name) for name in _LEARNED]

_library = torch.library.Library("limelight", "FRAGMENT")
_library.define(f"attention(Tensor q, Tensor k, Tensor v, {_SPEC}) -> (Tensor, Tensor, Tensor)")
_library.define(
    "attention_backward(Tensor dout, Tensor dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
    f"Tensor scaled, {_SPEC}, bool[] wanted) -> Tensor[]"
)


def attention(q: Tensor, k: Tensor, v: Tensor, lowered: LoweredSpec) -> tuple[Tensor, Tensor]:
    """Compute the output and the log-sum-exp, differentiably."""
    out, normalisers, _ = attention_with_normalisers(q, k, v, lowered)
    return out, normalisers.lse


def attention_output(p: Problem, v: Tensor) -> Tensor:
    """Compute the output alone, differentiably, with less around the kernels where only q, k and v are learned."""
    if p.temperature.__class__ is float and p.is_plain and _is_eager(p.q, p.k, v):
        out: Tensor = _apply_plain_attention(p, p.q, p.k, v)
        return out
    return attention(p.q, p.k, v, p.lower())[0]


def _is_eager(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return True for ordinary tensors outside of tracing and torch.func."""
    plain = q.__class__ is k.__class__ is v.__class__ is Tensor
    return not is_traced() and (plain or not has_subclass(q, k, v))


def attention_with_normalisers(
    q: Tensor, k: Tensor, v: Tensor, lowered: LoweredSpec
) -> tuple[Tensor, Normalisers, SharedBackward | None]:
    """Compute the output and the normalisers, differentiably, and the backward pass that statistics can share."""
    apply: Any
    if torch.compiler.is_compiling() or torch._C._is_tracing() or has_subclass(q, k, v):
        apply = torch.ops.limelight.attention
    elif is_traced():
        apply = _FunctionalAttention.apply
    else:
        apply = _EagerAttention.apply
        learned = [getattr(lowered, name) for name in _LEARNED]
        shared = SharedBackward([isinstance(x, Tensor) and x.requires_grad for x in (q, k, *learned)])
        out, lse, scaled = apply(shared, lowered, q, k, v, *learned)
        if out.grad_fn is not None:
            shared.join(out.grad_fn)
        return out, Normalisers(lse, scaled), shared
    out, lse, scaled = apply(q, k, v, *_with_tensors(lowered))
    return out, Normalisers(lse, scaled), None


def _with_tensors(lowered: LoweredSpec) -> LoweredSpec:
    """Make the temperature a tensor, as the operators take it."""
    if isinstance(lowered.temperature, Tensor):
        return lowered
    return lowered._replace(temperature=torch.tensor(lowered.temperature, dtype=torch.float64))


class _PlainAttention(torch.autograd.Function):
    """The output of a call whose only tensors are q, k and v, with as little around the kernels as autograd allows."""

    @staticmethod
    def forward(ctx: Any, p: Problem, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Run the kernels and keep what their derivative needs."""
        mask, scaled = p.lowered_mask(), Normalisers.empty_scaled(p.sizes, p.compute_dtype)
        out = native.plain_attention(p, v, mask, scaled)
        ctx.save_for_backward(q, k, v, out, None if mask is None else mask.dense)  # which must not change until then
        # Neither given nor returned: autograd need not watch over them.
        ctx.sizes, ctx.scaling, ctx.mask, ctx.scaled = p.sizes, p.scaling, mask, scaled
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        """Run the kernels of the gradient, or plain torch where it is differentiated once more."""
        q, k, v, out, _ = ctx.saved_tensors
        if _is_differentiated(dout):
            lowered = LoweredSpec.plain(ctx.mask, ctx.scaling)
            _, normalisers = native.forward_with_normalisers(q, k, v, lowered, ctx.sizes)
            return None, *_differentiate(dout, None, q, k, v, out, normalisers, lowered, _NOTHING_ELSE)
        return None, *native.plain_backward(dout, q, k, v, out, ctx.scaled, ctx.sizes, ctx.scaling, ctx.mask)


# The base's own method: Function.apply looks for torch.func once more, which _is_eager has ruled out.
_apply_plain_attention: Any = super(torch.autograd.Function, _PlainAttention).apply


class _EagerAttention(torch.autograd.Function):
    """Attention with its normalisers, outside of tracing, in which statistics can share the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        shared: SharedBackward,
        lowered: LoweredSpec,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *learned: Tensor | float | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run the kernels and keep what their derivative needs."""
        out, (lse, scaled) = native.forward_with_normalisers(q, k, v, lowered, Sizes.of(q, k))
        ctx.set_materialize_grads(False)
        kept = (x if isinstance(x, Tensor) else None for x in learned)
        ctx.save_for_backward(q, k, v, out, lse, scaled, lowered.mask, *kept)
        ctx.shared, ctx.lowered = shared, lowered
        ctx.mark_non_differentiable(scaled)
        return out, lse, scaled

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None, _: Any) -> tuple[Any, ...]:  # type: ignore[override]
        """Run the kernels of the gradient, or plain torch where it is differentiated once more."""
        terms = ctx.shared.take()
        wanted = Wanted(*ctx.needs_input_grad[5:])
        if dout is None and dlse is None and not terms:
            return None, None, None, None, None, *(None for _ in wanted)
        q, k, v, out, lse, scaled, _, *learned = ctx.saved_tensors
        normalisers = Normalisers(lse, scaled)
        current = {name: x for name, x in zip(_LEARNED, learned, strict=True) if x is not None}
        lowered: LoweredSpec = ctx.lowered._replace(**current)
        if not _is_differentiated(dout):
            found = native.backward(dout, dlse, q, k, v, out, normalisers, lowered, wanted, terms)
            return None, None, *found
        dout = torch.zeros_like(out) if dout is None else dout
        dq, dk, dv, *rest = _differentiate(dout, dlse, q, k, v, out, normalisers, lowered, wanted)
        others = iter(rest)
        gradients = [dq, dk, dv, *(next(others) if wants else None for wants in wanted)]
        if terms:
            gradients = add_gradients(
                gradients, native.backward(None, None, q, k, None, None, normalisers, lowered, wanted, terms)
            )
        return None, None, *gradients


def _is_differentiated(dout: Tensor | None) -> bool:
    """Return True if a gradient that is computed now may be differentiated itself."""
    return torch.is_grad_enabled() or is_traced() or (dout is not None and has_subclass(dout))


def add_gradients(some: Sequence[Tensor | None], others: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Add gradients, each of which may be None."""
    return [x if y is None else y if x is None else x + y for x, y in zip(some, others, strict=True)]


def _forward(q: Tensor, k: Tensor, v: Tensor, *spec: Any) -> tuple[Tensor, Tensor, Tensor]:
    out, normalisers = native.forward_with_normalisers(q, k, v, LoweredSpec(*spec), Sizes.of(q, k))
    return out, *normalisers


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *spec: Any) -> tuple[Tensor, Tensor, Tensor]:
    lse = q.new_empty(q.shape[:3], dtype=compute_dtype(q))
    return native.empty_output(q, v), lse, lse.new_empty((2, *lse.shape))


def _backward(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    scaled: Tensor,
    *rest: Any,
) -> list[Tensor]:
    *spec, wanted = rest
    found = native.backward(dout, dlse, q, k, v, out, Normalisers(lse, scaled), LoweredSpec(*spec), Wanted(*wanted))
    return [x for x in found if x is not None]


def _fake_backward(
    dout: Tensor,
    dlse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    scaled: Tensor,
    *rest: Any,
) -> list[Tensor]:
    *spec, wanted = rest
    learned = [spec[i] for i, wants in zip(PLACES, wanted, strict=True) if wants]
    return [*(native.zeros_like(x, x.dtype) for x in (q, k, v)), *(x.new_empty(x.shape) for x in learned)]


def _differentiate(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    normalisers: Normalisers,
    lowered: LoweredSpec,
    wanted: Wanted,
) -> Sequence[Tensor]:
    """Gradients of q, k, v and what else is wanted, which can be differentiated themselves."""
    compiled = torch.compiler.is_compiling() or has_subclass(dout, q, k, v)
    apply: Any = torch.ops.limelight.attention_backward if compiled else _Gradient.apply
    dlse = torch.zeros_like(normalisers.lse) if dlse is None else dlse
    found: Sequence[Tensor] = apply(dout, dlse, q, k, v, out, *normalisers, *_with_tensors(lowered), list(wanted))
    return found


def save(ctx: Any, inputs: tuple[Any, ...], output: Any = ()) -> None:
    """Keep the inputs of an operator for its gradient, and the outputs that this needs."""
    ctx.places = [i for i, x in enumerate(inputs) if isinstance(x, Tensor)]
    ctx.others = [None if isinstance(x, Tensor) else x for x in inputs]
    ctx.save_for_backward(*(inputs[i] for i in ctx.places), *output)


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    save(ctx, inputs)


def saved(ctx: Any) -> tuple[list[Any], list[Tensor]]:
    """The inputs, and the outputs that were saved with them."""
    inputs = list(ctx.others)
    tensors = list(ctx.saved_tensors)
    for i in ctx.places:
        inputs[i] = tensors.pop(0)
    return inputs, tensors


def _operator_gradient(ctx: Any, dout: Tensor | None, dlse: Tensor | None, _: Any) -> tuple[Any, ...]:
    (q, k, v, *spec), (out, lse, scaled) = saved(ctx)
    dout = torch.zeros_like(out) if dout is None else dout
    wanted = Wanted(*(spec[i] is not None and ctx.needs_input_grad[3 + i] for i in PLACES))
    dq, dk, dv, *learned = _differentiate(
        dout, dlse, q, k, v, out, Normalisers(lse, scaled), LoweredSpec(*spec), wanted
    )
    gradients: list[Tensor | None] = [None] * len(spec)
    for i, wants in zip(PLACES, wanted, strict=True):
        gradients[i] = learned.pop(0) if wants else None
    return dq, dk, dv, *gradients


def _second_gradient(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
    """The gradient of the gradient, in blocks of plain torch, whose every step torch can differentiate."""
    (dout, dlse, q, k, v, _, _, _, *spec, wanted), _ = saved(ctx)
    places = [i for i, wants in zip(PLACES, wanted, strict=True) if wants]

    def attend(q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> tuple[Tensor, Tensor]:
        fields = list(spec)
        for i, x in zip(places, learned, strict=True):
            fields[i] = x
        lowered = LoweredSpec(*fields)
        out, lse = blocks.forward(problem_from_lowered(q, k, lowered), v, lowered)
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
    return ddout, ddlse, dq, dk, dv, None, None, None, *gradients, None


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
    setup_context = staticmethod(save)
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


_register("attention", _forward, _fake_forward, _operator_gradient, save)
_register("attention_backward", _backward, _fake_backward, _second_gradient, _save_inputs)
