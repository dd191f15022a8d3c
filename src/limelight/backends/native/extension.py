"""The compiled kernels, or ``no_kernels`` where the package was installed without them."""

from __future__ import annotations

import torch

from limelight.backends import no_kernels

try:
    import limelight.backends._native as kernels
except ModuleNotFoundError:
    import limelight.backends.no_kernels as kernels  # type: ignore[no-redef]

__all__ = ["TYPES", "built", "kernels"]

built = kernels is not no_kernels

# The element types of the kernels (cpp/problem.h).
TYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
