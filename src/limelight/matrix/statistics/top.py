"""Top: each query's strongest keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from limelight.backends import WeightsBlock
from limelight.core.checks import check_count
from limelight.core.masks.passes import Pass
from limelight.core.problem import Sizes
from limelight.matrix.statistics.asked import AskedStatistic

if TYPE_CHECKING:
    from limelight.matrix.base import Weights


class Top(NamedTuple):
    """The largest weights of each row and their keys, as ``torch.topk`` has them."""

    values: Tensor
    indices: Tensor


@dataclass(frozen=True)
class TopK(AskedStatistic):
    """The ``k`` largest weights of each row, ties by the lower key."""

    k: int
    kernel = "top"
    of_rows = True
    has_kernel_gradient = True

    @classmethod
    def asked(cls, weights: Weights, value: Any) -> AskedStatistic | None:
        """Make the statistic for a number of keys."""
        return None if value is None else cls(check_count("top", "k", value, 1, weights.shape[-1]))

    def of_block(self, block: WeightsBlock) -> Tensor:
        weights, keys = torch.sort(block.for_all_keys(block.weights), dim=-1, descending=True, stable=True)
        return torch.stack([weights[..., : self.k].double(), keys[..., : self.k].double()])

    def join(self, parts: Sequence[Tensor]) -> Top:
        weights, keys = torch.cat(list(parts), 3)
        return Top(weights, keys.long())

    def outputs(self, sizes: Sizes, dtype: torch.dtype) -> list[Tensor]:
        shape = (sizes.B, sizes.Hq, sizes.N, self.k)
        return [torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=torch.long)]

    def numbers(self) -> list[float]:
        return [self.k]

    def result(self, outputs: list[Tensor], sizes: Sizes) -> Top:
        return Top(*outputs)

    def weighted_gradient(self, gradient: Any, result: Any, total: Tensor | float) -> Tensor:
        found: Tensor = (gradient.values * result.values).sum(-1)
        return found

    def gradient_tensors(self, gradient: Any, result: Any, sizes: Sizes) -> list[Tensor]:
        return [gradient.values, result.indices]

    def tensors_of_pass(self, tensors: list[Tensor], x: Pass, sizes: Sizes) -> list[Tensor]:
        """Number the keys as the pass does; −1 for those that it does not have."""
        gradient, keys = super().tensors_of_pass(tensors, x, sizes)
        if x.keys is None:
            return [gradient, keys]
        places = torch.full((sizes.M,), -1)
        places[x.keys] = torch.arange(len(x.keys))
        return [gradient, places[keys]]

    def flatten(self, result: Any) -> list[Tensor]:
        return list(result)

    def unflatten(self, tensors: list[Tensor]) -> Top:
        return Top(tensors.pop(0), tensors.pop(0))


def top(self: Weights, k: int) -> Top:
    """Each query's ``k`` strongest keys, ties by the lower: ``values`` and ``indices``, ``(…, heads, queries, k)``.

    Where a query may attend to fewer than ``k`` keys, other keys follow with a weight of 0.
    """
    (found,) = self._compute([TopK(check_count("top", "k", k, 1, self.shape[-1]))])
    assert isinstance(found, Top)
    return found
