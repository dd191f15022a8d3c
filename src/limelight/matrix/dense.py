"""Weights backed by a dense tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from limelight.backends import Statistic, WeightsBlock, grouped_matmul, statistics_of_blocks
from limelight.core.checks import DTYPES
from limelight.core.masks import Dense, Mask
from limelight.core.parts import take
from limelight.core.problem import batched
from limelight.matrix.base import Weights
from limelight.matrix.indexing import places


class DenseWeights(Weights):
    """A matrix ``(…, heads, queries, keys)`` with the methods of ``Weights``."""

    __slots__ = ("_matrix",)

    def __init__(self, matrix: Tensor) -> None:
        if not isinstance(matrix, Tensor) or not matrix.is_floating_point() or matrix.ndim < 3:
            got = f"{matrix.dtype} {tuple(matrix.shape)}" if isinstance(matrix, Tensor) else type(matrix).__name__
            raise TypeError(f"from_dense: give floats of shape (…, heads, queries, keys), not {got}")
        self._matrix = matrix

    @property
    def shape(self) -> tuple[int, ...]:
        """``(…, heads, queries, keys)``."""
        return tuple(self._matrix.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of statistics: float32, or float64 for a matrix of float64."""
        return torch.promote_types(self._matrix.dtype, torch.float32)

    @property
    def device(self) -> torch.device:
        """The device of the matrix."""
        return self._matrix.device

    @property
    def mask(self) -> Mask | None:
        """The keys that have weight in some head."""
        seen = (batched(self._matrix) > 0).any(1, keepdim=True)
        return None if bool(seen.all()) else Dense(seen)

    def changed(self, **options: Any) -> Weights:
        """Return the matrix with another mask or temperature; ``log a`` serves as the logits, which are not known."""
        if unknown := options.keys() - {"mask", "temperature"}:
            raise TypeError(f"changed: a dense matrix has no {min(unknown)!r} that could be changed")
        a = batched(self._matrix).to(self.dtype) ** (1 / options.get("temperature", 1.0))
        if (mask := options.get("mask")) is not None:
            a = a * mask.dense(*self.shape[-2:], self.device)
        total = a.sum(-1, keepdim=True)
        return DenseWeights((a / torch.where(total == 0, 1.0, total)).reshape(self.shape))

    def select(self, batch: int | tuple[int, ...] = 0, head: int | None = None) -> Weights:
        """One batch element, and one head unless that is None."""
        b, h = self._place(batch, head)
        part = batched(self._matrix)[b]
        return DenseWeights(part if h is None else part[h][None])

    def part(
        self, heads: Sequence[int] | None = None, queries: range | None = None, keys: int | None = None
    ) -> Weights:
        """Some heads, consecutive queries and the first keys."""
        part = take(self._matrix, heads, -3)
        part = part if queries is None else part[..., queries.start : queries.stop, :]
        return DenseWeights(part if keys is None else part[..., :keys])

    def expand(self, batch: int) -> Weights:
        """The matrix of one batch element for each of several."""
        return DenseWeights(batched(self._matrix).expand(batch, *self.shape[-3:]))

    def _times_columns(self, factors: Tensor) -> Weights:
        """The matrix times factors of each column, normalised by row."""
        a = batched(self._matrix).to(self.dtype) * factors.to(self.dtype)[:, :, None]
        total = a.sum(-1, keepdim=True)
        return DenseWeights((a / torch.where(total == 0, 1.0, total)).reshape(self.shape))

    def batched(self) -> Weights:
        """The same matrix with exactly one batch axis."""
        return DenseWeights(batched(self._matrix))

    def __matmul__(self, v: Tensor) -> Tensor:
        """Attention: ``A v``, ``(…, heads, queries, width)``."""
        *lead, H, _, M = self.shape
        if not isinstance(v, Tensor) or v.dtype not in DTYPES:
            got = v.dtype if isinstance(v, Tensor) else type(v).__name__
            raise TypeError(f"v must be a tensor of floats, not {got}")
        if v.ndim != self._matrix.ndim or list(v.shape[:-3]) != lead or v.shape[-2] != M or H % max(v.shape[-3], 1):
            raise ValueError(
                f"v {tuple(v.shape)} does not fit weights {self.shape}: it must be {(*lead, H, M)} and a width"
            )
        return self._with_lead(grouped_matmul(batched(self._matrix).to(v.dtype), batched(v)))

    def logsumexp(self) -> Tensor:
        """``log Σ a`` of each row: 0 where the weights sum to 1, −∞ where they are all 0."""
        return self._with_lead(torch.log(batched(self._matrix).to(self.dtype).sum(-1)))

    def dense(self) -> Tensor:
        """The matrix itself."""
        return self._matrix

    def __getitem__(self, index: Any) -> Tensor:
        """Return any part of the matrix."""
        places(index, self.shape)
        return self._matrix[index]

    def tensors(self) -> list[Tensor]:
        """The matrix."""
        return [self._matrix]

    def _described(self) -> str:
        return f"Weights.from_dense(shape={self.shape}, dtype={str(self._matrix.dtype).removeprefix('torch.')})"

    def _compute_batched(self, asked: list[Statistic]) -> list[Any]:
        return statistics_of_blocks(self._block, self._sizes, asked, recompute=False)  # blocks are views

    def _block(self, rows: slice) -> WeightsBlock:
        _, _, N, M = self._sizes
        i, j = torch.arange(N, device=self.device)[rows], torch.arange(M, device=self.device)
        return WeightsBlock(batched(self._matrix)[:, :, rows].to(self.dtype), i, j, N, M)
