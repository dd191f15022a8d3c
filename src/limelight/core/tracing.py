"""Whether tensors stand for something else."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad


def transformed() -> bool:
    """Whether the values of tensors are unknown: under torch.compile, torch.func, a dispatch mode or a trace."""
    return bool(
        torch.compiler.is_dynamo_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._is_tracing()
    )


def stands_for_others(*tensors: Tensor) -> bool:
    """Whether one of them is a subclass that computes in its own way, such as a fake or a distributed tensor."""
    return any(type(x).__torch_dispatch__ is not Tensor.__torch_dispatch__ for x in tensors)


def unusual() -> bool:
    """Whether a tensor may also have a forward-mode derivative, or is to be cast first."""
    return transformed() or forward_ad._current_level >= 0 or bool(torch._C._is_any_autocast_enabled())
