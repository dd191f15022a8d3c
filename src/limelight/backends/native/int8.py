"""Attention to the keys and values of an 8-bit cache, read as the bytes that they are."""

from __future__ import annotations

import torch
from torch import Tensor

from limelight.backends.int8 import Int8Rows
from limelight.backends.native.description import Operands
from limelight.backends.native.extension import kernels
from limelight.backends.native.memory import readable
from limelight.core.problem import LoweredSpec, Sizes

_forward = kernels.forward
_plain_attention = kernels.attention_int8
_threads = torch.get_num_threads
_empty_like = torch.empty_like


def plain_attention_int8(q: Tensor, k: Int8Rows, v: Int8Rows, scale: float | None) -> Tensor | None:
    """Compute the output of a call without other options; None where the kernels refuse a tensor.

    With few keys the checks of a general call take longer than the call itself; the kernels check sizes and types.
    """
    if q.is_neg() or not q.is_floating_point():
        return None
    out = _empty_like(q)  # fits most values; where it does not, the kernels refuse it
    keys, key_scale = k
    values, value_scale = v
    if not _plain_attention(q, keys, key_scale, values, value_scale, out, scale, _threads()):
        return None
    return out


def forward_int8(q: Tensor, k: Int8Rows, v: Int8Rows, lowered: LoweredSpec, sizes: Sizes) -> Tensor:
    """Compute the output, in the type of ``q``, from bytes that are read where they lie."""
    q = readable("q", q)
    out = torch.empty((sizes.B, sizes.Hq, sizes.N, v.values.shape[3]), dtype=q.dtype)
    for x in (k, v):
        assert x.values.stride(3) == 1
        assert x.scale.stride(2) == 1
    operands = Operands(lowered, q, sizes)
    problem = operands.problem(q, k.values, v.values, out)
    problem.read_int8(k.scale, v.scale)
    _forward(problem, _threads())
    return out
