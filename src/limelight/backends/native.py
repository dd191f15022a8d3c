"""The kernels: checks what they assume of memory and hands over addresses and strides.

This is the only file that passes an address. Everything it points to is held by a local name until the
call returns, and the kernels keep nothing.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import limelight.backends._native as _native
from limelight.biases import LoweredBias
from limelight.problem import Problem, SlowPathWarning

_TYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}


def forward(p: Problem, v: Tensor, want_lse: bool = False) -> tuple[Tensor, Tensor | None]:
    """The output, and the log-sum-exp of each row if asked for."""
    q, k = p.q, p.k
    q_strides, k_strides, v_strides = q.stride(), k.stride(), v.stride()
    q_data, k_data, v_data = q.data_ptr(), k.data_ptr(), v.data_ptr()
    in_place = q_strides[3] == k_strides[3] == v_strides[3] == 1 and q_data and k_data and v_data
    if not in_place or q.is_neg() or k.is_neg() or v.is_neg():
        q, k, v = _readable("q", q), _readable("k", k), _readable("v", v)
        q_strides, k_strides, v_strides = q.stride(), k.stride(), v.stride()
        q_data, k_data, v_data = q.data_ptr(), k.data_ptr(), v.data_ptr()
    B, Hq, _, N, M, D = p.sizes
    Dv = v.shape[3]
    type_of_q, type_of_v = _TYPES[q.dtype], _TYPES[v.dtype]
    out = torch.empty_like(q) if Dv == D and type_of_q == type_of_v else _output(q, v)
    out_strides = out.stride()
    if out_strides[3] != 1:  # like a view that overlaps itself
        out = _output(q.contiguous(), v)
        out_strides = out.stride()
    lse = torch.empty((B, Hq, N), dtype=p.compute_dtype) if want_lse else None

    spans = mask = slopes = offsets = bias = sink = None
    if p.mask is not None:
        spans, mask = p.mask.lower(N, M)
        mask = None if mask is None else mask.to(q.device)
    if p.bias is not None:
        slopes, offsets, bias = _on_cpu(p.bias.lower(N, M, p.compute_dtype), p)
    if p.sink is not None:
        sink = _by_head(p.sink, p)
    if not (B and Hq and N and M):
        return out.zero_(), None if lse is None else lse.fill_(-torch.inf)
    _native.forward(
        p.sizes,
        Dv,
        type_of_q,
        type_of_v,
        q_data,
        q_strides,
        k_data,
        k_strides,
        v_data,
        v_strides,
        out.data_ptr(),
        out_strides,
        0 if lse is None else lse.data_ptr(),
        None if spans is None else _spans(spans, p),
        None if mask is None else _grid(mask, p),
        None if bias is None else _grid(bias, p),
        0 if slopes is None else slopes.data_ptr(),
        0 if offsets is None else offsets.data_ptr(),
        0 if sink is None else sink.data_ptr(),
        p.scale,
        p.softcap or 0.0,
        float(p.temperature),
        torch.get_num_threads(),
    )
    return out, lse


def _readable(name: str, x: Tensor) -> Tensor:
    """``x``, or a copy if it cannot be read where it lies, which is said."""
    if x.stride(3) != 1 and x.shape[3] > 1:
        warnings.warn(
            f"the last axis of {name} {tuple(x.shape)} is not contiguous, so {name} is copied on every call; "
            "call .contiguous() once instead",
            SlowPathWarning,
            stacklevel=5,
        )
    if x._is_zerotensor():
        x = x.clone()
    return x.resolve_neg().contiguous() if x.is_neg() or x.stride(3) != 1 else x


def _output(q: Tensor, v: Tensor) -> Tensor:
    """Memory for the output, with the heads inside the rows where those of ``q`` are."""
    B, H, N, _ = q.shape
    if q.stride(1) < q.stride(2):
        return torch.empty((B, N, H, v.shape[3]), dtype=v.dtype).transpose(1, 2)
    return torch.empty((B, H, N, v.shape[3]), dtype=v.dtype)


def _by_head(x: Tensor, p: Problem) -> Tensor:
    return x.detach().resolve_neg().to(p.q.device, p.compute_dtype).expand(p.sizes[1], *x.shape[1:]).contiguous()


def _on_cpu(lowered: LoweredBias, p: Problem) -> LoweredBias:
    slopes, offsets, dense = lowered
    if slopes is not None:
        slopes = _by_head(slopes, p)
    if offsets is not None:
        assert offsets.shape[1] == p.sizes[3] + p.sizes[4] - 1
        limits = torch.finfo(p.compute_dtype)
        unit = 1.0 / (math.log(2.0) * float(p.temperature))
        scaled = _by_head(offsets, p) * unit
        offsets = torch.where(offsets.isfinite(), scaled.clamp(limits.min, limits.max), scaled)
    if dense is not None:
        dense = dense.detach().resolve_neg().to(p.q.device)
        dense = dense if dense.dtype in _TYPES else dense.to(p.compute_dtype)
    return LoweredBias(slopes, offsets, dense)


def _grid(x: Tensor, p: Problem) -> tuple[int, ...]:
    B, H, _, N, M, _ = p.sizes
    return (x.data_ptr(), _TYPES.get(x.dtype, 0), *x.expand(B, H, N, M).stride())


def _spans(spans: NDArray[np.int32], p: Problem) -> tuple[int, int, int]:
    batch, N, count, _ = spans.shape
    assert batch in (1, p.sizes[0])
    assert p.sizes[3] == N
    assert spans.dtype == np.int32
    assert spans.flags.c_contiguous
    return spans.ctypes.data, 0 if batch == 1 else N * count * 2, count
