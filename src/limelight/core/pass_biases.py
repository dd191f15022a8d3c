"""Biases of a pass, in which queries and keys have an order of their own (masks/passes.py)."""

from __future__ import annotations

import functools
import operator

import torch
from torch import Tensor
from torch.nn.functional import pad

from limelight.core.biases import ALiBi, Bias, DenseBias, Offsets
from limelight.core.masks.passes import Pass


def can_carry(bias: Bias, x: Pass, N: int, M: int) -> bool:
    """Return True if ``carry`` makes the bias of a pass with no more numbers than the pass has queries, keys or pairs.

    A pass of some queries or of some keys, such as global ones, has a pair for every number of a tensor. In any other
    order, biases by distance need distances in proportion, and a tensor must be the same for all queries or keys.
    """
    if x.queries is None or x.keys is None:
        return True
    slopes, offsets, dense = bias.lower(N, M)
    if dense is not None and 1 not in dense.shape[-2:]:
        return False
    return x.step is not None or (slopes is None and offsets is None)


def carry(bias: Bias, x: Pass, N: int, M: int, dtype: torch.dtype) -> Bias:
    """Return the bias of the queries and keys of a pass."""
    if x.queries is None and x.keys is None:
        return bias
    if x.queries is None or x.keys is None:
        i, j = (torch.arange(n) if y is None else y for n, y in ((N, x.queries), (M, x.keys)))
        return DenseBias(bias.values(i[:, None], j[None, :], N, M, dtype))
    slopes, offsets, dense = bias.lower(N, M, dtype)
    parts: list[Bias] = []
    if slopes is not None:
        assert x.step is not None
        parts.append(ALiBi(x.step * slopes))
    if offsets is not None:
        assert x.step is not None
        parts.append(Offsets(_every(offsets, x.step)))
    if dense is not None:
        for axis, places in ((-2, x.queries), (-1, x.keys)):
            dense = dense if dense.shape[axis] == 1 else dense.index_select(axis, places)
        parts.append(DenseBias(dense))
    return functools.reduce(operator.add, parts)


def _every(offsets: Tensor, step: int) -> Tensor:
    """Offsets ``(heads, 2 N - 1)`` of distances 0, ±step, ±2 step, … in the places of 0, ±1, ±2, …; 0 at the others."""
    zero = offsets.shape[1] // 2
    reach = zero // step
    return pad(offsets[:, zero - reach * step : zero + reach * step + 1 : step], (zero - reach, zero - reach))
