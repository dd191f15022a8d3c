"""The root-mean-square norm, in one pass where no gradient is wanted."""

from __future__ import annotations

from torch import Tensor, nn

from limelight.backends import Norm, rms_norm


class RMSNorm(nn.RMSNorm):
    """``x / √(mean(x²) + eps) ∘ weight`` over the last axis."""

    def forward(self, x: Tensor) -> Tensor:
        """``(…, width)`` to the same shape."""
        norm = self.of_width(x.shape[-1])
        y = None if norm is None else rms_norm(x, norm)
        return super().forward(x) if y is None else y

    def of_width(self, width: int) -> Norm | None:
        """Return the norm as the kernels take it; None where they do not compute it for vectors of this width."""
        if self.eps is None or self.normalized_shape != (width,):
            return None
        return Norm(self.weight, self.eps)
