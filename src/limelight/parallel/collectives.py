"""Differentiable collectives, in two conventions that fit together.

The objective is the sum of the losses of all processes; a loss that every process has in full counts once. ``total`` is
for such a loss: it gives every process the sum, and its gradient passes through unchanged. ``sum_over`` is for a sum
that each process goes on to use in its own loss: its gradient is the sum of the gradients of all processes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from limelight.parallel.group import Processes


def total(x: Tensor, group: Any = None) -> Tensor:
    """Return the sum of ``x`` over the processes; its gradient passes to this process's ``x`` unchanged.

    A loss that is the sum over all tokens, divided by their number, is ``total(own_sum) / count`` on every process,
    and ``backward()`` of it gives the gradients of one process. ``group`` is the default group unless given.
    """
    apply: Any = _Total.apply
    result: Tensor = apply(x, Processes.of(group))
    return result


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, processes: Processes) -> Tensor:
        """Sum over the processes."""
        return processes.sum(x)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Any, ...]:
        """Pass the gradient through."""
        return dx, None


def largest(x: Tensor, processes: Processes) -> Tensor:
    """Return the largest ``x`` over the processes; its gradient goes to those that have it, in equal parts."""
    apply: Any = _Largest.apply
    result: Tensor = apply(x, processes)
    return result


class _Largest(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, processes: Processes) -> Tensor:
        """Take the maximum."""
        found = processes.max(x)
        mine = (x == found).to(x.dtype)
        ctx.save_for_backward(mine / processes.sum(mine).clamp(min=1))
        return found

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Any, ...]:
        """Give the gradient to the processes that hold the maximum."""
        (share,) = ctx.saved_tensors
        return dx * share, None


def sum_over(x: Tensor, processes: Processes) -> Tensor:
    """Return the sum of ``x`` over the processes; the gradient is summed over them too."""
    apply: Any = _SumOver.apply
    result: Tensor = apply(x, processes)
    return result


class _SumOver(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, processes: Processes) -> Tensor:
        """Sum over the processes."""
        ctx.processes = processes
        return processes.sum(x)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Any, ...]:
        """Sum the gradients."""
        return ctx.processes.sum(dx), None


def place_rows(x: Tensor, positions: Tensor, length: int, dim: int) -> Tensor:
    """Return zeros of this length along ``dim``, with ``x`` at its positions."""
    shape = list(x.shape)
    shape[dim] = length
    return x.new_zeros(shape).index_copy(dim, positions, x)
