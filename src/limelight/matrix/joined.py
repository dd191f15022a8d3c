"""Weights whose heads come from several matrices, such as those of an attention call that was edited in some heads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Any

import torch
from torch import Tensor

from limelight.backends import Statistic, WeightsBlock, statistics_of_blocks
from limelight.core.biases import Bias
from limelight.core.masks import Mask
from limelight.core.parts import key_heads, take
from limelight.matrix.base import Weights
from limelight.matrix.statistics.similarity import Similarity


class JoinedWeights(Weights):
    """The heads of several ``Weights`` of the same queries and keys, as one matrix.

    Args:
        parts: matrices ``(…, heads, queries, keys)`` that differ in the number of heads alone.
        heads: for each part, the numbers of its heads in the whole.

    """

    __slots__ = ("_heads", "_order", "_parts")

    def __init__(self, parts: Sequence[Weights], heads: Sequence[Sequence[int]]) -> None:
        self._parts, self._heads = list(parts), [list(x) for x in heads]
        self._order = torch.tensor([head for part in self._heads for head in part]).argsort()

    @property
    def shape(self) -> tuple[int, ...]:
        """``(…, heads, queries, keys)``."""
        *lead, _, N, M = self._parts[0].shape
        return (*lead, len(self._order), N, M)

    @property
    def dtype(self) -> torch.dtype:
        """The accumulation dtype."""
        return reduce(torch.promote_types, (part.dtype for part in self._parts))

    @property
    def device(self) -> torch.device:
        """The device of the results."""
        return self._parts[0].device

    @property
    def mask(self) -> Mask | None:
        """The keys that a query may attend to in some head; None for all."""
        masks = [part.mask for part in self._parts]
        known = [mask for mask in masks if mask is not None]
        return reduce(or_, known) if known and len(known) == len(masks) else None

    def changed(self, **options: Any) -> Weights:
        """The same matrix with other options of ``weights``, in every head."""
        for name in ("mask", "bias", "sink"):
            x = options.get(name)
            if isinstance(x, Tensor) or (isinstance(x, (Mask, Bias)) and x.batch_and_heads()[1] > 1):
                raise ValueError(f"changed: {name} has an axis of heads, which weights of edited heads do not take")
        return JoinedWeights([part.changed(**options) for part in self._parts], self._heads)

    def restricted(self, mask: Mask) -> Weights:
        """The same matrix with a further mask, in every head."""
        return JoinedWeights([part.restricted(mask) for part in self._parts], self._heads)

    def select(self, batch: int | tuple[int, ...] = 0, head: int | None = None) -> Weights:
        """One batch element, and one head unless that is None."""
        if head is None:
            return JoinedWeights([part.select(batch) for part in self._parts], self._heads)
        _, h = self._place(batch, head)
        part, heads = next((part, heads) for part, heads in zip(self._parts, self._heads, strict=True) if h in heads)
        return part.select(batch, heads.index(h))  # type: ignore[arg-type]

    def part(
        self, heads: Sequence[int] | None = None, queries: range | None = None, keys: int | None = None
    ) -> Weights:
        """Some heads, consecutive queries and the first keys."""
        wanted = list(range(len(self._order)) if heads is None else heads)
        parts, places = [], []
        for part, own in zip(self._parts, self._heads, strict=True):
            if here := [h for h in wanted if h in own]:
                parts.append(part.part([own.index(h) for h in here], queries, keys))
                places.append([wanted.index(h) for h in here])
        return parts[0] if len(parts) == 1 and places[0] == list(range(len(wanted))) else JoinedWeights(parts, places)

    def expand(self, batch: int) -> Weights:
        """The matrix of one batch element for each of several."""
        return JoinedWeights([part.expand(batch) for part in self._parts], self._heads)

    def _times_columns(self, factors: Tensor) -> Weights:
        """The matrix times factors of each column, normalised by row."""
        parts = [
            part._times_columns(take(factors, heads, 1)) for part, heads in zip(self._parts, self._heads, strict=True)
        ]
        return JoinedWeights(parts, self._heads)

    def batched(self) -> Weights:
        """The same matrix with exactly one batch axis."""
        return JoinedWeights([part.batched() for part in self._parts], self._heads)

    def __matmul__(self, v: Tensor) -> Tensor:
        """Attention: ``A v``, ``(…, heads, queries, width)``."""
        group = len(self._order) // max(v.shape[-3], 1)
        outs = [
            part @ take(v, key_heads(heads, group), -3) for part, heads in zip(self._parts, self._heads, strict=True)
        ]
        return self._join(outs, -3)

    def logsumexp(self) -> Tensor:
        """``log Σ exp(logits / temperature)`` of each row, ``(…, heads, queries)``."""
        return self._join([part.logsumexp() for part in self._parts], -2)

    def dense(self) -> Tensor:
        """Return the whole matrix, ``(…, heads, queries, keys)``; it has to fit into memory."""
        return self._join([part.dense() for part in self._parts], -3)

    def tensors(self) -> list[Tensor]:
        """The tensors that the matrix is made of, to which a gradient may flow."""
        return [tensor for part in self._parts for tensor in part.tensors()]

    def _join(self, parts: list[Tensor], axis: int) -> Tensor:
        return torch.cat(parts, axis).index_select(axis, self._order.to(parts[0].device))

    def _described(self) -> str:
        return f"Weights(shape={self.shape}, dtype={str(self.dtype).removeprefix('torch.')}, edited heads)"

    def _crop(self, batch: Tensor, heads: Tensor, rows: Tensor, cols: Tensor) -> Tensor:
        every = [torch.arange(len(own), device=self.device) for own in self._heads]
        crops = [part.batched()._crop(batch, own, rows, cols) for part, own in zip(self._parts, every, strict=True)]
        return self._join(crops, 1)[:, heads]

    def _pairs(self, batch: Tensor, heads: Tensor, i: Tensor, j: Tensor) -> Tensor:
        every = [torch.arange(len(own), device=self.device) for own in self._heads]
        pairs = [part.batched()._pairs(batch, own, i, j) for part, own in zip(self._parts, every, strict=True)]
        return self._join(pairs, 1)[:, heads]

    def _compute_batched(self, asked: list[Statistic]) -> list[Any]:
        # The similarity of two heads needs both at once; everything else is found part by part.
        single = [x for x in asked if not isinstance(x, Similarity)]
        by_part = [
            part.batched()._compute_batched([_for_heads(x, heads) for x in single])
            for part, heads in zip(self._parts, self._heads, strict=True)
        ]
        found = {
            id(statistic): statistic.unflatten(
                [self._join(list(x), 1) for x in zip(*(map(statistic.flatten, results)), strict=True)]
            )
            for statistic, results in zip(single, zip(*by_part, strict=True), strict=True)
        }
        both = [x for x in asked if isinstance(x, Similarity)]
        if both:
            needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in self.tensors())
            results = statistics_of_blocks(self._block, self._sizes, both, needs_grad)
            found |= {id(x): result for x, result in zip(both, results, strict=True)}
        return [found[id(x)] for x in asked]

    def _block(self, rows: slice) -> WeightsBlock:
        B, H, N, M = self._sizes
        i, j = torch.arange(N, device=self.device)[rows], torch.arange(M, device=self.device)
        every = torch.arange(B, device=self.device), torch.arange(H, device=self.device)
        return WeightsBlock(self._crop(*every, i, j), i, j, N, M)


def _for_heads(statistic: Statistic, heads: list[int]) -> Statistic:
    """Return a statistic for some heads: its operand, where it has one, holds numbers for all heads."""
    return statistic if statistic.operand is None else statistic.with_operand(take(statistic.operand, heads, 1))
