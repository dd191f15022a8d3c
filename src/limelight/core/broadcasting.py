"""Broadcasting of the tensors of masks and biases to a matrix of queries and keys."""

from __future__ import annotations

import math

from torch import Tensor


def fit_dense(name: str, tensor: Tensor, N: int, M: int) -> Tensor:
    """Return a tensor of two to four axes that broadcasts to ``(…, N, M)``; raise where its shape clashes."""
    rows, cols = (1, 1, *tensor.shape)[-2:]
    if (rows != 1 and rows != N) or (cols != 1 and cols != M):
        raise ValueError(
            f"{name}: shape {tuple(tensor.shape)} does not fit {N} queries × {M} keys; "
            f"its last two axes must be {N} (or 1) and {M} (or 1)"
        )
    if tensor.ndim > 4:
        return tensor.flatten(0, -4)
    return tensor if tensor.ndim >= 2 else tensor.reshape(rows, cols)


def entries_at(tensor: Tensor, i: Tensor, j: Tensor, N: int, M: int) -> Tensor:
    """Return ``tensor[..., i, j]`` of a tensor that ``fit_dense`` has passed."""
    return tensor.expand(*tensor.shape[:-2], N, M)[..., i, j]


def tensor_batch_and_heads(tensor: Tensor) -> tuple[int, int]:
    """Return the batch size and the number of heads of a tensor ``(…, N, M)``."""
    *batch, heads = (1, *tensor.shape[:-2])
    return math.prod(batch), heads


def common_batch_and_heads(who: object, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    """Return the ``(batch, heads)`` of a combination of two; raise where they clash."""
    if a == b:
        return a
    if any(x != y and x != 1 and y != 1 for x, y in zip(a, b, strict=True)):
        raise ValueError(f"{who!r}: one side has (batch, heads) = {a} and the other {b}")
    return (a[0] if b[0] == 1 else b[0]), (a[1] if b[1] == 1 else b[1])
