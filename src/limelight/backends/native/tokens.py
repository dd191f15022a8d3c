"""The steps of a model between two attentions, for a few tokens: linear layers, norms and rotations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from limelight.backends.native.extension import TYPES, built, kernels
from limelight.backends.native.memory import empty_output, is_plain
from limelight.core.torch_modes import is_eager

_threads = torch.get_num_threads
_grad_enabled = torch.is_grad_enabled
_empty_like = torch.empty_like

_FEW_ROWS = 8  # of x, for which the kernels compute; with more, torch's matrix product is as fast


class Norm(NamedTuple):
    """A root-mean-square norm, ``x / √(mean(x²) + eps) ∘ weight``."""

    weight: Tensor | None
    eps: float


class Angles(NamedTuple):
    """Angles by which pairs of features are rotated.

    ``cos`` and ``sin`` are ``(N, width / 2)`` or ``(B, 1, N, width / 2)``; pairs are neighbours, or the two halves.
    """

    cos: Tensor
    sin: Tensor
    width: int
    interleaved: bool


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x weightᵀ + bias``; for a few rows of ``x`` the kernels read the weight at the machine's full speed.

    For more rows, and where a gradient may be wanted, it is torch's own.
    """
    layers = ((weight, bias),)
    found = linears_of_few_rows(x, layers)
    return torch.nn.functional.linear(x, weight, bias) if found is None else found[0]


def linears_of_few_rows(
    x: Tensor,
    layers: Sequence[tuple[Tensor, Tensor | None]],
    *,
    norm: Norm | None = None,
    residual: Tensor | None = None,
) -> list[Tensor] | None:
    """``norm(x) weightᵀ + bias + residual`` for up to three layers ``(weight, bias)``, in one call.

    None where torch has to compute it: for more rows, and where a gradient may be wanted.
    """
    shape = x.shape
    if not built or not shape or not is_eager() or x.numel() > _FEW_ROWS * shape[-1] or x.dtype not in TYPES:
        return None
    outs = [x.new_empty(*shape[:-1], weight.shape[0]) for weight, _ in layers]
    done = kernels.linear(x.contiguous(), layers, outs, norm, residual, _grad_enabled(), _threads())
    return outs if done else None


def rms_norm(x: Tensor, norm: Norm) -> Tensor | None:
    """Return ``norm(x)``, or None where torch has to compute it."""
    grad = _grad_enabled()
    if not built or not is_eager() or (grad and x.requires_grad):
        return None
    x = x.contiguous()
    out = _empty_like(x)
    return out if kernels.rms_norm(x, norm.weight, out, norm.eps, grad, _threads()) else None


def rotate(q: Tensor, k: Tensor, angles: Angles) -> tuple[Tensor, Tensor] | None:
    """Return q and k ``(B, H, N, D)`` with pairs of features rotated, or None where torch has to compute it."""
    grad = _grad_enabled()
    if not built or not is_eager() or (grad and q.requires_grad):
        return None
    outs = empty_output(q, q), empty_output(k, k)
    return outs if kernels.rotate(((q, outs[0]), (k, outs[1])), angles, grad, _threads()) else None


def attention_with_cache(
    projected: Sequence[Tensor], cache: tuple[Tensor, Tensor], length: int, angles: Angles | None, scale: float
) -> Tensor | None:
    """Append one token to a cache and attend from it to all tokens so far, in one call.

    ``projected`` are its q ``(B, 1, Hq · D)``, k and v ``(B, 1, Hkv · D)``; k is rotated by ``angles`` and written, as
    v is, to row ``length`` of the cache, keys and values ``(B, Hkv, room, D)``. Returns ``(B, 1, Hq · D)``, or None
    where a tensor is another than this, and nothing is written.
    """
    if not built or not is_eager():
        return None
    out = _empty_like(projected[0])
    done = kernels.attention_with_cache(projected, cache, length, angles, scale, out, _grad_enabled(), _threads())
    return out if done else None


def move_to_large_pages(tensors: Iterable[Tensor]) -> None:
    """Move tensors that are read again and again, such as a model's weights, to large pages, where the system can."""
    for x in tensors:
        if is_plain(x) and x.is_contiguous():
            kernels.move_to_large_pages(x)
