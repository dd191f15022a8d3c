"""Similarity: how alike the matrices of every two heads are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limelight.backends import WeightsBlock
from limelight.core.masks.passes import Pass
from limelight.core.problem import Sizes
from limelight.matrix.statistics.asked import YesOrNo

if TYPE_CHECKING:
    from limelight.matrix.base import Weights


class Similarity(YesOrNo):
    """The cosine between the matrices of every two heads."""

    kernel = "similarity"

    def of_block(self, block: WeightsBlock) -> Tensor:
        """Return ``Σ a b`` of every two heads in units of 2^(exponents), with the exponents as the last column."""
        flat = block.weights.flatten(2)
        if not flat.shape[2]:
            return flat.new_zeros(*flat.shape[:2], flat.shape[1] + 1)
        largest = flat.detach().amax(-1)
        exponents = largest.frexp().exponent.to(flat.dtype)
        exponents = exponents.masked_fill((largest == 0) | ~largest.isfinite(), 0)
        scaled = _times_power(flat, -exponents[..., None])  # the squares of weights around 1e-25 would underflow
        return torch.cat([scaled @ scaled.mT, exponents[..., None]], -1)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        stacked = torch.stack(list(parts))
        products, exponents = stacked[..., :-1], stacked[..., -1]
        empty = products.diagonal(dim1=-2, dim2=-1) == 0
        less = exponents - exponents.masked_fill(empty, -torch.inf).amax(0).clamp(min=-1e4)
        less = less.masked_fill(empty, 0)  # at most 0 elsewhere
        return cosines(_times_power(products, less[..., :, None] + less[..., None, :]).sum(0))

    def outputs(self, sizes: Sizes, dtype: torch.dtype) -> list[Tensor]:
        heads = sizes.Hq
        return [torch.zeros(sizes.B, heads, heads, dtype=dtype), torch.zeros(sizes.B, heads, dtype=dtype)]

    def result(self, outputs: list[Tensor], sizes: Sizes) -> Tensor:
        return cosines(outputs[0])  # the units of the heads cancel in a cosine

    def add_pass(self, total: list[Tensor], part: list[Tensor], x: Pass) -> None:
        total[0] = total[0] + unscaled_products(*part)


def _times_power(x: Tensor, exponents: Tensor) -> Tensor:
    """``x · 2^exponents``, in two steps: the power itself may be out of range."""
    half = (exponents / 2).floor()
    return x * torch.exp2(half) * torch.exp2(exponents - half)


def unscaled_products(products: Tensor, exponents: Tensor) -> Tensor:
    """Return ``Σ a b`` in float64, which holds the squares of all float32 weights; such sums can be added."""
    e = exponents.double()
    return _times_power(products.double(), e[..., :, None] + e[..., None, :])


def cosines(products: Tensor) -> Tensor:
    """Cosines from ``Σ a b`` over the weights of every two heads."""
    norms = products.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
    scale = norms[:, :, None] * norms[:, None, :]
    return torch.where(scale == 0, 0.0, products / torch.where(scale == 0, 1.0, scale))


def similarity(self: Weights) -> Tensor:
    """The cosine between the matrices of every two heads, ``(…, heads, heads)``."""
    return self._one(Similarity())
