"""Builds each statistic from rectangles of the matrix.

A rectangle is a run of queries times a run of keys. Statistics of rows accumulate in the kernels' running records, or
are plain sums where the normalisers of whole rows are known. Sums over queries, one for each key, are sent back to the
process that holds the key. Pictures of the whole matrix are summed over all processes at the end.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from limelight.backends import Crop, Statistic
from limelight.core.masks import Dense, Mask, Spans
from limelight.matrix.statistics.distance import Distance
from limelight.matrix.statistics.entropy import Entropy
from limelight.matrix.statistics.mass import Mass
from limelight.matrix.statistics.max import Max
from limelight.matrix.statistics.pool import PartOfPicture, Pool
from limelight.matrix.statistics.profile import Profile
from limelight.matrix.statistics.received import Received
from limelight.matrix.statistics.similarity import Similarity, unscaled_products
from limelight.matrix.statistics.top import TopK
from limelight.matrix.statistics.transposed import TransposedMatmul
from limelight.parallel.group import Processes
from limelight.parallel.layouts import Run
from limelight.parallel.shards import Shards, Subproblem, cut_mask


class RowPart:
    """A statistic of rows that is a sum over keys, with the normalisers of whole rows."""

    def __init__(self, statistic: Any, shards: Shards) -> None:
        self.statistic = statistic
        self.total = torch.zeros(shards.q.shape[:3], dtype=shards.problem.compute_dtype)

    def part(self, where: Subproblem, rows: slice) -> Statistic | None:
        """The statistic to compute in a rectangle."""
        found: Statistic = self.statistic
        return found

    def add(self, rows: slice, outputs: list[Tensor]) -> None:
        """Add the kernel's output for a rectangle."""
        self.total[:, :, rows] += outputs[0]


class MaskPart:
    """The mask of a statistic of rows, of which each rectangle takes its part."""

    def __init__(self, mask: Mask, shards: Shards) -> None:
        self._whole = mask.lower(shards.N, shards.M)

    def of(self, where: Subproblem) -> Mask:
        """The part of the mask in a rectangle."""
        found = cut_mask(self._whole, where.queries, where.keys)
        if found is None:
            return Spans(torch.zeros(1, where.queries.length, 1, 2, dtype=torch.int32))
        spans, dense = found
        if spans is None and dense is None:
            spans = torch.tensor([0, where.keys.length], dtype=torch.int32).expand(1, where.queries.length, 1, 2)
        masks: list[Mask] = [] if spans is None else [Spans(spans.contiguous())]
        masks += [] if dense is None else [Dense(dense)]
        return masks[0] if len(masks) == 1 else masks[0] & masks[1]


class KeyPart:
    """The sum of a statistic of keys; each block's goes back to the process that holds it."""

    def __init__(self, statistic: Any, shards: Shards) -> None:
        self.statistic, self._shards = statistic, shards
        operand = statistic.operand
        self.width = 1 if operand is None else operand.shape[3]

    def part(self, where: Subproblem, rows: slice) -> Statistic | None:
        """The statistic to compute in a rectangle."""
        operand = self.statistic.operand
        found: Statistic = self.statistic if operand is None else self.statistic.with_operand(operand[:, :, rows])
        return found

    def shape(self, run: Run) -> list[int]:
        """The shape of the sums of some keys."""
        B, H, _, _ = self._shards.q.shape
        return [B, H, run.length, self.width]

    def result(self, own: Tensor) -> Tensor:
        """Return the result, from the sums of the own keys."""
        return own[..., 0] if self.statistic.operand is None else own


class WholePart:
    """Sums of a statistic of the whole matrix, which are added up over all processes."""

    def __init__(self, statistic: Any, shards: Shards) -> None:
        self.statistic, self._shards = statistic, shards
        self.total = self._zeros()

    def _zeros(self) -> Tensor:
        p = self._shards.problem
        found: Tensor = self.statistic.outputs(p.sizes, p.compute_dtype)[0]
        return found

    def part(self, where: Subproblem, rows: slice) -> Statistic | None:
        """The statistic to compute in a rectangle, or None where there is nothing."""
        found: Statistic = self.statistic
        return found

    def add(self, where: Subproblem, outputs: list[Tensor]) -> None:
        """Add the kernel's output for a rectangle."""
        self.total += outputs[0]

    def result(self, processes: Processes) -> Any:
        """Add up the processes and make the result."""
        return self.statistic.result([processes.sum(self.total)], self._shards.problem.sizes)


class ProfilePart(WholePart):
    """Sums by distance, of which each rectangle has some."""

    def _zeros(self) -> Tensor:
        B, H, _, _ = self._shards.q.shape
        return torch.zeros(B, H, 2 * self.statistic.radius + 1, dtype=self._shards.problem.compute_dtype)

    def add(self, where: Subproblem, outputs: list[Tensor]) -> None:
        (sums,), radius = outputs, self.statistic.radius
        d = torch.arange(-radius, radius + 1)
        at = where.queries.length - 1 - where.place.shift - d
        exists = (at >= 0) & (at < sums.shape[2])
        self.total += torch.where(exists, sums[..., torch.where(exists, at, 0)], 0.0)

    def result(self, processes: Processes) -> Any:
        N, M = self._shards.N, self._shards.M
        return processes.sum(self.total) / self.statistic.counts(N, M, self.total.device)


class PoolPart(WholePart):
    """A picture, to which each rectangle adds the cells that it covers."""

    def part(self, where: Subproblem, rows: slice) -> Statistic | None:
        whole = self.statistic.crop or Crop(0, self._shards.N, 0, self._shards.M)
        top, bottom = max(whole.query_begin, where.queries.begin), min(whole.query_end, where.queries.end)
        left, right = max(whole.key_begin, where.keys.begin), min(whole.key_end, where.keys.end)
        if top >= bottom or left >= right:
            return None
        q, k = where.queries.begin, where.keys.begin
        return PartOfPicture(
            self.statistic.rows,
            self.statistic.cols,
            self.statistic.reduce,
            Crop(top - q, bottom - q, left - k, right - k),
            first_query=top - whole.query_begin,
            queries=whole.query_end - whole.query_begin,
            first_key=left - whole.key_begin,
            keys=whole.key_end - whole.key_begin,
        )

    def add(self, where: Subproblem, outputs: list[Tensor]) -> None:
        self.total = (
            torch.maximum(self.total, outputs[0]) if self.statistic.reduce == "max" else self.total + outputs[0]
        )

    def result(self, processes: Processes) -> Any:
        return processes.max(self.total) if self.statistic.reduce == "max" else processes.sum(self.total)


class SimilarityPart(WholePart):
    """Products of every two heads."""

    def _zeros(self) -> Tensor:
        return super()._zeros().double()

    def add(self, where: Subproblem, outputs: list[Tensor]) -> None:
        self.total += unscaled_products(*outputs)

    def result(self, processes: Processes) -> Any:
        return super().result(processes).to(self._shards.problem.compute_dtype)


ROWS = (Entropy, Mass, Distance, Max, TopK)
KEYS: dict[type, type[KeyPart]] = {Received: KeyPart, TransposedMatmul: KeyPart}
WHOLE: dict[type, type[WholePart]] = {Profile: ProfilePart, Pool: PoolPart, Similarity: SimilarityPart}
