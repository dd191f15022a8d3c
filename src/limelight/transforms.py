"""Whether tensors stand for something else."""

from __future__ import annotations

import torch


def transformed() -> bool:
    """Whether the values of tensors are unknown: under torch.compile, torch.func or a dispatch mode."""
    return bool(
        torch.compiler.is_dynamo_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
    )
