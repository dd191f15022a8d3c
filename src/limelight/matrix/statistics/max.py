"""Max: the largest weight of each row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from limelight.backends import Statistic, WeightsBlock
from limelight.matrix.statistics.asked import YesOrNo
from limelight.matrix.statistics.top import TopK

if TYPE_CHECKING:
    from limelight.matrix.base import Weights


class Max(YesOrNo):
    """``max a`` of each row."""

    kernel = "max"
    of_rows = True

    def of_block(self, block: WeightsBlock) -> Tensor:
        a = block.weights
        return a.amax(-1) if a.shape[-1] else a.sum(-1)

    def differentiable(self) -> Statistic:
        """The strongest key as well, to which the gradient goes; of several with the same weight the first."""
        return TopK(1)

    def of_differentiable(self, result: Any) -> Tensor:
        strongest: Tensor = result.values[..., 0]
        return strongest


def max(self: Weights) -> Tensor:
    """``max a`` of each row: the weight of each query's strongest key, ``(…, heads, queries)``.

    Where several keys are equally strong, the gradient goes to the first of them.

    >>> import torch, limelight as ll
    >>> ll.weights(torch.zeros(1, 4, 8), torch.zeros(1, 4, 8), mask=ll.Causal()).max()
    tensor([[1.0000, 0.5000, 0.3333, 0.2500]])
    """
    return self._one(Max())
