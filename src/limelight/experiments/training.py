"""A training loop for the small models of the experiments."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Batch = Callable[[], tuple[tuple[Tensor, ...], Tensor]]  # the inputs of a model, and its targets


def fit(model: nn.Module, batch: Batch, *, steps: int, rate: float = 3e-3, one_cycle: bool = False) -> list[float]:
    """Train with Adam on the cross-entropy of ``model(*inputs)`` and return the loss of every step.

    Targets are numbers of classes; −100 is not scored. With ``one_cycle`` the rate rises to ``rate`` and then falls to
    0, which longer trainings need; otherwise it stays the same.
    """
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps) if one_cycle else None
    losses = []
    model.train()
    for _ in range(steps):
        inputs, target = batch()
        loss = nn.functional.cross_entropy(model(*inputs).flatten(0, -2), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        losses.append(float(loss.detach()))
    model.eval()
    return losses


@torch.no_grad()
def accuracy(model: nn.Module, batch: Batch) -> float:
    """Return the share of scored targets that are the likeliest class."""
    inputs, target = batch()
    right = (model(*inputs).argmax(-1) == target)[target >= 0]
    return float(right.float().mean())
