"""Whether tensors stand for something else."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad


def transformed() -> bool:
    """Whether the values of tensors are unknown: under torch.compile, torch.func or a dispatch mode."""
    return bool(
        torch.compiler.is_dynamo_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
    )


def unusual() -> bool:
    """Whether a tensor may also have a forward-mode derivative, or is to be cast first."""
    return transformed() or forward_ad._current_level >= 0 or bool(torch._C._is_any_autocast_enabled())
