"""Attention that stores its weights, for comparison."""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


def stored_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Compute PyTorch's own attention with the whole n × n matrix in memory."""
    with sdpa_kernel(SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)
