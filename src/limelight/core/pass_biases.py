"""Biases of a pass, in which queries and keys have an order of their own (masks/passes.py).

The kernels read a bias by distance and a tensor where they lie, by the places of queries and keys (``AtPlaces``). ALiBi
needs no table where distances are in proportion: its slopes become as many times as steep.
"""

from __future__ import annotations

import functools
import operator

import torch
from torch import Tensor

from limelight.core.biases import ALiBi, AtPlaces, Bias, DenseBias, Offsets
from limelight.core.masks.passes import Pass


def carry(bias: Bias, x: Pass, N: int, M: int, dtype: torch.dtype) -> Bias:
    """Return the bias of the queries and keys of a pass."""
    if x.places is None:
        return bias
    slopes, offsets, dense = bias.lower(N, M, dtype)
    parts: list[Bias] = []
    if slopes is not None and x.step is not None:
        parts.append(ALiBi(x.step * slopes.to(dtype)))
    elif slopes is not None:
        table = _by_distance(slopes.to(dtype), N, M)
        offsets = table if offsets is None else offsets + table
    whole: list[Bias] = [Offsets(offsets)] if offsets is not None else []
    whole += [DenseBias(dense)] if dense is not None else []
    return functools.reduce(operator.add, parts + [AtPlaces(y, *x.places, N, M) for y in whole])


def _by_distance(slopes: Tensor, N: int, M: int) -> Tensor:
    """ALiBi by ``position - key``, from ``-(N - 1)`` up, ``(heads, N + M - 1)``."""
    return -slopes[:, None] * torch.arange(1 - N, M).abs()
