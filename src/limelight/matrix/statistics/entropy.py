"""Entropy: how spread out each query's attention is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limelight.backends import WeightsBlock
from limelight.matrix.statistics.asked import YesOrNo

if TYPE_CHECKING:
    from limelight.matrix.base import Weights


class Entropy(YesOrNo):
    """``-Σ a log a`` of each row, in nats."""

    kernel = "entropy"
    of_rows = True
    has_kernel_gradient = True

    def of_block(self, block: WeightsBlock) -> Tensor:
        a = block.weights
        zero = a == 0  # where a log a is 0
        return torch.where(zero, 0.0, -a * torch.log(torch.where(zero, 1.0, a))).sum(-1)

    def weighted_gradient(self, gradient: Tensor, result: Tensor, total: Tensor | float) -> Tensor:
        return gradient * (result - total)  # Σ a · -(log a + 1)


def entropy(self: Weights) -> Tensor:
    """``-Σ a log a`` of each row, in nats: how spread out each query's attention is, ``(…, heads, queries)``.

    Without a sink it is ``log n`` for equal weights on n keys, and 0 for a single key.
    """
    return self._one(Entropy())
