"""Where attention is computed: ``native`` (the kernels) or ``portable`` (plain torch in blocks)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import forward_ad

from limelight.backends import autograd, blocks, native
from limelight.backends.native import Bytes as Int8Rows
from limelight.backends.native import linear
from limelight.backends.native import settle as move_to_large_pages
from limelight.core.dropout import new_seed
from limelight.core.problem import Problem, SlowPathWarning
from limelight.core.tracing import stands_for_others, transformed

__all__ = ["Backend", "Int8Rows", "choose", "linear", "move_to_large_pages", "run"]


@dataclass(frozen=True)
class Backend:
    """The backend of a call, and why it is that one."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


_NATIVE = Backend("native", "float tensors on the CPU")


def choose(p: Problem) -> Backend:
    """The backend that will compute this."""
    if not p.on_cpu:
        return Backend("portable", f"the tensors are on {p.q.device}, the kernels run on the CPU")
    if forward_ad._current_level >= 0:
        return Backend("portable", "a forward-mode derivative may be asked for, which the kernels do not compute")
    return _NATIVE


def run(
    p: Problem, v: Tensor, backend: str | None = None, lse: bool = False, dropout: float = 0.0
) -> tuple[Tensor, Tensor | None]:
    """The output ``(B, H, N, Dv)``, and the log-sum-exp ``(B, H, N)`` if asked for."""
    if backend is None:
        chosen = choose(p)
        if chosen is not _NATIVE and p.on_cpu:
            warnings.warn(f"limelight computes this in plain torch: {chosen.reason}", SlowPathWarning, stacklevel=4)
        backend = chosen.name
    elif backend == "native" and (chosen := choose(p)) is not _NATIVE:
        raise ValueError(f"backend='native' cannot compute this: {chosen.reason}; use backend='portable'")
    elif backend not in ("native", "portable"):
        raise ValueError(f"backend = {backend!r}; there are 'native' and 'portable'")
    terms = p.lower(dropout, new_seed()) if dropout else p.lower()
    if backend == "portable":
        return blocks.forward(p, v, terms)
    learns = torch.is_grad_enabled() and (v.requires_grad or p.requires_grad)
    if learns or transformed() or stands_for_others(p.q, p.k, v):
        return autograd.attention(p.q, p.k, v, terms)
    out, normalisers = native.forward(p.q, p.k, v, terms, p.sizes, lse)
    return out, None if normalisers is None else normalisers[0]
