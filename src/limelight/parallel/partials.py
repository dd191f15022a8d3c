"""Builds each statistic from rectangles of the matrix.

A part of a row statistic comes normalised over the keys of its rectangle, with the shares of the old and the new part
in the row's sum, or, where the normalisers of the whole rows are known, normalised over all keys (shares None).
Statistics of keys are sums that go back to the process which holds the keys; pictures of the whole are summed over all
processes at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from limelight.backends import Statistic, Window
from limelight.core.masks import Dense, Lowered, Mask, Spans
from limelight.matrix.statistics.distance import Distance
from limelight.matrix.statistics.entropy import Entropy
from limelight.matrix.statistics.mass import Mass
from limelight.matrix.statistics.max import Max
from limelight.matrix.statistics.pool import Pool
from limelight.matrix.statistics.profile import Profile
from limelight.matrix.statistics.received import Received
from limelight.matrix.statistics.similarity import Similarity, unscaled_products
from limelight.matrix.statistics.top import Top, TopK
from limelight.matrix.statistics.transposed import TransposedMatmul
from limelight.parallel.group import Processes
from limelight.parallel.layouts import Run
from limelight.parallel.shards import Rectangle, Shards, cut_mask

Share = Tensor | None


class RowPart:
    """The sum of a row statistic so far, ``(B, H, n)``; by default parts are weighted by their shares and added."""

    def __init__(self, statistic: Any, shards: Shards) -> None:
        self.statistic, self._shards = statistic, shards
        B, H, n, _ = shards.q.shape
        self.total = torch.zeros(B, H, n, dtype=shards.problem.compute_dtype, device=shards.q.device)

    def part(self, where: Rectangle, rows: slice) -> Statistic | None:
        """The statistic to compute in a rectangle, or None where there is nothing."""
        found: Statistic = self.statistic
        return found

    def add(self, rows: slice, where: Rectangle, outputs: list[Tensor], old: Share, new: Share) -> None:
        """Add what the kernel wrote for a rectangle."""
        self._add(rows, outputs[0], old, new)

    def skip(self, rows: slice, old: Share) -> None:
        """Weigh what is there, where a rectangle has nothing to add."""
        if old is not None:
            self._add(rows, torch.zeros_like(self.total[:, :, rows]), old, torch.zeros_like(old))

    def _add(self, rows: slice, x: Tensor, old: Share, new: Share) -> None:
        self.total[:, :, rows] = _weighted(self.total[:, :, rows], old) + _weighted(x, new)

    def result(self) -> Any:
        """Make the result."""
        return self.total


def _weighted(x: Tensor, share: Share) -> Tensor:
    return x if share is None else torch.where(share == 0, 0.0, x * share)


class EntropyPart(RowPart):
    """``-Σ a log a``; a part with the share s has the entropy ``s (h - log s)`` in the whole."""

    def _add(self, rows: slice, x: Tensor, old: Share, new: Share) -> None:
        def scaled(h: Tensor, share: Share) -> Tensor:
            return h if share is None else torch.where(share == 0, 0.0, share * (h - torch.log(share)))

        self.total[:, :, rows] = scaled(self.total[:, :, rows], old) + scaled(x, new)


class MaxPart(RowPart):
    """The largest weight."""

    def _add(self, rows: slice, x: Tensor, old: Share, new: Share) -> None:
        self.total[:, :, rows] = torch.maximum(_weighted(self.total[:, :, rows], old), _weighted(x, new))


class MassPart(RowPart):
    """The weight on the keys that a mask allows, of which each rectangle takes its part."""

    def __init__(self, statistic: Mass, shards: Shards) -> None:
        super().__init__(statistic, shards)
        self._mask = statistic.mask.lower(shards.N, shards.M)

    def part(self, where: Rectangle, rows: slice) -> Statistic | None:
        found = cut_mask(self._mask, where.queries, where.keys)
        return None if found is None else Mass(_as_mask(found, where))


def _as_mask(lowered: Lowered, where: Rectangle) -> Mask:
    spans, dense = lowered
    if spans is None and dense is None:
        spans = torch.tensor([0, where.keys.length], dtype=torch.int32).expand(1, where.queries.length, 1, 2)
    masks: list[Mask] = [] if spans is None else [Spans(spans.contiguous())]
    masks += [] if dense is None else [Dense(dense)]
    return masks[0] if len(masks) == 1 else masks[0] & masks[1]


class TopPart(RowPart):
    """The largest weights and their keys; of each rectangle the largest are candidates."""

    def __init__(self, statistic: TopK, shards: Shards) -> None:
        super().__init__(statistic, shards)
        B, H, n, _ = shards.q.shape
        shape = (B, H, n, statistic.k)
        self.total = torch.zeros(shape, dtype=shards.problem.compute_dtype)
        self.keys = torch.full(shape, shards.M)

    def part(self, where: Rectangle, rows: slice) -> Statistic | None:
        return TopK(min(self.statistic.k, where.keys.length))

    def add(self, rows: slice, where: Rectangle, outputs: list[Tensor], old: Share, new: Share) -> None:
        values, keys = outputs
        values = _weighted(values, None if new is None else new[..., None])
        keys = torch.where(values > 0, keys + where.keys.begin, self._shards.M)
        before = _weighted(self.total[:, :, rows], None if old is None else old[..., None])
        every, places = torch.cat([before, values], -1), torch.cat([self.keys[:, :, rows], keys], -1)
        places, order = places.sort(-1)  # ties go to the lower key
        every, best = every.gather(-1, order).sort(dim=-1, descending=True, stable=True)
        k = self.statistic.k
        self.total[:, :, rows], self.keys[:, :, rows] = every[..., :k], places.gather(-1, best)[..., :k]

    def skip(self, rows: slice, old: Share) -> None:
        if old is not None:
            self.total[:, :, rows] = _weighted(self.total[:, :, rows], old[..., None])

    def result(self) -> Top:
        """Fill rows that see fewer keys with the first ones that have no weight, as ``torch.topk`` would."""
        keys = torch.where(self.total > 0, self.keys, self._shards.M)
        short = (self.total == 0).any(-1)
        if bool(short.any()):
            keys[short] = _filled(keys[short], self._shards.M)
        return Top(self.total, keys)


def _filled(keys: Tensor, M: int) -> Tensor:
    """Replace keys that are ``M`` in each row ``(rows, k)`` by the lowest that are not in the row."""
    k = keys.shape[1]
    few = torch.arange(min(2 * k, M))
    taken = torch.zeros(len(keys), len(few) + 1, dtype=torch.bool)
    taken.scatter_(1, keys.clamp(max=len(few)), True)
    free = taken[:, : len(few)].to(torch.uint8).sort(dim=1, stable=True).indices[:, :k]
    missing = keys == M
    number = (missing.cumsum(1) - 1).clamp(min=0)
    return torch.where(missing, free.gather(1, number), keys)


class KeyPart:
    """The sum of a statistic of keys; each block's goes back to the process that holds it."""

    def __init__(self, statistic: Any, shards: Shards) -> None:
        self.statistic, self._shards = statistic, shards
        operand = statistic.operand
        self.width = 1 if operand is None else operand.shape[3]

    def part(self, where: Rectangle, rows: slice) -> Statistic | None:
        """The statistic to compute in a rectangle."""
        operand = self.statistic.operand
        found: Statistic = self.statistic if operand is None else self.statistic.with_operand(operand[:, :, rows])
        return found

    def shape(self, run: Run) -> list[int]:
        """The shape of the sums of some keys."""
        B, H, _, _ = self._shards.q.shape
        return [B, H, run.length, self.width]

    def result(self, own: Tensor) -> Tensor:
        """Make the result of the sums of the own keys."""
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

    def part(self, where: Rectangle, rows: slice) -> Statistic | None:
        """The statistic to compute in a rectangle, or None where there is nothing."""
        found: Statistic = self.statistic
        return found

    def add(self, where: Rectangle, outputs: list[Tensor]) -> None:
        """Add what the kernel wrote for a rectangle."""
        self.total += outputs[0]

    def result(self, processes: Processes) -> Any:
        """Add up the processes and make the result."""
        return self.statistic.result([processes.sum(self.total)], self._shards.problem.sizes)


class ProfilePart(WholePart):
    """Sums by distance, of which each rectangle has some."""

    def _zeros(self) -> Tensor:
        B, H, _, _ = self._shards.q.shape
        return torch.zeros(B, H, 2 * self.statistic.radius + 1, dtype=self._shards.problem.compute_dtype)

    def add(self, where: Rectangle, outputs: list[Tensor]) -> None:
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

    def part(self, where: Rectangle, rows: slice) -> Statistic | None:
        whole = self.statistic.window or Window(0, self._shards.N, 0, self._shards.M)
        top, bottom = max(whole.query_begin, where.queries.begin), min(whole.query_end, where.queries.end)
        left, right = max(whole.key_begin, where.keys.begin), min(whole.key_end, where.keys.end)
        if top >= bottom or left >= right:
            return None
        q, k = where.queries.begin, where.keys.begin
        return _PartOfPicture(
            self.statistic.rows,
            self.statistic.cols,
            self.statistic.reduce,
            Window(top - q, bottom - q, left - k, right - k),
            first_query=top - whole.query_begin,
            queries=whole.query_end - whole.query_begin,
            first_key=left - whole.key_begin,
            keys=whole.key_end - whole.key_begin,
        )

    def add(self, where: Rectangle, outputs: list[Tensor]) -> None:
        self.total = (
            torch.maximum(self.total, outputs[0]) if self.statistic.reduce == "max" else self.total + outputs[0]
        )

    def result(self, processes: Processes) -> Any:
        return processes.max(self.total) if self.statistic.reduce == "max" else processes.sum(self.total)


class SimilarityPart(WholePart):
    """Products of every two heads."""

    def _zeros(self) -> Tensor:
        return super()._zeros().double()

    def add(self, where: Rectangle, outputs: list[Tensor]) -> None:
        self.total += unscaled_products(*outputs)

    def result(self, processes: Processes) -> Any:
        return super().result(processes).to(self._shards.problem.compute_dtype)


@dataclass(frozen=True)
class _PartOfPicture(Pool):
    """A window that is a part of what a picture shows."""

    first_query: int = 0
    queries: int = 0
    first_key: int = 0
    keys: int = 0

    def numbers(self) -> list[float]:
        return [*super().numbers(), self.first_query, self.queries, self.first_key, self.keys]


ROWS: dict[type, type[RowPart]] = {
    Entropy: EntropyPart,
    Mass: MassPart,
    Distance: RowPart,
    Max: MaxPart,
    TopK: TopPart,
}
KEYS: dict[type, type[KeyPart]] = {Received: KeyPart, TransposedMatmul: KeyPart}
WHOLE: dict[type, type[WholePart]] = {Profile: ProfilePart, Pool: PoolPart, Similarity: SimilarityPart}
