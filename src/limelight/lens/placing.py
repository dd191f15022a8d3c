"""Masks and biases of edits, which count tokens, cut to the queries, the keys and the heads of one call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from limelight.core.biases import ALiBi, DenseBias, Offsets, Sum
from limelight.core.biases import Bias as AnyBias
from limelight.core.masks import Dense, Mask
from limelight.core.masks.base import Not, _Pair
from limelight.core.parts import take
from limelight.lens.edits import Bias, Rectangle


def place_mask(mask: Mask, first: int, N: int, M: int) -> Mask:
    """Return a mask for the queries of a call, whose tokens are numbered from ``first`` on."""
    if isinstance(mask, Rectangle):
        return Rectangle(mask.queries, mask.keys, first - (M - N))
    if isinstance(mask, Dense):
        return Dense(_place_cells(mask.tensor, first, N, M, False))
    if isinstance(mask, _Pair):
        return type(mask)(place_mask(mask.left, first, N, M), place_mask(mask.right, first, N, M))
    if isinstance(mask, Not):
        return Not(place_mask(mask.mask, first, N, M))
    return mask


def _place_bias(bias: AnyBias, first: int, N: int, M: int) -> AnyBias:
    if isinstance(bias, DenseBias):
        return DenseBias(_place_cells(bias.tensor, first, N, M, 0.0))
    if isinstance(bias, Sum):
        return _place_bias(bias.left, first, N, M) + _place_bias(bias.right, first, N, M)
    return bias


def _place_cells(x: Tensor, first: int, N: int, M: int, outside: Any) -> Tensor:
    """Return the rows from ``first`` on and the first keys of a tensor over tokens, filled where it ends."""
    if x.ndim < 2:
        return x
    rows, cols = x.shape[-2:]
    if rows > 1:
        x = x[..., first : first + N, :]
    x = x[..., :M] if cols > 1 else x
    missing = (N - x.shape[-2] if rows > 1 else 0), (M - x.shape[-1] if cols > 1 else 0)
    return torch.nn.functional.pad(x, (0, missing[1], 0, missing[0]), value=outside) if any(missing) else x


def mask_of_heads(mask: Mask, heads: list[int], N: int, M: int) -> Mask:
    """Return the part of a mask that belongs to some heads."""
    if mask.batch_and_heads()[1] in (1, len(heads)):
        return mask
    cells = mask.dense(N, M)
    return Dense(take(cells.reshape(-1, *cells.shape[-3:]), heads, 1))


def bias_of_heads(added: Bias, heads: list[int], count: int, first: int, N: int, M: int) -> AnyBias:
    """Return the part of a bias, for all heads or for those of the edit, that belongs to some heads."""
    bias, chosen = _place_bias(added.bias, first, N, M), added.chosen(count)
    made_for = bias.batch_and_heads()[1]
    if made_for == 1:
        return bias
    if made_for not in (count, len(chosen)):
        raise ValueError(f"{added}: the bias is made for {made_for} heads; give one for {len(chosen)} or for {count}")
    at = heads if made_for == count else [chosen.index(h) for h in heads]
    slopes, offsets, dense = bias.lower(N, M, bias.tensors()[0].dtype)
    parts: list[AnyBias] = [] if slopes is None else [ALiBi(take(slopes, at, 0) if len(slopes) > 1 else slopes)]
    parts += [] if offsets is None else [Offsets(take(offsets, at, 0) if len(offsets) > 1 else offsets)]
    if dense is not None:
        parts.append(DenseBias(take(dense, at, -3) if dense.ndim > 2 and dense.shape[-3] > 1 else dense))
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
