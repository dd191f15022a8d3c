"""Tiles: a matrix of any size in squares of 256 × 256 cells, at levels of detail that are powers of two.

A cell of level ``z`` covers ``2ᶻ × 2ᶻ`` weights, and tile ``(z, r, c)`` the cells ``256 r … 256 r + 255`` by
``256 c … 256 c + 255`` of that level. Level 0 is the matrix itself; at the top level all of it is one tile. Cells at
the end of an axis cover what is left there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from limelight.core.masks import Mask
from limelight.matrix.base import Weights

Floats = NDArray[np.float32]
SIDE = 256
_BASE = 1024  # cells on a side of the finest level that is kept whole


def top_level(N: int, M: int) -> int:
    """Return the level at which the whole matrix is one tile.

    >>> top_level(256, 100), top_level(257, 100), top_level(32768, 32768)
    (0, 1, 7)
    """
    return level_within(max(N, M), SIDE)


def base_level(N: int, M: int) -> int:
    """Return the finest level whose cells are computed, and kept, for the whole matrix at once."""
    return level_within(max(N, M), _BASE)


def level_within(n: int, cells: int) -> int:
    """Return the finest level at which ``n`` places are at most so many cells."""
    level = 0
    while -(-n // 2**level) > cells:
        level += 1
    return level


@dataclass(frozen=True)
class Region:
    """Queries ``top … bottom - 1`` by keys ``left … right - 1``."""

    top: int
    bottom: int
    left: int
    right: int

    @staticmethod
    def of_tile(level: int, row: int, col: int, N: int, M: int) -> Region:
        """Return the part of an ``N × M`` matrix that a tile covers."""
        span = SIDE << level
        return Region(row * span, min(N, (row + 1) * span), col * span, min(M, (col + 1) * span))


def pooled(A: Weights, part: Region, cell: int, reduce: str) -> Floats:
    """Return the mean or max of every ``cell × cell`` square of a part of one head ``(1, 1, queries, keys)``.

    Squares are counted from the upper left corner; those at the lower and right edge cover what is left.
    """
    found = A.pool(cell=cell, reduce=reduce, queries=slice(part.top, part.bottom), keys=slice(part.left, part.right))
    cells: Floats = found[0, 0].float().cpu().numpy()
    return cells


def coarser(cells: Floats, times: int, size: tuple[int, int], cell: int, reduce: str) -> Floats:
    """Pool the cells of a whole matrix of ``size`` weights, each ``cell × cell``, ``times × times`` at a time.

    Means are weighted by what a cell covers, so that the result is exact also at the edges.
    """
    if times == 1:
        return cells
    rows, cols = cells.shape
    high, wide = (_extents(n, cell) for n in size)
    down, across = np.arange(0, rows, times), np.arange(0, cols, times)
    if reduce == "max":
        largest: Floats = np.maximum.reduceat(np.maximum.reduceat(cells, down, 0), across, 1)
        return largest
    sums = cells.astype(np.float64) * high[:, None] * wide
    total = np.add.reduceat(np.add.reduceat(sums, down, 0), across, 1)
    area = np.add.reduceat(high, down)[:, None] * np.add.reduceat(wide, across)
    means: Floats = (total / area).astype(np.float32)
    return means


def _extents(n: int, cell: int) -> NDArray[np.float64]:
    """Return how many of ``n`` places each cell of an axis covers."""
    begin = np.arange(0, n, cell)
    return np.minimum(cell, n - begin).astype(np.float64)


class Allowed:
    """The places that a mask allows, for one batch element and head."""

    def __init__(self, spans: NDArray[np.int64] | None, dense: Tensor | None) -> None:
        self._spans, self._dense = spans, dense  # (N, count, 2), (N, M)

    @staticmethod
    def of(mask: Mask | None, B: int, H: int, N: int, M: int) -> list[list[Allowed]]:
        """Return what a mask allows by batch element and head; those that it treats alike share one."""
        spans, dense = (None, None) if mask is None else mask.lower(N, M)
        rows = None if spans is None else spans.cpu().numpy()
        full = None if dense is None else dense[(None,) * (4 - dense.ndim)].expand(-1, -1, N, M)
        batches = max(1 if x is None else len(x) for x in (rows, full))
        heads = 1 if full is None else full.shape[1]

        def one(b: int, h: int) -> Allowed:
            own = None if rows is None else rows[b % len(rows)]
            return Allowed(own, None if full is None else full[b % len(full), h])

        known = [[one(b, h) for h in range(heads)] for b in range(batches)]
        return [[known[b % batches][h % heads] for h in range(H)] for b in range(B)]

    def cells(self, part: Region, cell: int) -> NDArray[np.bool_]:
        """Return which ``cell × cell`` squares of a part hold at least one place that is allowed."""
        rows, cols = -(-(part.bottom - part.top) // cell), -(-(part.right - part.left) // cell)
        found: NDArray[np.bool_] = np.ones((rows, cols), bool)
        if self._dense is not None:
            crop = self._dense[part.top : part.bottom, part.left : part.right].cpu().numpy()
            down, across = np.arange(0, crop.shape[0], cell), np.arange(0, crop.shape[1], cell)
            found = np.logical_or.reduceat(np.logical_or.reduceat(crop, down, 0), across, 1)
        if self._spans is not None:
            begin, end = np.moveaxis(self._spans[part.top : part.bottom].astype(np.int64), -1, 0)
            begin, end = (x.clip(part.left, part.right) - part.left for x in (begin, end))
            row = np.broadcast_to((np.arange(len(begin)) // cell)[:, None], begin.shape)
            real = begin < end
            edges = np.zeros((rows, cols + 1), np.int32)  # +1 where a span begins, −1 after its last cell
            np.add.at(edges, (row[real], begin[real] // cell), 1)
            np.add.at(edges, (row[real], (end[real] - 1) // cell + 1), -1)
            found = found & (edges.cumsum(1)[:, :cols] > 0)
        return found
