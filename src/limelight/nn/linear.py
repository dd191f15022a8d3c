"""A linear layer that is fast for one token."""

from __future__ import annotations

from torch import Tensor, nn

from limelight.backends import linear


class Linear(nn.Linear):
    """``x Wᵀ + b``. For a few tokens, as in generation, reading ``W`` is the whole cost; the kernels read it once."""

    def forward(self, input: Tensor) -> Tensor:
        """Any shape that ends in ``in_features``."""
        return linear(input, self.weight, self.bias)
