"""Received: how much attention each key gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limelight.backends import WeightsBlock, add_at, sum_parts
from limelight.core.masks.passes import Pass
from limelight.core.problem import Sizes
from limelight.matrix.statistics.asked import YesOrNo

if TYPE_CHECKING:
    from limelight.matrix.base import Weights


class Received(YesOrNo):
    """``Σ a`` of each column."""

    kernel = "received"
    has_kernel_gradient = True

    def of_block(self, block: WeightsBlock) -> Tensor:
        return block.for_all_keys(block.weights.sum(2))

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        return sum_parts(parts)

    def add_pass(self, total: list[Tensor], part: list[Tensor], x: Pass) -> None:
        add_at(total[0], x.keys, part[0])

    def tensors_of_pass(self, tensors: list[Tensor], x: Pass, sizes: Sizes) -> list[Tensor]:
        return tensors if x.keys is None else [y.index_select(2, x.keys) for y in tensors]

    def outputs(self, sizes: Sizes, dtype: torch.dtype) -> list[Tensor]:
        return [torch.zeros(sizes.B, sizes.Hq, sizes.M, dtype=dtype)]

    def weighted_gradient(self, gradient: Tensor, result: Tensor, total: Tensor | float) -> None:
        return None


def received(self: Weights) -> Tensor:
    """``Σ a`` of each column: how much attention each key gets from all queries, ``(…, heads, keys)``.

    >>> import torch, limelight as ll
    >>> ll.weights(torch.zeros(1, 2, 8), torch.zeros(1, 2, 8), mask=ll.Causal()).received()
    tensor([[1.5000, 0.5000]])
    """
    return self._one(Received())
