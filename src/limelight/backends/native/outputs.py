"""The forward pass: the output of attention, and the normalisers of each row where they are wanted."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from limelight.backends.gradients import Normalisers
from limelight.backends.native.allowed_keys import allowed_keys
from limelight.backends.native.description import WHOLE, Operands, Place
from limelight.backends.native.extension import kernels
from limelight.backends.native.memory import empty_output, readable
from limelight.backends.running_rows import RunningRows
from limelight.core.masks import LoweredMask
from limelight.core.problem import LoweredSpec, Problem, Sizes, compute_dtype

_forward = kernels.forward
_plain_attention = kernels.attention
_quick_attention = kernels.quick_attention
_grad_enabled = torch.is_grad_enabled
_threads = torch.get_num_threads
_empty_like = torch.empty_like


def quick_attention(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor | None:
    """Compute the output of a call without other options; None where the kernels refuse a tensor, or record it.

    With few keys the checks of a general call take longer than the call itself; here the kernels check.
    """
    grad = _grad_enabled()
    if grad and (q.requires_grad or k.requires_grad):
        return None
    out = _empty_like(q)  # fits most values; where it does not, the kernels refuse it
    return out if _quick_attention(q, k, v, out, scale, grad, _threads()) else None


def attention(p: Problem, v: Tensor) -> Tensor:
    """Compute the output of a call without dropout."""
    if p.is_plain:
        return plain_attention(p, v, None if p.mask is None else p.lowered_mask())
    return _run_forward(p.q, p.k, v, p.lower(), p.sizes, None, None)


def plain_attention(p: Problem, v: Tensor, mask: LoweredMask | None, scaled: Tensor | None = None) -> Tensor:
    """Compute the output of a problem that ``is_plain``, and ``scaled`` of its normalisers where that is given.

    Most calls are such, and with few keys the Python around the kernels is most of their cost.
    """
    q, k, scaling = p.q, p.k, p.scaling
    out = _empty_like(q)  # fits most values; where it does not, the kernels refuse it
    allowed = None if mask is None else allowed_keys(mask, p.sizes)
    negated = q.is_neg() or k.is_neg() or v.is_neg()
    if negated or not _plain_attention(q, k, v, out, scaling, allowed, scaled, _threads()):
        return _run_forward(q, k, v, LoweredSpec.plain(mask, scaling), p.sizes, None, scaled)
    return out


def forward_with_normalisers(
    q: Tensor, k: Tensor, v: Tensor, lowered: LoweredSpec, sizes: Sizes, *, place: Place = WHOLE
) -> tuple[Tensor, Normalisers]:
    """Compute the output and the normalisers of each row."""
    normalisers = Normalisers.empty(sizes, compute_dtype(q))
    return _run_forward(q, k, v, lowered, sizes, *normalisers, place), normalisers


def _run_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lowered: LoweredSpec,
    sizes: Sizes,
    lse: Tensor | None,
    scaled: Tensor | None,
    place: Place = WHOLE,
) -> Tensor:
    q, k, v = readable("q", q), readable("k", k), readable("v", v)
    out = empty_output(q, v)
    if not (sizes.B and sizes.Hq and sizes.N and sizes.M):
        if lse is not None:
            lse.fill_(-torch.inf)
        if scaled is not None:
            scaled[0], scaled[1] = 0.0, 1.0
        return out.zero_()
    operands = Operands(lowered, q, sizes)
    _forward(operands.problem(q, k, v, out, lse=lse, scaled=scaled, place=place), _threads())
    return out


def accumulate(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lowered: LoweredSpec,
    sizes: Sizes,
    running: RunningRows,
    *,
    place: Place = WHOLE,
) -> None:
    """Add keys and values to the running softmax of the rows of ``q``. A sink has no part in it."""
    q, k, v = readable("q", q), readable("k", k), readable("v", v)
    m, total, o = running
    assert m.dtype is total.dtype is o.dtype is compute_dtype(q)
    assert m.stride() == total.stride()
    assert o.stride(3) == 1
    if not (sizes.B and sizes.Hq and sizes.N and sizes.M):
        return
    operands = Operands(lowered, q, sizes)
    problem = operands.problem(q, k, v, v[..., :0], place=place)
    kernels.accumulate(problem, kernels.RunningRows(o=o, m=m, l=total), _threads())


class Cut(NamedTuple):
    """The tasks of a forward pass, which depend on the problem and the instruction set, not on the threads.

    A task has up to ``rows`` rows of queries and ``keys`` keys; ``chunks`` tasks share their rows and split the keys.
    """

    tasks: int
    rows: int
    keys: int
    chunks: int


def cut(p: Problem, v: Tensor) -> Cut:
    """Return how the forward pass of a problem is cut into tasks."""
    out = empty_output(p.q, v)
    operands = Operands(p.lower(), p.q, p.sizes)  # owns the spans that the cut looks at
    return Cut(*kernels.cut(operands.problem(p.q, p.k, v, out)))
