"""Where attention is computed: ``native`` (the kernels) or ``portable`` (plain torch in blocks)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from limelight.backends import native, ops, portable
from limelight.dropout import new_seed
from limelight.problem import Problem


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
    if p.on_cpu:
        return _NATIVE
    return Backend("portable", f"the tensors are on {p.q.device}, the kernels run on the CPU")


def run(
    p: Problem, v: Tensor, backend: str | None = None, lse: bool = False, dropout: float = 0.0
) -> tuple[Tensor, Tensor | None]:
    """The output ``(B, H, N, Dv)``, and the log-sum-exp ``(B, H, N)`` if asked for."""
    if backend is None:
        backend = "native" if p.on_cpu else "portable"
    elif backend == "native" and not p.on_cpu:
        raise ValueError(f"backend='native' cannot compute this: {choose(p).reason}; use backend='portable'")
    elif backend not in ("native", "portable"):
        raise ValueError(f"backend = {backend!r}; there are 'native' and 'portable'")
    terms = p.lower(dropout, new_seed()) if dropout else p.lower()
    if backend == "portable":
        return portable.forward(p, v, terms)
    if _transformed() or (torch.is_grad_enabled() and (v.requires_grad or p.requires_grad)):
        return ops.attention(p.q, p.k, v, terms)
    return native.forward(p.q, p.k, v, terms, lse)


def _transformed() -> bool:
    """Whether the tensors may stand for something else: under torch.compile, torch.func or a dispatch mode."""
    return bool(
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
    )
