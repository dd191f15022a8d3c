"""A ring of processes: blocks of keys and values travel while the last ones are computed with.

In round ``t`` process ``r`` works with what process ``r - t`` holds, block by block. Every block goes straight from
the process that holds it to each that needs it, so that what a process does not see is not sent to it, and nothing is
passed on. All processes go through the same rounds and blocks in the same order; the next block is sent and received
while the present one is computed with, and no more than two are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from limelight.parallel.group import Exchange, Processes
from limelight.parallel.layouts import Run

Blocks = list[list[Run]]  # of every process
_ALIGNED = 64  # bytes


class Ring:
    """The plan of messages: which process sends which blocks to which.

    ``blocks[s]`` are the blocks of process ``s`` and ``needs[r, s, b]`` says that process ``r`` needs block ``b`` of
    process ``s``.
    """

    def __init__(self, processes: Processes, blocks: Blocks, sees: Callable[[Run], bool] | None) -> None:
        self.processes, self.blocks = processes, blocks
        most = max(map(len, blocks), default=0)
        own = torch.zeros(processes.size, most, dtype=torch.uint8)
        for s, runs in enumerate(blocks):
            for b, run in enumerate(runs):
                own[s, b] = 1 if sees is None else sees(run)
        every = processes.gather(own)
        self.needs: list[list[list[int]]] = every.tolist()
        self._ticks = [(t, b) for t in range(1, processes.size) for b in range(most)]

    def source(self, t: int) -> int:
        """The process whose blocks come in round ``t``."""
        return (self.processes.rank - t) % self.processes.size

    def target(self, t: int) -> int:
        """The process that this one's blocks go to in round ``t``."""
        return (self.processes.rank + t) % self.processes.size

    def _receives(self, t: int, b: int) -> bool:
        return b < len(self.blocks[self.source(t)]) and bool(self.needs[self.processes.rank][self.source(t)][b])

    def _sends(self, t: int, b: int) -> bool:
        own = self.blocks[self.processes.rank]
        return b < len(own) and bool(self.needs[self.target(t)][self.processes.rank][b])

    def travel(
        self, pack: Callable[[int], Tensor], size: Callable[[Run], int]
    ) -> Iterator[tuple[int, int, Tensor | None]]:
        """Yield ``(round, block, bytes)`` for every block of the other processes; None for one that is not needed.

        Round 0, in which the first block is on its way, is for the process's own blocks.

        ``pack(b)`` makes the bytes of this process's block ``b``, ``size(run)`` is their number.
        """
        sent: list[Exchange] = []
        following = self._begin(0, pack, size)
        yield 0, 0, None
        for n, (t, b) in enumerate(self._ticks):
            present, following = following, self._begin(n + 1, pack, size)
            if self._receives(t, b):
                yield t, b, present.wait()
            else:
                sent.append(present)
                yield t, b, None
            while len(sent) > 1:
                sent.pop(0).wait()
        for exchange in sent:
            exchange.wait()

    def _begin(self, n: int, pack: Callable[[int], Tensor], size: Callable[[Run], int]) -> Exchange:
        if n >= len(self._ticks):
            return Exchange(self.processes, [], None, 0, None, 0)
        t, b = self._ticks[n]
        send = pack(b) if self._sends(t, b) else None
        receive = None
        if self._receives(t, b):
            receive = torch.empty(size(self.blocks[self.source(t)][b]), dtype=torch.uint8, device=self.processes.device)
        return self.processes.exchange(send, self.target(t), receive, self.source(t))


class Return:
    """Sends what was computed for the blocks of other processes back to them, while the next is computed.

    ``take(b, bytes)`` is called with what comes back for this process's block ``b``.
    """

    def __init__(self, ring: Ring, size: Callable[[Run], int], take: Callable[[int, Tensor], None]) -> None:
        self._ring, self._size, self._take = ring, size, take
        self._pending: list[tuple[int, Exchange]] = []

    def step(self, t: int, b: int, message: Tensor | None) -> None:
        """Send back what belongs to a block of round ``t``, and take in what has come for the own blocks."""
        ring = self._ring
        receive = None
        if ring._sends(t, b):  # something comes back from where it was sent to
            own = ring.blocks[ring.processes.rank][b]
            receive = torch.empty(self._size(own), dtype=torch.uint8, device=ring.processes.device)
        if message is not None or receive is not None:
            self._pending.append((b, ring.processes.exchange(message, ring.source(t), receive, ring.target(t))))
        self._wait(1)

    def finish(self) -> None:
        """Wait for everything that is still on its way."""
        self._wait(0)

    def _wait(self, left: int) -> None:
        while len(self._pending) > left:
            b, exchange = self._pending.pop(0)
            received = exchange.wait()
            if received is not None:
                self._take(b, received)


def packed(tensors: Sequence[Tensor]) -> Tensor:
    """Return the bytes of tensors one after the other, each from an aligned place on."""
    out = torch.empty(sum(_room(x.numel() * x.itemsize) for x in tensors), dtype=torch.uint8, device=tensors[0].device)
    first = 0
    for x in tensors:
        n = x.numel() * x.itemsize
        out[first : first + n].view(x.dtype).view(x.shape).copy_(x)
        first += _room(n)
    return out


def unpacked(message: Tensor, shapes: Sequence[tuple[Sequence[int], torch.dtype]]) -> list[Tensor]:
    """Return the tensors in a message, which share its memory."""
    found, first = [], 0
    for shape, dtype in shapes:
        n = packed_size([(shape, dtype)], aligned=False)
        found.append(message[first : first + n].view(dtype).view(*shape))
        first += _room(n)
    return found


def packed_size(shapes: Sequence[tuple[Sequence[int], torch.dtype]], aligned: bool = True) -> int:
    """Return the number of bytes in a message with such tensors."""
    total = 0
    for shape, dtype in shapes:
        n = int(torch.Size(shape).numel()) * dtype.itemsize
        total += _room(n) if aligned else n
    return total


def _room(n: int) -> int:
    return -(-n // _ALIGNED) * _ALIGNED
