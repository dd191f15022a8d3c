"""Pool: a picture of the matrix, or of a part of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limelight.backends import WeightsBlock, Window
from limelight.core.checks import check_count
from limelight.core.problem import Sizes
from limelight.matrix.statistics.asked import AskedStatistic

if TYPE_CHECKING:
    from limelight.matrix.base import Weights

REDUCTIONS = ("mean", "max")


def cells(n: int, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The first of ``n`` rows that each of ``count`` cells covers, and the one after its last.

    A row that lies partly in a cell counts as a whole one, so that neighbours may share a row.
    """
    c = torch.arange(count, device=device)
    return c * n // count, -(-(c + 1) * n // count)


@dataclass(frozen=True)
class Pool(AskedStatistic):
    """A picture of ``rows × cols`` cells, each the mean or the largest of the weights that it covers."""

    rows: int
    cols: int
    reduce: str = "mean"
    window: Window | None = None
    kernel = "pool"

    @classmethod
    def asked(cls, weights: Weights, value: Any) -> AskedStatistic | None:
        """Make the statistic for ``(rows, cols)`` or ``(rows, cols, reduce)``."""
        if value is None:
            return None
        if not isinstance(value, (tuple, list)) or len(value) not in (2, 3):
            raise TypeError(f"pool: give (rows, cols), not {value!r}")
        return cls.checked(*value)

    @classmethod
    def checked(cls, rows: Any, cols: Any, reduce: str = "mean", window: Window | None = None) -> Pool:
        """Check the numbers of cells and the reduction."""
        if reduce not in REDUCTIONS:
            raise ValueError(f"pool: reduce = {reduce!r}; there are 'mean' and 'max'")
        return cls(check_count("pool", "rows", rows, 1), check_count("pool", "cols", cols, 1), reduce, window)

    def of_block(self, block: WeightsBlock) -> Tensor:
        a = block.weights
        w = self.window or Window(0, block.N, 0, block.M)
        N, M = w.query_end - w.query_begin, w.key_end - w.key_begin
        if not (N and M):
            return a.new_zeros(*a.shape[:2], self.rows, self.cols)
        i, j = block.i - w.query_begin, block.j - w.key_begin
        (top, bottom), (left, right) = cells(N, self.rows, i.device), cells(M, self.cols, i.device)
        down = (top[:, None] <= i) & (i < bottom[:, None])  # (rows, i): the queries that a cell covers
        across = (left[:, None] <= j) & (j < right[:, None])  # (cols, j)
        if self.reduce == "mean":
            wide = a @ (across.to(a.dtype) / (right - left)[:, None]).mT
            return (down.to(a.dtype) / (bottom - top)[:, None]) @ wide
        columns = torch.stack([_largest(a[..., c]) for c in across], -1)
        return torch.stack([_largest(columns[:, :, r].mT) for r in down], 2)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        every = torch.stack(list(parts))
        return every.sum(0) if self.reduce == "mean" else every.amax(0)

    def outputs(self, sizes: Sizes, dtype: torch.dtype) -> list[Tensor]:
        return [torch.zeros(sizes.B, sizes.Hq, self.rows, self.cols, dtype=dtype)]

    def numbers(self) -> list[float]:
        return [self.rows, self.cols, self.reduce == "max"]


def _largest(x: Tensor) -> Tensor:
    """The maximum over the last axis, or 0, which no weight is below, where that is empty."""
    return x.amax(-1) if x.shape[-1] else x.new_zeros(x.shape[:-1])


def pool(
    self: Weights,
    rows: int,
    cols: int,
    reduce: str = "mean",
    *,
    queries: slice | range | None = None,
    keys: slice | range | None = None,
) -> Tensor:
    """A picture ``(…, heads, rows, cols)``: each cell the mean or max of the weights that it covers.

    ``queries`` and ``keys`` choose a rectangle of the matrix, at whose cost its picture comes once the rows' sums are
    known.

    >>> import torch, limelight as ll
    >>> A = ll.weights(torch.zeros(1, 6, 8), torch.zeros(1, 6, 8), mask=ll.Causal())
    >>> A.pool(2, 2)
    tensor([[[0.3333, 0.0000],
             [0.2056, 0.1278]]])
    >>> A.pool(1, 2, queries=slice(3, 6), keys=slice(0, 4))
    tensor([[[0.2056, 0.2056]]])
    """
    *_, N, M = self.shape
    window = None
    if queries is not None or keys is not None:
        window = Window(*_bounds("queries", queries, N), *_bounds("keys", keys, M))
    return self._one(Pool.checked(rows, cols, reduce, window))


def _bounds(name: str, chosen: slice | range | None, n: int) -> tuple[int, int]:
    if chosen is None:
        return 0, n
    if not isinstance(chosen, (slice, range)):
        raise TypeError(f"pool: {name} = {chosen!r}; give a slice such as slice(100, 200)")
    begin, end, step = (chosen.start, chosen.stop, chosen.step) if isinstance(chosen, range) else chosen.indices(n)
    if step != 1 or not 0 <= begin < end <= n:
        raise ValueError(f"pool: {name} = {chosen!r} must be a range of step 1 inside the {n} {name}, and not empty")
    return begin, end
