"""What an index means, before anything is computed for it."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any


def places(index: Any, shape: Sequence[int]) -> tuple[list[list[int]], list[int]]:
    """The places on each axis that an index means, and the shape of what it gives."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if sum(x is Ellipsis for x in parts) > 1:
        raise IndexError("A[…]: an index can have one ellipsis only")
    missing = len(shape) - sum(x is not Ellipsis for x in parts)
    if missing < 0:
        raise IndexError(f"A[…]: {len(shape) - missing} indices for {len(shape)} axes {tuple(shape)}")
    at = next((n for n, x in enumerate(parts) if x is Ellipsis), len(parts))
    parts[at : at + 1] = [slice(None)] * missing
    chosen, result = [], []
    for axis, (x, n) in enumerate(zip(parts, shape, strict=True)):
        if isinstance(x, slice):
            at_axis = list(range(*x.indices(n)))
            result.append(len(at_axis))
        elif (x := _whole(x)) is not None:
            if not -n <= x < n:
                raise IndexError(f"A[…]: index {x} is out of range for axis {axis} of {tuple(shape)}")
            at_axis = [x % n]
        else:
            raise TypeError(f"A[…]: integers, slices and '...' are indices, not {type(parts[axis]).__name__}")
        chosen.append(at_axis)
    return chosen, result


def _whole(x: Any) -> int | None:
    """Any kind of integer, such as NumPy's or a tensor with one."""
    if isinstance(x, bool):
        return None
    try:
        return operator.index(x)
    except TypeError:
        return None
