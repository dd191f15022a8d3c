"""The kernels: checks what they assume of memory and hands over addresses and strides.

This is the only file that passes an address. Everything it points to is held by a local name until the
call returns, and the kernels keep nothing.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from limelight.backends import _native
from limelight.backends._native import Grid, Rows, Spans
from limelight.problem import Problem

_TYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
_NO_SPANS = Spans(0, 0, 0)
_NO_GRID = Grid(0, 0, 0, 0, 0, 0)


def copies(p: Problem, v: Tensor) -> str:
    """The names of the inputs whose last axis is not contiguous, so that they must be copied."""
    if _last_is_contiguous(p.q) and _last_is_contiguous(p.k) and _last_is_contiguous(v):
        return ""
    named = {"q": p.q, "k": p.k, "v": v}
    return " and ".join(name for name, x in named.items() if not _last_is_contiguous(x))


def _last_is_contiguous(x: Tensor) -> bool:
    return x.stride(-1) == 1 or x.shape[-1] <= 1


def _rows(x: Tensor) -> tuple[Rows, Tensor]:
    """A description of ``x`` for the kernels, and the tensor that must outlive it."""
    if not _last_is_contiguous(x) or x.is_neg():
        x = x.resolve_neg().contiguous()
    batch, head, row, _ = x.stride()
    return Rows(x.data_ptr(), _TYPES[x.dtype], batch, head, row), x


def _grid(name: str, x: Tensor, B: int, H: int) -> Grid:
    x = x[(None,) * (4 - x.ndim)]
    b, h, N, M = x.shape
    if b not in (1, B) or h not in (1, H):
        raise ValueError(f"{name}: its leading axes {(b, h)} do not fit {B} batch elements × {H} heads")
    strides = x.expand(B, H, N, M).stride()
    return Grid(x.data_ptr(), _TYPES.get(x.dtype, 0), *strides)


def _by_head(x: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
    return x.detach().to("cpu", dtype).expand(heads, *x.shape[1:]).contiguous()


def forward(p: Problem, v: Tensor, want_lse: bool = False) -> tuple[Tensor, Tensor | None]:
    """The output, and the log-sum-exp of each row if asked for."""
    q, k = p.q, p.k
    B, Hq, N, D = q.shape
    _, Hkv, M, Dv = v.shape
    q_rows, q = _rows(q)
    k_rows, k = _rows(k)
    v_rows, v = _rows(v)
    if q.stride(1) < q.stride(2):  # heads inside rows, as projections leave them: the output alike
        out = torch.empty((B, N, Hq, Dv), dtype=v.dtype).transpose(1, 2)
    else:
        out = torch.empty((B, Hq, N, Dv), dtype=v.dtype)
    lse = torch.empty((B, Hq, N), dtype=p.compute_dtype) if want_lse else None

    spans, mask, held_spans = _NO_SPANS, _NO_GRID, None
    if p.mask is not None:
        held_spans, dense = p.mask.lower(N, M)
        if held_spans is not None:
            spans = _spans(p, held_spans, B, N)
        if dense is not None:
            dense = dense.to(q.device)
            mask = _grid("mask", dense, B, Hq)

    bias, slopes, offsets, sink = _NO_GRID, None, None, None
    if p.bias is not None:
        slopes, offsets, added = p.bias.lower(N, M)
        if slopes is not None:
            slopes = _by_head(slopes, Hq, p.compute_dtype)
        if offsets is not None:
            offsets = _by_head(offsets, Hq, p.compute_dtype)
        if added is not None:
            added = added.detach().resolve_neg().to(q.device)
            if added.dtype not in _TYPES:
                added = added.to(p.compute_dtype)
            bias = _grid("bias", added, B, Hq)
    if p.sink is not None:
        sink = _by_head(p.sink, Hq, p.compute_dtype)

    if out.numel() == 0 and not want_lse:
        return out, None
    if M == 0 or B == 0 or Hq == 0 or N == 0:
        return out.zero_(), None if lse is None else lse.fill_(-torch.inf)
    _native.forward(
        (B, Hq, Hkv, N, M, D, Dv),
        q_rows,
        k_rows,
        v_rows,
        Rows(out.data_ptr(), _TYPES[out.dtype], *out.stride()[:3]),
        0 if lse is None else lse.data_ptr(),
        spans,
        mask,
        bias,
        0 if slopes is None else slopes.data_ptr(),
        0 if offsets is None else offsets.data_ptr(),
        0 if offsets is None else offsets.stride(0),
        0 if sink is None else sink.data_ptr(),
        p.scale,
        p.softcap or 0.0,
        float(p.temperature),
        torch.get_num_threads(),
    )
    return out, lse


def _spans(p: Problem, spans: np.ndarray[tuple[int, ...], np.dtype[np.int32]], B: int, N: int) -> Spans:
    batch, rows, count, _ = spans.shape
    if batch not in (1, B):
        raise ValueError(f"mask {p.mask!r} has {batch} batch elements and q has {B}")
    assert rows == N
    assert spans.dtype == np.int32
    assert spans.flags.c_contiguous
    return Spans(spans.ctypes.data, 0 if batch == 1 else N * count * 2, count)
