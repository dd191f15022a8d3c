"""The product Aᵀ u, from queries back to keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from limelight.backends import Statistic, WeightsBlock, add_at, sum_parts
from limelight.core.masks.passes import Pass
from limelight.core.problem import Sizes


@dataclass(frozen=True)
class TransposedMatmul(Statistic):
    """``Aᵀ u`` for ``u (B, H, N, width)``."""

    operand: Tensor
    kernel = "transposed"

    def of_block(self, block: WeightsBlock) -> Tensor:
        back = block.weights.mT @ self.operand[:, :, block.i].to(block.weights.dtype)
        return block.for_all_keys(back.mT).mT

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        return sum_parts(parts)

    def add_pass(self, total: list[Tensor], part: list[Tensor], x: Pass) -> None:
        add_at(total[0], x.keys, part[0])

    def outputs(self, sizes: Sizes, dtype: torch.dtype) -> list[Tensor]:
        return [torch.zeros(sizes.B, sizes.Hq, sizes.M, self.operand.shape[3], dtype=dtype)]

    def numbers(self) -> list[float]:
        return [self.operand.shape[3], bool(self.operand.isfinite().all())]

    def with_operand(self, operand: Tensor) -> TransposedMatmul:
        return TransposedMatmul(operand)
