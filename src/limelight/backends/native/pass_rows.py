"""Rows in the order of a pass, moved and merged in one walk over their memory, where torch would take several."""

from __future__ import annotations

import torch
from torch import Tensor

from limelight.backends.native.extension import kernels
from limelight.backends.native.memory import readable


def take_rows(x: Tensor, places: Tensor) -> Tensor:
    """Return the rows ``places`` of ``x (B, H, N, width)``."""
    x, places = readable("x", x, warn=False), places.contiguous()
    B, H, _, width = x.shape
    out = x.new_empty(B, H, len(places), width)
    if out.numel():
        kernels.take_rows(x, places, out, torch.get_num_threads())
    return out


def merge_rows(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor, places: Tensor | None) -> None:
    """Join the softmax of some rows over other keys to that of all rows, in place.

    ``out (B, H, N, width)`` and ``lse (B, H, N)`` are those of all rows, the others those of the rows ``places``; all
    are of one type, float32 or float64.
    """
    assert out.dtype is lse.dtype is other.dtype is other_lse.dtype
    assert out.stride(3) == other.stride(3) == 1
    assert lse.is_contiguous()
    other_lse, places = other_lse.contiguous(), places if places is None else places.contiguous()
    if other.numel() or other_lse.numel():
        kernels.merge_rows(out, lse, other, other_lse, places, torch.get_num_threads())
