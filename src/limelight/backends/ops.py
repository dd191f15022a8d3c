"""The kernels as operators of PyTorch: what autograd, ``torch.compile`` and ``torch.func`` need to know of them.

``limelight::attention`` gives the output and the log-sum-exp, ``limelight::attention_backward`` their gradients. A
gradient that is itself to be differentiated is computed by the portable backend instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from limelight.backends import native, portable
from limelight.problem import Terms, compute_dtype, raised

_TERMS = (
    "Tensor? spans, Tensor? mask, Tensor? slopes, Tensor? offsets, Tensor? bias, Tensor? sink, Tensor temperature, "
    "float scale, float softcap, float dropout, Tensor? seed"
)
# The terms that a gradient may be asked of, by their place among the arguments of the forward.
_LEARNED = {name: 3 + Terms._fields.index(name) for name in ("slopes", "offsets", "bias", "sink", "temperature")}

_library = torch.library.Library("limelight", "FRAGMENT")
_library.define(f"attention(Tensor q, Tensor k, Tensor v, {_TERMS}) -> (Tensor, Tensor)")
_library.define(
    "attention_backward(Tensor dout, Tensor dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
    f"{_TERMS}, bool[] wanted) -> Tensor[]"
)


def attention(q: Tensor, k: Tensor, v: Tensor, t: Terms) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp, differentiable."""
    temperature = t.temperature
    if not isinstance(temperature, Tensor):
        temperature = torch.tensor(temperature, dtype=torch.float64)
    seed = t.seed if isinstance(t.seed, Tensor) else None
    out, lse = torch.ops.limelight.attention(q, k, v, *t._replace(temperature=temperature, seed=seed))
    return out, lse


def _terms(terms: Any) -> Terms:
    t = Terms(*terms)
    return t if t.seed is not None else t._replace(seed=0)


def _forward(q: Tensor, k: Tensor, v: Tensor, *terms: Any) -> tuple[Tensor, Tensor]:
    out, lse = native.forward(q, k, v, _terms(terms), want_lse=True)
    assert lse is not None
    return out, lse


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *terms: Any) -> tuple[Tensor, Tensor]:
    return native.fresh_output(q, v), q.new_empty(q.shape[:3], dtype=compute_dtype(q))


def _backward(dout: Tensor, dlse: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any) -> Any:
    *terms, wanted = rest
    return [x for x in native.backward(dout, dlse, q, k, v, out, lse, _terms(terms), wanted) if x is not None]


def _fake_backward(
    dout: Tensor, dlse: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any
) -> Any:
    *terms, wanted = rest
    learned = [terms[place - 3] for place, wants in zip(_LEARNED.values(), wanted, strict=True) if wants]
    return [*(native.zeros_as(x, x.dtype) for x in (q, k, v)), *(torch.empty_like(x) for x in learned)]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.tensors = [i for i, x in enumerate(inputs) if isinstance(x, Tensor)]
    ctx.others = [None if isinstance(x, Tensor) else x for x in inputs]
    ctx.save_for_backward(*(inputs[i] for i in ctx.tensors), *output)


def _differentiate(ctx: Any, dout: Tensor, dlse: Tensor) -> tuple[Any, ...]:
    *tensors, out, lse = ctx.saved_tensors
    inputs = list(ctx.others)
    for i, x in zip(ctx.tensors, tensors, strict=True):
        inputs[i] = x
    needs = ctx.needs_input_grad
    if torch.is_grad_enabled():
        return _twice_differentiable(inputs, needs, dout, dlse)
    wanted = [inputs[i] is not None and needs[i] for i in _LEARNED.values()]
    found = iter(torch.ops.limelight.attention_backward(dout, dlse, *inputs[:3], out, lse, *inputs[3:], wanted))
    grads: list[Tensor | None] = [None] * len(inputs)
    grads[:3] = [next(found), next(found), next(found)]
    for i, wants in zip(_LEARNED.values(), wanted, strict=True):
        grads[i] = next(found) if wants else None
    return tuple(grads)


def _twice_differentiable(inputs: list[Any], needs: tuple[bool, ...], dout: Tensor, dlse: Tensor) -> tuple[Any, ...]:
    """The same gradients as a function that autograd can differentiate again."""
    q, k, v, *rest = inputs
    t = _terms(rest)
    out, lse = portable.forward(raised(q, k, t), v, t)
    asked = [i for i, need in enumerate(needs) if need]
    lse = torch.where(lse == -torch.inf, 0.0, lse)
    found = torch.autograd.grad(
        (out, lse), [inputs[i] for i in asked], (dout, dlse), create_graph=True, allow_unused=True
    )
    grads: list[Tensor | None] = [None] * len(inputs)
    for i, x in zip(asked, found, strict=True):
        grads[i] = x
    return tuple(grads)


def _vmap_forward(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
    return _one_by_one(torch.ops.limelight.attention, info, in_dims, args)


def _vmap_backward(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
    return _one_by_one(torch.ops.limelight.attention_backward, info, in_dims, args)


def _one_by_one(op: Any, info: Any, in_dims: tuple[int | None, ...], args: tuple[Any, ...]) -> tuple[Any, Any]:
    """Calls ``op`` for every element of the mapped axes."""
    parts = [x if d is None else x.unbind(d) for x, d in zip(args, in_dims, strict=True)]
    results = [
        op(*(p if d is None else p[i] for p, d in zip(parts, in_dims, strict=True))) for i in range(info.batch_size)
    ]
    stacked = [torch.stack(x) for x in zip(*results, strict=True)]
    return (tuple(stacked), (0,) * len(stacked)) if isinstance(results[0], tuple) else (stacked, [0] * len(stacked))


_library.impl("attention", _forward, "CPU")
_library.impl("attention_backward", _backward, "CPU")
torch.library.register_fake("limelight::attention", _fake_forward, lib=_library)
torch.library.register_fake("limelight::attention_backward", _fake_backward, lib=_library)
torch.library.register_autograd("limelight::attention", _differentiate, setup_context=_setup_context, lib=_library)
torch.library.register_vmap("limelight::attention", _vmap_forward, lib=_library)
torch.library.register_vmap("limelight::attention_backward", _vmap_backward, lib=_library)
