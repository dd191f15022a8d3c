"""Rows of numbers as bytes, each with a scale of its own: the keys and values of an 8-bit cache."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Int8Rows(NamedTuple):
    """``values · scale``, row by row."""

    values: Tensor  # (B, H, M, width), int8
    scale: Tensor  # (B, H, M, 1), float32

    @classmethod
    def quantise(cls, x: Tensor) -> Int8Rows:
        """Round each row to whole numbers, scaled so that its largest magnitude is 127."""
        scale = x.float().abs().amax(-1, keepdim=True) / 127
        values = x.float() / torch.where(scale == 0, 1.0, scale)
        return cls(values.round().to(torch.int8), scale)

    def dequantise(self, dtype: torch.dtype) -> Tensor:
        """Return the rows as floats."""
        return (self.values.to(torch.float32) * self.scale).to(dtype)
