"""Where attention is computed: ``native`` (the kernels) or ``portable`` (plain torch in blocks)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from limelight.backends import native, portable
from limelight.problem import Problem, SlowPathWarning


@dataclass(frozen=True)
class Backend:
    """The backend of a call, and why it is that one."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


_NATIVE = Backend("native", "float tensors on the CPU, no gradient asked for")


def choose(p: Problem, v: Tensor) -> Backend:
    """The backend that will compute this."""
    if not p.on_cpu:
        return Backend("portable", f"the tensors are on {p.q.device}, the kernels run on the CPU")
    if torch.is_grad_enabled() and (v.requires_grad or p.requires_grad):
        return Backend("portable", "a gradient is asked for, which the kernels do not compute yet")
    return _NATIVE


def run(p: Problem, v: Tensor, backend: str | None = None, lse: bool = False) -> tuple[Tensor, Tensor | None]:
    """The output ``(B, H, N, Dv)``, and the log-sum-exp ``(B, H, N)`` if asked for."""
    if backend is None:
        chosen = choose(p, v)
        if chosen is not _NATIVE and p.on_cpu:
            warnings.warn(f"limelight computes this in plain torch: {chosen.reason}", SlowPathWarning, stacklevel=4)
        backend = chosen.name
    elif backend == "native" and (chosen := choose(p, v)) is not _NATIVE:
        raise ValueError(f"backend='native' cannot compute this: {chosen.reason}; use backend='portable'")
    if backend == "native":
        return native.forward(p, v, lse)
    if backend == "portable":
        return portable.forward(p, v, lse)
    raise ValueError(f"backend = {backend!r}; there are 'native' and 'portable'")
