"""Profile: the mean weight by relative position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from limelight.backends import Statistic, WeightsBlock, sum_parts
from limelight.core.checks import check_count
from limelight.core.masks import positions
from limelight.core.masks.passes import Pass
from limelight.core.problem import Sizes
from limelight.matrix.statistics.asked import AskedStatistic

if TYPE_CHECKING:
    from limelight.matrix.base import Weights


@dataclass(frozen=True)
class Profile(AskedStatistic):
    """The mean weight at every distance ``key - position`` from ``-radius`` to ``radius``."""

    radius: int
    whole: Sizes | None = None  # of the matrix from which the queries and keys of a pass were chosen
    kernel = "profile"
    has_kernel_gradient = True

    @classmethod
    def asked(cls, weights: Weights, value: Any) -> AskedStatistic | None:
        """Make the statistic for a radius."""
        return None if value is None else cls(check_count("profile", "radius", value, 0))

    def of_block(self, block: WeightsBlock) -> Tensor:
        distances = torch.arange(-self.radius, self.radius + 1, device=block.i.device)
        if not len(block.j):
            return block.weights.new_zeros(*block.weights.shape[:2], len(distances))
        column = positions(block.i, block.N, block.M)[:, None] + distances - block.j[0]
        inside = (column >= 0) & (column < len(block.j))
        index = column.clamp(0, len(block.j) - 1).expand(*block.weights.shape[:2], -1, -1)
        sums = torch.where(inside, block.weights.gather(3, index), 0.0).sum(2)
        return sums / self.counts(block.N, block.M, block.i.device)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        return sum_parts(parts)

    def counts(self, N: int, M: int, device: torch.device) -> Tensor:
        """The number of weights at each distance, or 1 where there are none."""
        d = torch.arange(-self.radius, self.radius + 1, device=device)
        # Query i has a key at distance d if 0 <= M - N + i + d < M.
        return ((N - d).clamp(max=N) - (N - M - d).clamp(min=0)).clamp(min=1)

    def outputs(self, sizes: Sizes, dtype: torch.dtype) -> list[Tensor]:
        N, M = (self.whole or sizes)[3:5]
        return [torch.zeros(sizes.B, sizes.Hq, N + M - 1, dtype=dtype)]

    def numbers(self) -> list[float]:
        return [self.radius]

    def result(self, outputs: list[Tensor], sizes: Sizes) -> Tensor:
        """Make means of the sums by ``position - key``, from ``-(N - 1)`` up."""
        (sums,), N, M = outputs, sizes.N, sizes.M
        d = torch.arange(-self.radius, self.radius + 1, device=sums.device)
        exists = (d > -M) & (d < N)
        found = torch.where(exists, sums[..., torch.where(exists, N - 1 - d, 0)], 0.0)
        return found / self.counts(N, M, sums.device)

    def of_pass(self, x: Pass, sizes: Sizes) -> Statistic:
        return self if x.places is None else replace(self, whole=sizes)

    def add_pass(self, total: list[Tensor], part: list[Tensor], x: Pass) -> None:
        total[0] += part[0]

    def tensors_of_pass(self, tensors: list[Tensor], x: Pass, sizes: Sizes) -> list[Tensor]:
        return tensors

    def weighted_gradient(self, gradient: Tensor, result: Tensor, total: Tensor | float) -> None:
        return None

    def output_gradient(self, gradient: Tensor, sizes: Sizes) -> Tensor:
        """Return the gradient of the sums by ``position - key``; each sum is part of at most one mean."""
        N, M = sizes.N, sizes.M
        means = gradient / self.counts(N, M, gradient.device)
        reach = max(N, M)
        around = pad(means, (reach - self.radius,) * 2)  # from -reach to reach, whatever the radius is
        return around[..., reach - M + 1 : reach + N].flip(-1)


def profile(self: Weights, radius: int) -> Tensor:
    """The mean weight at each ``key - position`` from ``-radius`` to ``radius``, ``(…, heads, 2·radius + 1)``.

    The mean is over all queries that have a key at this distance, whether or not the mask allows it; it is 0 at a
    distance that does not occur.

    >>> import torch, limelight as ll
    >>> ll.weights(torch.zeros(1, 2, 8), torch.zeros(1, 2, 8), mask=ll.Causal()).profile(1)
    tensor([[0.5000, 0.7500, 0.0000]])
    """
    return self._one(Profile(check_count("profile", "radius", radius, 0)))
