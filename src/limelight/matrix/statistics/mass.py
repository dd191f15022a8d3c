"""Mass: the share of each query's attention on the keys that a mask allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limelight.backends import WeightsBlock
from limelight.core.masks import Mask
from limelight.core.problem import check_batch_and_heads
from limelight.matrix.statistics.asked import AskedStatistic

if TYPE_CHECKING:
    from limelight.matrix.base import Weights


@dataclass(frozen=True)
class Mass(AskedStatistic):
    """``Σ a`` of each row over the keys that ``mask`` allows."""

    mask: Mask
    kernel = "mass"
    has_kernel_gradient = True

    @classmethod
    def asked(cls, weights: Weights, value: Any) -> AskedStatistic | None:
        """Make the statistic for a mask."""
        if value is None:
            return None
        if not isinstance(value, Mask):
            hint = "wrap the tensor as Dense(tensor)" if isinstance(value, Tensor) else f"not {type(value).__name__}"
            raise TypeError(f"mass: give a mask such as First(1), {hint}")
        B, H, _, _ = weights._sizes
        check_batch_and_heads(value, B, H)
        return cls(value)

    def of_block(self, block: WeightsBlock) -> Tensor:
        allowed = self.mask.allows(block.i[:, None], block.j[None, :], block.N, block.M)
        return torch.where(allowed, block.weights, 0.0).sum(-1)


def mass(self: Weights, mask: Mask) -> Tensor:
    """``Σ a`` of each row over the keys that ``mask`` allows, ``(…, heads, queries)``.

    ``mass(First(1))`` is the weight on the first token, ``mass(Window(8))`` that on the neighbours.

    >>> import torch, limelight as ll
    >>> A = ll.weights(torch.zeros(1, 4, 8), torch.zeros(1, 4, 8))
    >>> A.mass(ll.First(1))
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """
    if mask is None:
        raise TypeError("mass: give a mask such as First(1), not None")
    return self._one(Mass.asked(self, mask))
