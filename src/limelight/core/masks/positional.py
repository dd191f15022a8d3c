"""Masks that depend on positions alone: causal, windows, and the first keys."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from limelight.core.masks.base import Lowered, Mask, positions
from limelight.core.masks.counts import as_column, as_counts, by_batch, check_whole, show_counts
from limelight.core.spans import single_spans


def _all_positions(N: int, M: int) -> Tensor:
    return torch.arange(M - N, M)[None]


@dataclass(frozen=True)
class Causal(Mask):
    """``key ≤ position of the query``: nothing of the future.

    >>> print(Causal().dense(3).int())
    tensor([[1, 0, 0],
            [1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    """

    def allows(self, i: Tensor, j: Tensor, N: int, M: int) -> Tensor:
        return j <= positions(i, N, M)

    def lower(self, N: int, M: int) -> Lowered:
        if N == 1:
            return Lowered(None, None)
        return Lowered(single_spans(0, _all_positions(N, M) + 1, N, M), None)

    def cache_key(self) -> Hashable | None:
        return Causal


@dataclass(frozen=True)
class Window(Mask):
    """``position - left ≤ key ≤ position + right``: the keys near a query, itself included.

    ``Window(256, 0)`` and ``Causal() & Window(256)`` are the same: the query's own key and the 256 before it.

    Args:
        left: the number of keys before the query's own.
        right: the number of keys after it; ``left`` unless given.

    >>> print(Window(1).dense(4).int())
    tensor([[1, 1, 0, 0],
            [1, 1, 1, 0],
            [0, 1, 1, 1],
            [0, 0, 1, 1]], dtype=torch.int32)

    """

    left: int
    right: int | None = None

    def __post_init__(self) -> None:
        left, right = check_whole("Window", "left", self.left), self.right
        if right is not None:
            object.__setattr__(self, "right", check_whole("Window", "right", right))
        if left is not self.left:  # another kind of integer
            object.__setattr__(self, "left", left)

    @property
    def _after(self) -> int:
        return self.left if self.right is None else self.right

    def _reach(self, N: int, M: int) -> tuple[int, int]:
        """Both sides, no further than the ends, which keeps the arithmetic of positions small."""
        return min(self.left, N + M), min(self._after, N + M)

    def allows(self, i: Tensor, j: Tensor, N: int, M: int) -> Tensor:
        p = positions(i, N, M)
        left, right = self._reach(N, M)
        return (j >= p - left) & (j <= p + right)

    def lower(self, N: int, M: int) -> Lowered:
        p = _all_positions(N, M)
        left, right = self._reach(N, M)
        return Lowered(single_spans(p - left, p + (right + 1), N, M), None)

    def cache_key(self) -> Hashable | None:
        return Window, self.left, self._after

    def __repr__(self) -> str:
        return f"Window({self.left})" if self.right is None else f"Window({self.left}, {self.right})"

    def _extent(self) -> tuple[int, int]:
        n = max(9, 3 * (max(self.left, self._after) + 1))
        return n, n


@dataclass(frozen=True, eq=False, repr=False)
class First(Mask):
    """``key < n``: the first ``n`` keys, such as attention sinks; ``Window(256) | First(4)`` keeps them in sight.

    Args:
        n: the number of keys: one for all batch elements, or one for each, ``(batch,)``.

    >>> print(First(1).dense(2, 3).int())
    tensor([[1, 0, 0],
            [1, 0, 0]], dtype=torch.int32)

    """

    n: int | Sequence[int] | Tensor
    _n: Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_n", as_counts(type(self).__name__, "n", self.n))

    def allows(self, i: Tensor, j: Tensor, N: int, M: int) -> Tensor:
        return (j < by_batch(self._n, j)) & (i >= 0)

    def lower(self, N: int, M: int) -> Lowered:
        return Lowered(single_spans(0, as_column(self._n), N, M), None)

    def batch_and_heads(self) -> tuple[int, int]:
        return self._n.numel(), 1

    def cache_key(self) -> Hashable | None:
        return (type(self), self.n) if isinstance(self.n, int) else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({show_counts(self._n)})"

    def _extent(self) -> tuple[int, int]:
        n = max(9, 2 * int(self._n.max()) if self._n.numel() else 9)
        return n, n


class Prefix(First):
    """``key < n or key ≤ position``: a prefix that all may see, causal after it (prefix-LM).

    Args:
        n: the length of the prefix: one for all batch elements, or one for each, ``(batch,)``.

    >>> print(Prefix(2).dense(3).int())
    tensor([[1, 1, 0],
            [1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)

    """

    def allows(self, i: Tensor, j: Tensor, N: int, M: int) -> Tensor:
        return super().allows(i, j, N, M) | (j <= positions(i, N, M))

    def lower(self, N: int, M: int) -> Lowered:
        return Lowered(single_spans(0, torch.maximum(_all_positions(N, M) + 1, as_column(self._n)), N, M), None)
