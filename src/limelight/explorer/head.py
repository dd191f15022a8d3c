"""One head of one batch element: tiles, thumbnails, strips and single weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from limelight.explorer.memory import Memory
from limelight.explorer.tiles import SIDE, Allowed, Floats, Region, base_level, coarser, level_within, pooled
from limelight.matrix.base import Weights
from limelight.matrix.lazy import LazyWeights

SMALL = 2**22  # a pass over so many weights takes no noticeable time
_REACH = 64  # tokens to either side that the profile by distance shows
_LISTED = 8  # strongest keys of a query, and queries of a key


@dataclass(frozen=True)
class Head:
    """One head of one batch element, with the answers to the page's questions about it."""

    A: Weights  # (1, 1, N, M)
    allowed: Allowed
    name: tuple[int, int, int]  # call, batch, head
    memory: Memory

    @property
    def size(self) -> tuple[int, int]:
        """Queries and keys."""
        return self.A.shape[-2], self.A.shape[-1]

    def is_ready(self, level: int, reduce: str) -> bool:
        """Return whether a tile of this level needs no pass over a large matrix."""
        N, M = self.size
        if N * M <= SMALL:
            return True
        if level < base_level(N, M):
            return not isinstance(self.A, LazyWeights) or self.A._known() is not None
        return (*self.name, "survey" if reduce == "mean" else reduce) in self.memory

    def tile(self, level: int, row: int, col: int, reduce: str) -> Floats:
        """Return the cells of a tile; −1 where nothing in a cell is allowed."""
        part = Region.of_tile(level, row, col, *self.size)
        if level < base_level(*self.size):
            return self._cells(part, level, reduce)
        top, left = part.top >> level, part.left >> level
        return self.level(level, reduce)[top : top + SIDE, left : left + SIDE]

    def level(self, level: int, reduce: str) -> Floats:
        """Return all cells of a coarse level; −1 where nothing in a cell is allowed."""
        base = base_level(*self.size)
        whole = Region(0, self.size[0], 0, self.size[1])
        cells: Floats
        if reduce == "mean":
            cells = self._survey()["cells"]
        else:
            cells = self.memory.get((*self.name, reduce), lambda: self._cells(whole, base, reduce))
        if level == base:
            return cells
        found = coarser(cells.clip(min=0), 1 << (level - base), self.size, 1 << base, reduce)
        found[~self.allowed.cells(whole, 1 << level)] = -1
        return found

    def _cells(self, part: Region, level: int, reduce: str) -> Floats:
        with torch.no_grad():
            found = pooled(self.A, part, 1 << level, reduce)
        found[~self.allowed.cells(part, 1 << level)] = -1
        return found

    def thumbnail(self, cells: int) -> Floats:
        """Return the means of the finest level that has at most so many cells on a side, 1024 at most."""
        level = max(base_level(*self.size), level_within(max(self.size), cells))
        found: Floats = self.memory.get((*self.name, "thumbnail", cells), lambda: self.level(level, "mean").copy())
        return found

    def strips(self) -> dict[str, Floats]:
        """Return each row's entropy, each key's received attention and the mean weight by distance."""
        return {name: x for name, x in self._survey().items() if name != "cells"}

    def _survey(self) -> dict[str, Floats]:
        """Return the cells of the base level and the strips, from one pass over the matrix."""

        def make() -> dict[str, Floats]:
            cell = 1 << base_level(*self.size)
            with torch.no_grad():
                seen = self.A.observe(entropy=True, received=True, profile=min(_REACH, *self.size), pool=cell)
            named = {name: x[0, 0].float().cpu().numpy() for name, x in vars(seen).items()}
            cells = named.pop("pool")
            cells[~self.allowed.cells(Region(0, self.size[0], 0, self.size[1]), cell)] = -1
            return {"cells": cells, **named}

        found: dict[str, Floats] = self.memory.get((*self.name, "survey"), make)
        return found

    def row(self, query: int) -> Floats:
        """Return a query's weights; −1 where it may not attend."""
        return self._cells(Region(query, query + 1, 0, self.size[1]), 0, "mean").reshape(-1)

    def column(self, key: int) -> Floats:
        """Return the weights on a key; −1 where a query may not attend to it."""
        return self._cells(Region(0, self.size[0], key, key + 1), 0, "mean").reshape(-1)

    def cell(self, part: Region) -> dict[str, Any]:
        """Describe a cell: mean, max, and the row and column of its strongest weight."""
        crop = self._cells(part, 0, "mean")
        at = np.unravel_index(int(crop.argmax()), crop.shape)
        query, key = part.top + int(at[0]), part.left + int(at[1])
        row, column = self.row(query), self.column(key)
        weights = row[row >= 0].astype(np.float64)
        positive = weights[weights > 0]
        return {
            "query": query,
            "key": key,
            "masked": bool(crop.max() < 0),
            "weight": max(0.0, float(row[key])),
            "mean": float(crop.clip(min=0).mean(dtype=np.float64)),
            "max": max(0.0, float(crop.max())),
            "rank": int((row > row[key]).sum()) + 1,
            "visible": len(weights),
            "entropy": float(-(positive * np.log(positive)).sum()) + 0.0,
            "received": float(column.clip(min=0).sum(dtype=np.float64)),
            "seen_by": int((column >= 0).sum()),
            "looks_at": strongest(row, _LISTED),
            "attended_by": strongest(column, _LISTED),
        }


def strongest(weights: Floats, count: int) -> list[tuple[int, float]]:
    """Return the places of the largest weights, ties by the lower, without those of 0."""
    best = np.argsort(-weights, kind="stable")[:count]
    return [(int(n), float(weights[n])) for n in best if weights[n] > 0]
