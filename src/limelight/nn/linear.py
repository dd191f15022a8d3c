"""A linear layer that is fast for a few tokens."""

from __future__ import annotations

from torch import Tensor, nn

from limelight.backends import linear


class Linear(nn.Linear):
    """``x Wᵀ + b``; for a few tokens, as in generation, a kernel that reads ``W`` once, which is the whole cost."""

    def forward(self, input: Tensor) -> Tensor:
        """``(…, in_features)`` to ``(…, out_features)``."""
        return linear(input, self.weight, self.bias)
