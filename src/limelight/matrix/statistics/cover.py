"""Cover: how many keys carry a given share of each query's attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limelight.backends import WeightsBlock
from limelight.core.checks import check_number
from limelight.core.problem import Sizes
from limelight.matrix.statistics.asked import AskedStatistic

if TYPE_CHECKING:
    from limelight.matrix.base import Weights


@dataclass(frozen=True)
class Cover(AskedStatistic):
    """The smallest number of keys whose weights sum to at least ``share`` of the row's weight."""

    share: float
    kernel = "cover"
    needs_whole_rows = True

    @classmethod
    def asked(cls, weights: Weights, value: Any) -> AskedStatistic | None:
        """Make the statistic for a share of the weight."""
        if value is None:
            return None
        share = check_number("cover: share", value)
        if not 0 < share <= 1:
            raise ValueError(f"cover: share = {share} must be above 0 and at most 1: the part of the weight to reach")
        return cls(share)

    def of_block(self, block: WeightsBlock) -> Tensor:
        largest_first = block.weights.detach().sort(-1, descending=True).values
        total = largest_first.sum(-1, keepdim=True)
        short = (largest_first.cumsum(-1) < self.share * total) & (largest_first > 0)
        count = short.sum(-1) + 1
        return torch.minimum(count, (largest_first > 0).sum(-1))

    def outputs(self, sizes: Sizes, dtype: torch.dtype) -> list[Tensor]:
        return [torch.zeros(sizes.B, sizes.Hq, sizes.N, dtype=torch.long)]

    def numbers(self) -> list[float]:
        return [self.share]


def cover(self: Weights, share: float) -> Tensor:
    """The number of strongest keys that a query needs to reach a share of its weight, ``(…, heads, queries)``.

    ``share`` is above 0 and at most 1. The result has whole numbers, 0 for a query that may attend to nothing.

    >>> import torch, limelight as ll
    >>> ll.weights(torch.zeros(1, 4, 8), torch.zeros(1, 4, 8), mask=ll.Causal()).cover(0.5)
    tensor([[1, 1, 2, 2]])
    """
    return self._one(Cover.asked(self, share))
