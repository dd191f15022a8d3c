"""Counts of keys, one for all batch elements or one for each, as masks take them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from limelight.core.torch_modes import is_traced


def check_whole(mask: str, name: str, value: object) -> int:
    """Return a whole number of keys, 0 or more."""
    if value.__class__ is int and value >= 0:
        return value
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{mask}: {name} must be a whole number, not {value!r}")
    if value < 0:
        raise ValueError(f"{mask}: {name} = {value} is negative; it counts keys, so give 0 or more")
    return int(value)


def as_counts(mask: str, name: str, value: object) -> Tensor:
    """Return a number, or one for each batch element, as an int64 tensor ``(batch,)`` or ``(1,)``."""
    try:
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{mask}: {name} must be whole numbers, not {value!r}") from None
    if not isinstance(value, Tensor) and not tensor.numel():
        raise ValueError(f"{mask}: {name} is empty; give one number, or one for each sequence")
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise TypeError(f"{mask}: {name} must be whole numbers, not {tensor.dtype}")
    tensor = tensor.detach().to(torch.int64).reshape(-1)
    if not is_traced() and tensor.numel() and int(tensor.min()) < 0:
        raise ValueError(f"{mask}: {name} = {int(tensor.min())} is negative; it counts keys, so give 0 or more")
    return tensor


def show_counts(counts: Tensor) -> str:
    """Write counts as one number or a list."""
    values = counts.tolist()
    return str(values[0]) if len(values) == 1 else str(values)


def by_batch(counts: Tensor, like: Tensor) -> Tensor:
    """Shape counts as ``(batch, 1, 1, 1)``, or ``()`` where there is one number for all."""
    counts = counts.to(like.device)
    return counts.reshape(()) if counts.numel() == 1 else counts.reshape(-1, 1, 1, 1)


def as_column(counts: Tensor) -> Tensor:
    """Shape counts as ``(batch, 1)`` on the CPU, where spans are made."""
    return counts.cpu().reshape(-1, 1)
