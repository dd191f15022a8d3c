"""Muon, an optimiser for matrices (Jordan et al. 2024): every step is a multiple of an orthogonal matrix."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from limelight.translate.team import Team

# The odd polynomial of Jordan et al., which five times over brings singular values between 0.001 and 1 near to 1.
_A, _B, _C = 3.4445, -4.7750, 2.0315
_TIMES = 5


class Muon(torch.optim.Optimizer):
    """Steps ``W ← W − η · 0.2 √max(m, n) · U Vᵀ`` for matrices ``(m, n)`` whose momentum is ``U Σ Vᵀ``.

    A step changes a matrix by as much in every direction, also in those in which gradients are small, and by 0.2 η an
    element, which is about what Adam does at the rate η (Liu et al. 2025). ``torch.optim.Muon`` computes ``U Vᵀ`` in
    bfloat16, which takes several times as long on processors without products of that type.

    Args:
        parameters: matrices.
        lr: the rate η.
        momentum: decay of the mean of the gradients, of which a step looks one ahead (Nesterov).
        team: the processes, which share the matrices.

    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, momentum: float = 0.95, *, team: Team) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})
        self._team = team

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # no closure is ever called
        """Make one step; ``closure`` is not used."""
        for group in self.param_groups:
            alike: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
            for x in group["params"]:
                alike[tuple(x.shape)].append(x)
            for (m, n), matrices in alike.items():
                ahead = [self._ahead(x, group["momentum"]) for x in matrices]
                for x, direction in zip(matrices, self._orthogonal(ahead), strict=True):
                    x.sub_(direction, alpha=group["lr"] * 0.2 * max(m, n) ** 0.5)

    def _ahead(self, x: Tensor, momentum: float) -> Tensor:
        assert x.grad is not None
        mean = self.state[x].setdefault("mean", torch.zeros_like(x))
        mean.lerp_(x.grad, 1 - momentum)
        return x.grad.lerp(mean, momentum)

    def _orthogonal(self, matrices: list[Tensor]) -> list[Tensor]:
        """Return the orthogonal factors of matrices of one shape; every process computes its part of them."""
        own = slice(self._team.rank, None, self._team.size)
        out = torch.zeros(len(matrices), *matrices[0].shape)
        if matrices[own]:
            out[own] = orthogonal(torch.stack(matrices[own]))
        return list(self._team.sum([out])[0])


def orthogonal(matrices: Tensor) -> Tensor:
    """Return about ``U Vᵀ`` for matrices ``U Σ Vᵀ``, ``(…, m, n)``: singular values between 0.7 and 1.2.

    Newton and Schulz' iteration ``X ← a X + (b X Xᵀ + c (X Xᵀ)²) X``, with products alone.
    """
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-12)
    for _ in range(_TIMES):
        square = x @ x.mT
        x = _A * x + (_B * square + _C * square @ square) @ x
    out: Tensor = x.mT if tall else x
    return out
