"""Distance: how far away each query looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from limelight.backends import WeightsBlock
from limelight.core.masks import positions
from limelight.matrix.statistics.asked import YesOrNo

if TYPE_CHECKING:
    from limelight.matrix.base import Weights


class Distance(YesOrNo):
    """``Σ a · |position - key|`` of each row."""

    kernel = "distance"
    of_rows = True
    has_kernel_gradient = True

    def of_block(self, block: WeightsBlock) -> Tensor:
        distances = (positions(block.i, block.N, block.M)[:, None] - block.j).abs()
        return (block.weights * distances).sum(-1)


def distance(self: Weights) -> Tensor:
    """``Σ a · |position - key|`` of each row: how far away a query looks, in tokens, ``(…, heads, queries)``.

    >>> import torch, limelight as ll
    >>> ll.weights(torch.zeros(1, 3, 8), torch.zeros(1, 3, 8), mask=ll.Causal()).distance()
    tensor([[0.0000, 0.5000, 1.0000]])
    """
    return self._one(Distance())
