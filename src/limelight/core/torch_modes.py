"""Detects tracing and tensor subclasses: calls in which the values of tensors are not at hand."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

_functorch_active = torch._C._are_functorch_transforms_active
_dispatch_modes = torch._C._len_torch_dispatch_stack
_jit_tracing = torch._C._is_tracing
autocast_enabled = torch._C._is_any_autocast_enabled
is_dynamo_compiling = torch.compiler.is_dynamo_compiling
_plain_dispatch = Tensor.__torch_dispatch__


def is_traced() -> bool:
    """Return True under torch.compile, torch.func, a dispatch mode or a trace, where values are unknown."""
    return bool(is_dynamo_compiling() or _functorch_active() or _dispatch_modes() or _jit_tracing())


def has_subclass(*tensors: Tensor) -> bool:
    """Return True if a tensor is of a subclass that computes in its own way, such as a fake or distributed tensor."""
    return any(x.__class__ is not Tensor and type(x).__torch_dispatch__ is not _plain_dispatch for x in tensors)


def in_forward_mode() -> bool:
    """Return True inside torch.autograd.forward_ad.dual_level, where a tensor may carry a tangent."""
    return forward_ad._current_level >= 0


def is_eager() -> bool:
    """Return True for ordinary eager execution: no tracing, no forward-mode tangents, no autocast."""
    return not (is_traced() or in_forward_mode() or autocast_enabled())
