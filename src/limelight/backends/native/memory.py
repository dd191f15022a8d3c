"""Tensors as the kernels read and write them: copies where needed, and memory for results."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from limelight.backends.native.extension import kernels
from limelight.core.checks import SlowPathWarning

_empty_like = torch.empty_like
_has_memory = Tensor.data_ptr  # 0 for a tensor without values


def readable(name: str, x: Tensor, *, warn: bool = True) -> Tensor:
    """Return ``x``, or a copy with a warning if it cannot be read where it lies."""
    in_place = x.stride()[3] == 1
    if in_place and _has_memory(x) and not x.is_neg():
        return x
    if warn and not in_place and x.shape[3] > 1:
        warnings.warn(
            f"the last axis of {name} {tuple(x.shape)} is not contiguous, so {name} is copied on every call; "
            "call .contiguous() once instead",
            SlowPathWarning,
            stacklevel=5,
        )
    if x._is_zerotensor():
        x = x.clone()
    if x.numel() and not _has_memory(x):
        raise TypeError(f"{name} {tuple(x.shape)} has no memory to read from (a {type(x).__name__} without values)")
    return x.resolve_neg().contiguous() if x.is_neg() or x.stride(3) != 1 else x


def is_plain(x: Tensor) -> bool:
    """Return True for an ordinary tensor in the CPU's memory."""
    ordinary = x.__class__ in (Tensor, torch.nn.Parameter) and x.is_cpu and x.layout is torch.strided
    return ordinary and not x.is_neg() and bool(_has_memory(x))


def empty_output(q: Tensor, v: Tensor) -> Tensor:
    """Memory for the output, laid out as ``q`` is, or at least with the heads inside the rows where ``q`` has them."""
    if q.dtype is v.dtype and v.shape[3] == q.shape[3]:
        out = _empty_like(q)
        if out.stride(3) == 1:  # not so for a transposed view, or one that overlaps itself
            return out
        q = q.contiguous()
    B, H, N, _ = q.shape
    if q.stride(1) < q.stride(2):
        return torch.empty((B, N, H, v.shape[3]), dtype=v.dtype, device=v.device).transpose(1, 2)
    return torch.empty((B, H, N, v.shape[3]), dtype=v.dtype, device=v.device)


def zeros_like(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Zeros with the memory layout of ``x``, unless that overlaps itself."""
    zeros = torch.zeros_like(x) if x.dtype is dtype else torch.zeros_like(x, dtype=dtype)
    return zeros if zeros.stride()[3] == 1 else torch.zeros(x.shape, dtype=dtype)


def read_once(threads: int, *tensors: Tensor) -> None:
    """Read contiguous tensors once, in order, as fast as the machine can; for measurements."""
    for x in tensors:
        assert x.is_contiguous()
        kernels.read_once(threads, x)
