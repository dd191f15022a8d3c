"""Similarity: how alike the matrices of every two heads are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limelight.backends import WeightsBlock, sum_parts
from limelight.core.problem import Sizes
from limelight.matrix.statistics.asked import YesOrNo

if TYPE_CHECKING:
    from limelight.matrix.base import Weights


class Similarity(YesOrNo):
    """The cosine between the matrices of every two heads."""

    kernel = "similarity"

    def of_block(self, block: WeightsBlock) -> Tensor:
        flat = block.weights.flatten(2)
        return flat @ flat.mT

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        return _cosines(sum_parts(parts))

    def outputs(self, sizes: Sizes, dtype: torch.dtype) -> list[Tensor]:
        return [torch.zeros(sizes.B, sizes.Hq, sizes.Hq, dtype=dtype)]

    def result(self, outputs: list[Tensor], sizes: Sizes) -> Tensor:
        return _cosines(outputs[0])


def _cosines(products: Tensor) -> Tensor:
    """Cosines from ``Σ a b`` over the weights of every two heads."""
    norms = products.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
    scale = norms[:, :, None] * norms[:, None, :]
    return torch.where(scale == 0, 0.0, products / torch.where(scale == 0, 1.0, scale))


def similarity(self: Weights) -> Tensor:
    """The cosine between the matrices of every two heads, ``(…, heads, heads)``."""
    return self._one(Similarity())
