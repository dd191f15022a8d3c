"""The one place that decides how a call is computed.

Two questions are answered here. Which backend: ``native`` (the kernels) or ``portable`` (blocks of plain torch). And,
for the kernels: directly, or through autograd and the operators that ``torch.compile`` and ``torch.func`` see.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from limelight.backends import (
    autograd,
    blocks,
    native,
    no_kernels,
    pass_gradients,
    pass_statistics,
    passes,
    sdpa,
    statistic_autograd,
)
from limelight.backends.gradients import Normalisers
from limelight.backends.int8 import Int8Rows
from limelight.backends.shared import SharedBackward
from limelight.backends.statistic import Statistic
from limelight.core.checks import SlowPathWarning
from limelight.core.dropout import new_seed
from limelight.core.problem import AttentionSpec, Problem, Sizes
from limelight.core.torch_modes import (
    autocast_enabled,
    has_subclass,
    in_forward_mode,
    is_dynamo_compiling,
    is_eager,
    is_traced,
)

_grad_enabled = torch.is_grad_enabled
_new_tuple = tuple.__new__  # twice as fast as a NamedTuple's own constructor, which is a Python function


@dataclass(frozen=True)
class Backend:
    """The backend of a call, and the reason for it."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


_NATIVE = Backend("native", "float tensors on the CPU")
_NO_KERNELS = Backend("portable", "limelight was installed without its kernels")


def ordinary_sizes(q: Tensor, k: Tensor, v: Tensor) -> Sizes | None:
    """Return the sizes of tensors that are ordinary and fit each other, which the kernels see at one glance.

    None where a tensor is anything else; ``Problem`` then makes it ordinary, or says what is wrong with it.
    """
    if not native.built or is_dynamo_compiling() or autocast_enabled():
        return None
    if not (q.__class__ is k.__class__ is v.__class__ is Tensor):
        return None
    found = native.ordinary_sizes(q, k, v)
    return None if found is None else _new_tuple(Sizes, found)


def quick_attention(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor | None:
    """Compute the output of ordinary tensors that nobody has checked, without options but the scale.

    None for all other calls, and for tensors that clash; ``Problem`` then says what is wrong with them.
    """
    if not native.built or not (q.__class__ is k.__class__ is v.__class__ is Tensor):
        return None
    if not _scales_only(spec) or not is_eager() or q.dtype in sdpa.matrix_units():
        return None
    return native.quick_attention(q, k, v, spec.scale)  # type: ignore[arg-type]


def choose(p: Problem) -> Backend:
    """Choose the backend that computes a problem."""
    if not native.built:
        _warn_of_missing_kernels()
        return _NO_KERNELS
    if not p.on_cpu:
        return Backend("portable", f"the tensors are on {p.q.device}, the kernels run on the CPU")
    if in_forward_mode():
        return Backend("portable", "a forward-mode derivative may be asked for, which the kernels do not compute")
    return _NATIVE


def choose_for_attention(p: Problem, v: Tensor) -> Backend:
    """Choose what computes the output of a problem without dropout."""
    chosen = choose(p)
    reason = sdpa.reason(p, v) if chosen is _NATIVE else None
    return chosen if reason is None else Backend("sdpa", reason)


def explain_for_attention(p: Problem, v: Tensor) -> Backend:
    """Choose what computes the output of a problem without dropout; the reason says how the kernels do it."""
    chosen = choose_for_attention(p, v)
    in_passes = chosen is _NATIVE and p.mask is not None and p.mask.reorders
    return Backend("native", f"{_NATIVE.reason}, {passes.describe(p)}") if in_passes else chosen


@cache
def _warn_of_missing_kernels() -> None:
    """Warn once in a process."""
    warnings.warn(no_kernels.MESSAGE, SlowPathWarning, stacklevel=6)


def attention(p: Problem, v: Tensor, dropout: float = 0.0, backend: str | None = None) -> Tensor:
    """Compute the output ``(B, H, N, Dv)``."""
    if backend is None and not dropout:
        chosen = choose_for_attention(p, v)
        if chosen is _NATIVE:
            if p.mask is None or not p.mask.reorders:
                return autograd.attention_output(p, v) if _is_recorded(p, v) else native.attention(p, v)
        elif chosen.name == "sdpa":
            return sdpa.attention(p, v)
    return _attention_and_lse(p, v, dropout, backend)[0]


def attention_with_normalisers(p: Problem, v: Tensor) -> tuple[Tensor, Normalisers | None, SharedBackward | None]:
    """Compute the output, and the normalisers of each row where the kernels find them on the way.

    Where a gradient may be asked for, statistics of the same weights can share its backward pass.
    """
    if choose(p) is not _NATIVE or passes.passes_of(p) is not None:
        return _attention_and_lse(p, v, 0.0, None)[0], None, None
    if _is_recorded(p, v):
        return autograd.attention_with_normalisers(p.q, p.k, v, p.lower())
    return *native.forward_with_normalisers(p.q, p.k, v, p.lower(), p.sizes), None


def logsumexp(p: Problem) -> Tensor:
    """Compute the log-sum-exp of each row, ``(B, H, N)``, differentiably."""
    return _attention_and_lse(p, p.k[..., :0], 0.0, None)[1]


def attention_int8(q: Tensor, k: Int8Rows, v: Int8Rows, spec: AttentionSpec) -> Tensor:
    """Compute attention to keys and values of an 8-bit cache, which the kernels read as they are."""
    if native.built and q.__class__ is Tensor and q.is_cpu and _scales_only(spec) and is_eager():
        out = native.plain_attention_int8(q, k, v, spec.scale)  # type: ignore[arg-type]
        if out is not None:
            return out
    # The checks run on keys of the same shape that take no memory.
    shaped = q.new_zeros(1).expand(k.values.shape)
    p = Problem(q, shaped, spec)
    if choose(p) is not _NATIVE or is_traced() or 0 in p.sizes:
        p = Problem(q, k.dequantise(q.dtype), spec)
        return attention(p, p.check_values(v.dequantise(q.dtype)))
    return native.forward_int8(p.q, k, v, p.lower(), p.sizes)


def _scales_only(spec: AttentionSpec) -> bool:
    """Return True if a specification has no option but the scale, and that is a number."""
    mask, bias, scale, softcap, sink, temperature = spec
    if not (mask is None and bias is None and softcap is None and sink is None):
        return False
    return (scale is None or scale.__class__ is float) and temperature.__class__ is float and temperature == 1.0


def statistics(
    p: Problem, asked: Sequence[Statistic], known: Normalisers | None, shared: SharedBackward | None = None
) -> tuple[list[Any], Normalisers | None]:
    """Compute statistics of the weights, and the normalisers of each row where the kernels find them on the way.

    ``shared`` is the backward pass of attention with the same weights.
    """
    operands = [x.operand for x in asked if x.operand is not None]
    needs_grad = _grad_enabled() and (p.requires_grad or any(x.requires_grad for x in operands))
    if not runs_natively(p) or has_subclass(*operands):
        return blocks.statistics(p, asked, needs_grad), None
    if pass_statistics.reorders(p, asked):
        in_passes = pass_gradients.statistics if needs_grad else pass_statistics.statistics
        return in_passes(p, asked, known)
    if needs_grad:
        return statistic_autograd.statistics(p, asked, known, shared)
    return native.statistics(p.q, p.k, p.lower(), p.sizes, asked, known)


def runs_natively(p: Problem) -> bool:
    """Return True if the kernels compute the statistics of a problem."""
    return not (is_traced() or has_subclass(p.q, p.k) or 0 in p.sizes) and choose(p) is _NATIVE


def _is_recorded(p: Problem, v: Tensor) -> bool:
    """Return True if autograd, a transformation or a tensor subclass has to know of the call."""
    if _grad_enabled() and (v.requires_grad or p.requires_grad):
        return True
    plain = p.q.__class__ is p.k.__class__ is v.__class__ is Tensor
    return is_traced() or (not plain and has_subclass(p.q, p.k, v))


def _attention_and_lse(
    p: Problem, v: Tensor, dropout: float, backend: str | None, seed: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    name = _name_of_backend(p, backend)
    seed = new_seed() if dropout and seed is None else seed
    found = passes.passes_of(p) if name == "native" else None
    if found is not None:
        return passes.attention(
            p, v, found, lambda part, values: _attention_and_lse(part, values, dropout, backend, seed)
        )
    lowered = p.lower(dropout, seed) if dropout else p.lower()
    if name == "portable":
        return blocks.forward(p, v, lowered)
    if _is_recorded(p, v):
        return autograd.attention(p.q, p.k, v, lowered)
    out, normalisers = native.forward_with_normalisers(p.q, p.k, v, lowered, p.sizes)
    return out, normalisers.lse


def _name_of_backend(p: Problem, forced: str | None) -> str:
    if forced not in (None, "native", "portable"):
        raise ValueError(f"backend = {forced!r}; there are 'native' and 'portable'")
    chosen = choose(p)
    if forced == "native" and chosen is not _NATIVE:
        raise ValueError(f"backend='native' cannot compute this: {chosen.reason}; use backend='portable'")
    if forced is None and chosen not in (_NATIVE, _NO_KERNELS) and p.on_cpu:
        warnings.warn(f"limelight computes this in plain torch: {chosen.reason}", SlowPathWarning, stacklevel=5)
    return forced or chosen.name
