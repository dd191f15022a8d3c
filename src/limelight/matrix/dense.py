"""The same questions for a matrix that somebody already has."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from limelight.backends import blocks
from limelight.backends.statistics import Block, Question
from limelight.core.masks import Dense, Mask
from limelight.core.problem import DTYPES, batched
from limelight.core.reference import grouped
from limelight.matrix.indexing import places
from limelight.matrix.lazy import Weights


class GivenWeights(Weights):
    """A matrix that somebody already has."""

    __slots__ = ("_matrix",)

    def __init__(self, matrix: Tensor) -> None:
        if not isinstance(matrix, Tensor) or not matrix.is_floating_point() or matrix.ndim < 3:
            got = f"{matrix.dtype} {tuple(matrix.shape)}" if isinstance(matrix, Tensor) else type(matrix).__name__
            raise TypeError(f"from_dense: give floats of shape (…, heads, queries, keys), not {got}")
        self._matrix = matrix

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._matrix.shape)

    @property
    def mask(self) -> Mask | None:
        """Where any head has weight."""
        seen = (batched(self._matrix) > 0).any(1, keepdim=True)
        return None if bool(seen.all()) else Dense(seen)

    def changed(self, **options: Any) -> Weights:
        """The same with other options; the logits are known as far as the weights tell them."""
        if wrong := options.keys() - {"mask", "temperature"}:
            raise TypeError(f"changed: a given matrix has no {sorted(wrong)[0]!r} that could be changed")
        a = batched(self._matrix).to(self._answer_dtype) ** (1 / options.get("temperature", 1.0))
        if (mask := options.get("mask")) is not None:
            a = a * mask.dense(*self.shape[-2:], self._device)
        total = a.sum(-1, keepdim=True)
        return GivenWeights((a / torch.where(total == 0, 1.0, total)).reshape(self.shape))

    def __matmul__(self, v: Tensor) -> Tensor:
        *lead, H, _, M = self.shape
        if not isinstance(v, Tensor) or v.dtype not in DTYPES:
            raise TypeError(
                f"v must be a tensor of floats, not {v.dtype if isinstance(v, Tensor) else type(v).__name__}"
            )
        if v.ndim != self._matrix.ndim or list(v.shape[:-3]) != lead or v.shape[-2] != M or H % max(v.shape[-3], 1):
            raise ValueError(
                f"v {tuple(v.shape)} does not fit weights {self.shape}: it must be {(*lead, H, M)} and a width"
            )
        return self._led(grouped(batched(self._matrix).to(v.dtype), batched(v)))

    def dense(self) -> Tensor:
        return self._matrix

    def __getitem__(self, index: Any) -> Tensor:
        places(index, self.shape)
        return self._matrix[index]

    def tensors(self) -> list[Tensor]:
        return [self._matrix]

    def _described(self) -> str:
        return f"Weights.from_dense(shape={self.shape}, dtype={str(self._matrix.dtype).removeprefix('torch.')})"

    @property
    def _sizes(self) -> tuple[int, int, int, int]:
        *lead, H, N, M = self.shape
        return math.prod(lead), H, N, M

    @property
    def _device(self) -> torch.device:
        return self._matrix.device

    @property
    def _answer_dtype(self) -> torch.dtype:
        return torch.promote_types(self._matrix.dtype, torch.float32)

    def _normalisers(self) -> Tensor:
        return torch.log(batched(self._matrix).to(self._answer_dtype).sum(-1))

    def _answers(self, questions: list[Question]) -> list[Any]:
        return blocks.ask_blocks(self._block, self._sizes, questions, again=False)  # its blocks are views

    def _block(self, rows: slice) -> Block:
        _, _, N, M = self._sizes
        i, j = torch.arange(N, device=self._device)[rows], torch.arange(M, device=self._device)
        return Block(batched(self._matrix)[:, :, rows].to(self._answer_dtype), i, j, N, M)
