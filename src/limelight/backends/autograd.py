"""The kernels as operators of PyTorch: what autograd, ``torch.compile`` and ``torch.func`` need to know of them.

``limelight::attention`` gives the output and the log-sum-exp, ``limelight::attention_backward`` their gradients. A
gradient that is itself to be differentiated is computed by the portable backend instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from limelight.backends import blocks, native
from limelight.backends.statistics import Question, Sent, Strongest, Top
from limelight.core.problem import Problem, Terms, compute_dtype, raised
from limelight.core.tracing import stands_for_others, transformed

_TERMS = (
    "Tensor? spans, Tensor? mask, Tensor? slopes, Tensor? offsets, Tensor? bias, Tensor? sink, Tensor temperature, "
    "float scale, float softcap, float dropout, Tensor? seed"
)
# The places among the terms of those that a gradient may be asked of.
_LEARNED = [Terms._fields.index(name) for name in ("slopes", "offsets", "bias", "sink", "temperature")]

_library = torch.library.Library("limelight", "FRAGMENT")
_library.define(f"attention(Tensor q, Tensor k, Tensor v, {_TERMS}) -> (Tensor, Tensor)")
_library.define(
    "attention_backward(Tensor dout, Tensor dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
    f"{_TERMS}, bool[] wanted) -> Tensor[]"
)


def attention(q: Tensor, k: Tensor, v: Tensor, t: Terms) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp, differentiable."""
    apply: Any = _Attention.apply
    if torch.compiler.is_compiling() or torch._C._is_tracing() or stands_for_others(q, k, v):
        apply, t = torch.ops.limelight.attention, _in_tensors(t)
    elif transformed():
        apply, t = _FuncAttention.apply, _in_tensors(t)
    result: tuple[Tensor, Tensor] = apply(q, k, v, *t)
    return result


def _in_tensors(t: Terms) -> Terms:
    """Terms as the operators take them."""
    if isinstance(t.temperature, Tensor):
        return t
    return t._replace(temperature=torch.tensor(t.temperature, dtype=torch.float64))


def _forward(q: Tensor, k: Tensor, v: Tensor, *terms: Any) -> tuple[Tensor, Tensor]:
    (B, Hq, N, D), (_, Hkv, M, _) = q.shape, k.shape
    out, lse = native.forward(q, k, v, Terms(*terms), (B, Hq, Hkv, N, M, D), want_lse=True)
    assert lse is not None
    return out, lse[0]


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *terms: Any) -> tuple[Tensor, Tensor]:
    return native.empty_output(q, v), q.new_empty(q.shape[:3], dtype=compute_dtype(q))


def _backward(
    dout: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any
) -> Any:
    *terms, wanted = rest
    return [x for x in native.backward(dout, dlse, q, k, v, out, lse, Terms(*terms), wanted) if x is not None]


def _fake_backward(
    dout: Tensor, dlse: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any
) -> Any:
    *terms, wanted = rest
    learned = [terms[i] for i, wants in zip(_LEARNED, wanted, strict=True) if wants]
    return [*(native.zeros_as(x, x.dtype) for x in (q, k, v)), *(x.new_empty(x.shape) for x in learned)]


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


def _differentiate(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Any, ...]:
    (q, k, v, *terms), (out, lse) = _saved(ctx)
    dout = torch.zeros_like(out) if dout is None else dout
    wanted = [terms[i] is not None and ctx.needs_input_grad[3 + i] for i in _LEARNED]
    apply: Any = _backward
    if torch.is_grad_enabled() or transformed() or stands_for_others(dout, q, k, v):
        compiled = torch.compiler.is_compiling() or stands_for_others(dout, q, k, v)
        apply = torch.ops.limelight.attention_backward if compiled else _Gradient.apply
        terms = list(_in_tensors(Terms(*terms)))
        dlse = torch.zeros_like(lse) if dlse is None else dlse
    dq, dk, dv, *learned = apply(dout, dlse, q, k, v, out, lse, *terms, wanted)
    grads: list[Tensor | None] = [None] * len(terms)
    for i, wants in zip(_LEARNED, wanted, strict=True):
        grads[i] = learned.pop(0) if wants else None
    return dq, dk, dv, *grads


def _differentiate_twice(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
    """The gradient's own gradient: that of the portable backend, whose every step torch can differentiate."""
    (dout, dlse, q, k, v, _, _, *terms, wanted), _ = _saved(ctx)
    places = [i for i, wants in zip(_LEARNED, wanted, strict=True) if wants]

    def attend(q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> tuple[Tensor, Tensor]:
        mine = list(terms)
        for i, x in zip(places, learned, strict=True):
            mine[i] = x
        t = Terms(*mine)
        out, lse = blocks.forward(raised(q, k, t), v, t)
        return out, torch.where(lse == -torch.inf, 0.0, lse)

    def gradient(dout: Tensor, dlse: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        grads: tuple[Tensor, ...] = torch.func.vjp(attend, *inputs)[1]((dout, dlse))
        return grads

    pull = torch.func.vjp(gradient, dout, dlse, q, k, v, *(terms[i] for i in places))[1]
    listed = isinstance(cotangents[0], (list, tuple))  # as an operator's list of results has them
    ddout, ddlse, dq, dk, dv, *learned = pull(tuple(cotangents[0] if listed else cotangents))
    grads: list[Tensor | None] = [None] * len(terms)
    for i, x in zip(places, learned, strict=True):
        grads[i] = x
    return ddout, ddlse, dq, dk, dv, None, None, *grads, None


def _one_by_one(op: Any) -> Any:
    """The rule for ``vmap`` that calls ``op`` for every element of the mapped axes."""

    def rule(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        parts = [
            x.unbind(d) if isinstance(d, int) else [x] * info.batch_size for x, d in zip(args, in_dims, strict=True)
        ]
        results = [op(*part) for part in zip(*parts, strict=True)]
        stacked = [torch.stack(x) for x in zip(*results, strict=True)]
        return (tuple(stacked), (0,) * len(stacked)) if isinstance(results[0], tuple) else (stacked, [0] * len(stacked))

    return rule


class _Attention(torch.autograd.Function):
    """The derivative for eager calls, in the form that costs least."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        """The kernels, and what their derivative needs."""
        result = _forward(*inputs)
        ctx.set_materialize_grads(False)
        _save(ctx, inputs, result)
        return result

    backward = staticmethod(_differentiate)


class _Ask(torch.autograd.Function):
    """Questions answered by the kernels, with the derivative of the portable backend."""

    @staticmethod
    def forward(ctx: Any, questions: Any, lse: Tensor | None, u: Tensor | None, *inputs: Any) -> tuple[Tensor, ...]:
        """The answers one after the other, and the log-sum-exp, which nothing is learned from here."""
        q, k, *terms = inputs
        (B, Hq, N, D), (_, Hkv, M, _) = q.shape, k.shape
        answers, lse = native.ask(q, k, Terms(*terms), (B, Hq, Hkv, N, M, D), questions, lse)
        ctx.questions = questions
        ctx.set_materialize_grads(False)
        _save(ctx, (u, *inputs))
        flat = _flat(answers)
        ctx.mark_non_differentiable(lse, *(x for x in flat if not x.is_floating_point()))
        return *flat, lse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        """Asks again, block by block, in plain torch."""
        inputs, _ = _saved(ctx)
        wanted = ctx.needs_input_grad[2:]
        twice = torch.is_grad_enabled()
        if not twice:
            inputs = [x.detach().requires_grad_() if w else x for x, w in zip(inputs, wanted, strict=True)]
        u, q, k, *terms = inputs
        questions = [Sent(u) if isinstance(x, Sent) else x for x in ctx.questions]
        with torch.enable_grad():
            answers = _flat(blocks.ask(raised(q, k, Terms(*terms)), questions, True))
        given = [(a, g.to(a.dtype)) for a, g in zip(answers, grads, strict=False) if g is not None and a.requires_grad]
        leaves = [x for x, w in zip(inputs, wanted, strict=True) if w]
        found: list[Any] = [None] * len(leaves)
        if given:
            outs, cotangents = zip(*given, strict=True)
            found = list(torch.autograd.grad(outs, leaves, cotangents, allow_unused=True, create_graph=twice))
        return None, None, *(found.pop(0) if w else None for w in wanted)


def _flat(answers: Sequence[Any]) -> list[Tensor]:
    return [x for answer in answers for x in (answer if isinstance(answer, Top) else [answer])]


def ask(p: Problem, questions: Sequence[Question], lse: Tensor | None) -> tuple[list[Any], Tensor]:
    """The answers, differentiable, and the log-sum-exp of each row."""
    u = next((x.u for x in questions if isinstance(x, Sent)), None)
    apply: Any = _Ask.apply
    *flat, lse = apply(questions, lse, u, p.q, p.k, *p.lower())
    answers = [Top(flat.pop(0), flat.pop(0)) if isinstance(x, Strongest) else flat.pop(0) for x in questions]
    return answers, lse


class _FuncAttention(torch.autograd.Function):
    """The same in the form that ``torch.func`` takes."""

    forward = staticmethod(torch.ops.limelight.attention)
    setup_context = staticmethod(_save)
    backward = staticmethod(_differentiate)
    vmap = staticmethod(lambda *args: _one_by_one(_FuncAttention.apply)(*args))


class _Gradient(torch.autograd.Function):
    """The gradient, where it is to be differentiated itself."""

    forward = staticmethod(lambda *inputs: tuple(torch.ops.limelight.attention_backward(*inputs)))
    setup_context = staticmethod(_save_inputs)
    backward = staticmethod(_differentiate_twice)
    vmap = staticmethod(lambda *args: _one_by_one(_Gradient.apply)(*args))


def _register(name: str, compute: Any, fake: Any, derivative: Any, save: Any) -> None:
    _library.impl(name, compute, "CPU")
    qualified = f"limelight::{name}"
    torch.library.register_fake(qualified, fake, lib=_library)
    torch.library.register_autograd(qualified, derivative, setup_context=save, lib=_library)
    torch.library.register_vmap(qualified, _one_by_one(getattr(torch.ops.limelight, name)), lib=_library)


_register("attention", _forward, _fake_forward, _differentiate, _save)
_register("attention_backward", _backward, _fake_backward, _differentiate_twice, _save_inputs)
