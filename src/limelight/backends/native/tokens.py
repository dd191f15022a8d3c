"""The steps of a model between two attentions, for a few tokens: linear layers, norms and rotations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from limelight.backends.native.extension import TYPES, built, kernels
from limelight.backends.native.memory import empty_output, is_plain
from limelight.core.torch_modes import is_eager

_threads = torch.get_num_threads
_grad_enabled = torch.is_grad_enabled

# Rows of x up to which the kernels compute; with more, torch's matrix product is as fast. It is so earlier where the
# processor multiplies bfloat16 by itself.
_FEW_ROWS = dict.fromkeys(TYPES, 8)
_capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
if _capabilities.get("avx512_bf16"):
    _FEW_ROWS[torch.bfloat16] = 4


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x weightᵀ + bias``; for a few rows of ``x`` the kernels read the weight at the machine's full speed.

    For more rows, and where a gradient may be wanted, it is torch's own.
    """
    return linears(x, ((weight, bias),))[0]


def linears(x: Tensor, layers: Sequence[tuple[Tensor, Tensor | None]]) -> list[Tensor]:
    """``x weightᵀ + bias`` for up to three layers ``(weight, bias)``, in one call where the kernels compute it."""
    found = _linears_of_few_rows(x, layers)
    return [torch.nn.functional.linear(x, weight, bias) for weight, bias in layers] if found is None else found


def _linears_of_few_rows(x: Tensor, layers: Sequence[tuple[Tensor, Tensor | None]]) -> list[Tensor] | None:
    """Return the outputs of linear layers, or None where torch has to compute them."""
    shape, dtype = x.shape, x.dtype
    D = shape[-1]
    rows = x.numel() // D if D else 0
    if rows > _FEW_ROWS.get(dtype, 0) or not _computes_tokens(x):
        return None
    grad = _grad_enabled()
    for weight, bias in layers:
        if weight.dtype is not dtype or weight.shape[-1] != D or weight.stride(1) != 1 or not is_plain(weight):
            return None
        if grad and weight.requires_grad:
            return None
        if bias is None:
            continue
        if bias.dtype is not dtype or bias.shape != weight.shape[:1] or not is_plain(bias):
            return None
        if grad and bias.requires_grad:
            return None
    x = x.contiguous()
    biases = [None if bias is None else bias.contiguous() for _, bias in layers]
    outs = [x.new_empty((*shape[:-1], weight.shape[0])) for weight, _ in layers]
    parts = [(weight, bias, out) for (weight, _), bias, out in zip(layers, biases, outs, strict=True)]
    kernels.linear(x, parts, _threads())
    return outs


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor | None:
    """Return ``x / √(mean(x²) + eps) ∘ weight``, or None where torch has to compute it."""
    if not _computes_tokens(x) or not (weight is None or (_computes_tokens(weight) and weight.dtype is x.dtype)):
        return None
    x, weight = x.contiguous(), None if weight is None else weight.contiguous()
    out = torch.empty_like(x)
    kernels.rms_norm(x, weight, out, eps, _threads())
    return out


def rotate(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, width: int, interleaved: bool
) -> tuple[Tensor, Tensor] | None:
    """Return q and k ``(B, H, N, D)`` with pairs of features rotated, or None where torch has to compute it.

    ``cos`` and ``sin`` are ``(N, width / 2)`` or ``(B, 1, N, width / 2)``.
    """
    tensors = (q, k, cos, sin)
    if not all(_computes_tokens(x) and x.dtype is q.dtype and x.stride(-1) == 1 for x in tensors):
        return None
    B, _, N, D = q.shape
    if k.shape != (B, k.shape[1], N, D):
        return None
    cos, sin = cos.contiguous(), sin.contiguous()
    outs = empty_output(q, q), empty_output(k, k)
    kernels.rotate(
        [(q, outs[0]), (k, outs[1])],
        cos,
        sin,
        angle_batch=0 if cos.ndim == 2 else cos.stride(0),
        width=width,
        interleaved=interleaved,
        threads=_threads(),
    )
    return outs


def _computes_tokens(x: Tensor) -> bool:
    """Return True where the kernels may read a tensor and no gradient can be wanted."""
    usable = x.dtype in TYPES and x.numel() > 0 and not (_grad_enabled() and x.requires_grad)
    return usable and built and is_eager() and is_plain(x)


def move_to_large_pages(tensors: Iterable[Tensor]) -> None:
    """Move tensors that are read again and again, such as a model's weights, to large pages, where the system can."""
    for x in tensors:
        if is_plain(x) and x.is_contiguous():
            kernels.move_to_large_pages(x)
