"""The processes that train one model together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from limelight.parallel.group import Processes
from limelight.translate.data import Batch


class Team:
    """The processes of the default group, which share every batch; one process where there is no group."""

    def __init__(self) -> None:
        self._processes = Processes() if dist.is_available() and dist.is_initialized() else None
        self.rank = 0 if self._processes is None else self._processes.rank
        self.size = 1 if self._processes is None else self._processes.size

    @property
    def writes(self) -> bool:
        """Whether this process is the one that writes files."""
        return self.rank == 0

    @contextmanager
    def first_one_first(self) -> Iterator[None]:
        """Let the other processes begin the ``with`` block when the first one has left it."""
        if self._processes is not None and self.rank:
            dist.barrier()
        yield
        if self._processes is not None and not self.rank:
            dist.barrier()

    def part(self, batch: Batch) -> Batch:
        """Return the sentences of a batch that are this process's."""
        return Batch(*(x[self.rank :: self.size] for x in batch))

    def any(self, asked: bool) -> bool:
        """Return whether any process was asked."""
        return asked if self._processes is None else bool(self._processes.max(torch.tensor(int(asked))))

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the sums of tensors over the processes, in one message."""
        if self._processes is None:
            return list(tensors)
        total = self._processes.sum(torch.cat([x.flatten() for x in tensors]))
        parts = total.split([x.numel() for x in tensors])
        return [part.view_as(x) for part, x in zip(parts, tensors, strict=True)]

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Give every process the sums of the gradients; a process without sentences adds 0."""
        if self._processes is None:
            return
        given = [torch.zeros_like(x) if x.grad is None else x.grad for x in parameters]
        for x, gradient in zip(parameters, self.sum(given), strict=True):
            x.grad = gradient
