"""Attention rollout: what reaches a token through several layers (Abnar and Zuidema, 2020)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from limelight.core.checks import check_count
from limelight.matrix.base import Weights


def rollout(layers: Sequence[Weights], tokens: Sequence[int] | None = None, *, residual: float = 0.5) -> Tensor:
    """Compute ``Â_L … Â_1`` with ``Â = residual · 1 + (1 - residual) · mean over heads of A``: rows of chosen tokens.

    Args:
        layers: the attention of each layer, the first layer first; each over the same positions.
        tokens: positions whose rows are wanted; all of them where None.
        residual: the share that passes a layer around its attention.

    Returns:
        ``(…, tokens, positions)``: how much of each position's input reaches the token. Nothing n × n is made on the
        way for a few tokens: every step is ``Aᵀ`` times what has come so far.

    >>> import torch, limelight as ll
    >>> layers = [ll.weights(torch.randn(4, 9, 8), torch.randn(4, 9, 8), mask=ll.Causal()) for _ in range(3)]
    >>> rollout(layers, [8]).shape
    torch.Size([1, 9])

    """
    if not layers:
        raise ValueError("rollout: give at least one layer's weights")
    if not 0 <= residual <= 1:
        raise ValueError(f"rollout: residual = {residual} must be from 0 to 1: the share that passes around attention")
    *lead, _, N, _ = layers[0].shape
    for n, A in enumerate(layers):
        *other, _, rows, cols = A.shape
        if rows != N or cols != N or other != lead:
            raise ValueError(
                f"rollout: layer {n} is {A.shape}, and all must be {(*lead, 'heads', N, N)}: self-attention over the "
                "same positions"
            )
    chosen = [check_count("rollout", "token", t, -N, N - 1) % N for t in (range(N) if tokens is None else tokens)]
    u = torch.zeros(N, len(chosen), dtype=layers[0].dtype, device=layers[0].device)
    u[chosen, range(len(chosen))] = 1.0
    u = u.expand(*lead, N, len(chosen))
    for A in reversed(layers):
        heads = A.shape[-3]
        sent = (A.T @ u.unsqueeze(-3).expand(*lead, heads, N, len(chosen))).mean(-3)
        u = residual * u + (1 - residual) * sent
    return u.mT
