"""Indices of an attention matrix, resolved to the places that they choose on each axis."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Places(NamedTuple):
    """The places on each axis that an index chooses, and the shape of the result.

    In a ``paired`` index, the places on the last two axes form pairs of a query and a key.
    """

    chosen: list[list[int]]
    shape: list[int]
    paired: bool


def places(index: Any, shape: Sequence[int]) -> Places:
    """Resolve an index of a matrix ``(…, heads, queries, keys)``."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if sum(x is Ellipsis for x in parts) > 1:
        raise IndexError("A[…]: an index can have one ellipsis only")
    missing = len(shape) - sum(x is not Ellipsis for x in parts)
    if missing < 0:
        raise IndexError(f"A[…]: {len(shape) - missing} indices for {len(shape)} axes {tuple(shape)}")
    at = next((n for n, x in enumerate(parts) if x is Ellipsis), len(parts))
    parts[at : at + 1] = [slice(None)] * missing
    many = [_several(x) for x in parts[-2:]]
    if paired := all(x is not None for x in many):
        parts[-2:] = many
        if len(many[0]) != len(many[1]):
            raise IndexError(
                f"A[…]: {len(many[0])} queries and {len(many[1])} keys do not make pairs; give as many of each"
            )
    chosen, result = [], []
    for axis, (x, n) in enumerate(zip(parts, shape, strict=True)):
        if isinstance(x, slice):
            at_axis = list(range(*x.indices(n)))
            result.append(len(at_axis))
        elif paired and axis >= len(shape) - 2:
            at_axis = [check_index(y, n, axis, shape) for y in x]
        elif (whole := _whole(x)) is not None:
            at_axis = [check_index(whole, n, axis, shape)]
        else:
            raise TypeError(
                f"A[…]: integers, slices, '...' and two lists of queries and keys are indices, not {type(x).__name__}"
            )
        chosen.append(at_axis)
    return Places(chosen, [*result, len(many[0])] if paired else result, paired)


def check_index(x: int, n: int, axis: int, shape: Sequence[int]) -> int:
    """Return an index from 0 to ``n - 1``, counting from the end where it is negative."""
    if not -n <= x < n:
        raise IndexError(f"A[…]: index {x} is out of range for axis {axis} of {tuple(shape)}")
    return x % n


def _several(x: Any) -> Any:
    """Return a list or tensor of integers as a list; None for anything else."""
    if isinstance(x, Tensor):
        return x.tolist() if x.ndim == 1 and not x.is_floating_point() and x.dtype != torch.bool else None
    return list(x) if isinstance(x, (list, range)) and all(_whole(y) is not None for y in x) else None


def _whole(x: Any) -> int | None:
    """Return any kind of integer, such as NumPy's or a tensor with one, or None."""
    if isinstance(x, bool):
        return None
    try:
        return operator.index(x)
    except TypeError:
        return None
