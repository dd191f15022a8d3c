"""A ring of processes: while a process computes with one block of keys and values, the next is on its way.

In round ``t`` process ``r`` works with the blocks that process ``r - t`` holds. Every block goes straight from the
process that holds it to each that needs it: nothing is passed on, and blocks that a mask hides from a process are not
sent to it. All processes go through the same ticks; in each, a process receives at most one block and sends at most
one. Blocks that are needed are spread evenly over the ticks of their round, and the work with the process's own keys
over all ticks, so that there is something to compute while a block is on its way, and processes whose work is balanced
are at the same tick. Memory holds the blocks of two ticks, which later ticks reuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from limelight.parallel.group import Exchange, Processes
from limelight.parallel.layouts import Run

Blocks = list[list[Run]]  # one list of blocks for every process
_ALIGNED = 64  # bytes


class Tick(NamedTuple):
    """One step of a process: the block that it receives and its own block that it sends, by number, or None."""

    round: int
    receives: int | None
    sends: int | None


class Ring:
    """The plan of messages: which process sends which blocks to which.

    ``blocks[s]`` are the blocks of process ``s``; ``sees`` tells which of them this process needs.
    """

    def __init__(self, processes: Processes, blocks: Blocks, sees: Callable[[Run], bool]) -> None:
        self.processes, self.blocks = processes, blocks
        own = torch.zeros(processes.size, max(map(len, blocks), default=0), dtype=torch.bool)
        for s, runs in enumerate(blocks):
            for b, run in enumerate(runs):
                own[s, b] = sees(run)
        needs = processes.gather(own.to(torch.uint8)).bool()  # (receiver, source, block)
        self._ticks = [tick for round_ in range(1, processes.size) for tick in self._round(round_, needs)]

    def _round(self, t: int, needs: Tensor) -> list[Tick]:
        """The ticks of a round, as many as the longest list of blocks between two processes."""
        size = self.processes.size
        wanted = [needs[r, (r - t) % size].nonzero().flatten().tolist() for r in range(size)]
        ticks = max(map(len, wanted))
        receives, sends = (_spread(wanted[r], ticks) for r in (self.processes.rank, self.target(t)))
        return [Tick(t, *pair) for pair in zip(receives, sends, strict=True)]

    def source(self, t: int) -> int:
        """The process whose blocks come in round ``t``."""
        return (self.processes.rank - t) % self.processes.size

    def target(self, t: int) -> int:
        """The process that this one's blocks go to in round ``t``."""
        return (self.processes.rank + t) % self.processes.size

    @property
    def ticks(self) -> int:
        """The number of ticks."""
        return len(self._ticks)

    def schedule(
        self, pack: Callable[[int, Tensor], None], size: Callable[[Run], int], pieces: int
    ) -> Iterator[tuple[Tick | None, int, Tensor | None]]:
        """Yield ``(tick, block, bytes)`` for every tick, and ``(None, i, None)`` for pieces of the process's own work.

        ``pack(b, bytes)`` writes this process's block ``b``, ``size(run)`` is the number of its bytes. A tick in which
        nothing is received has no bytes.
        """
        if not self.ticks:
            yield from ((None, i, None) for i in range(pieces))
        buffers = _Buffers(self, size)
        following = self._begin(0, pack, buffers)
        for n, tick in enumerate(self._ticks):
            present, following = following, self._begin(n + 1, pack, buffers)
            yield from ((None, i, None) for i in range(n * pieces // self.ticks, (n + 1) * pieces // self.ticks))
            yield tick, tick.receives or 0, present.receive()
            present.finish()

    def _begin(self, n: int, pack: Callable[[int, Tensor], None], buffers: _Buffers) -> Exchange:
        if n >= self.ticks:
            return Exchange(self.processes, [], None, 0, None, 0)
        t, receives, sends = self._ticks[n]
        source = self.source(t)
        send = None if sends is None else buffers.take(n, "send", self.blocks[self.processes.rank][sends])
        receive = None if receives is None else buffers.take(n, "receive", self.blocks[source][receives])
        if send is not None and sends is not None:
            pack(sends, send)
        return self.processes.exchange(send, self.target(t), receive, source)

    def empty_message(self, n: int) -> Tensor:
        """Memory for a message of ``n`` bytes."""
        return torch.empty(n, dtype=torch.uint8, device=self.processes.device)


class _Buffers:
    """Memory for the messages of two ticks; tick ``n`` takes that of tick ``n - 2``, which is over."""

    def __init__(self, ring: Ring, size: Callable[[Run], int]) -> None:
        self._ring, self._size = ring, size
        self._buffers: dict[tuple[int, str], Tensor] = {}

    def take(self, n: int, way: str, run: Run) -> Tensor:
        """Return memory for the block of a run."""
        size = self._size(run)
        found = self._buffers.get((n % 2, way))
        if found is None or len(found) < size:
            found = self._buffers[n % 2, way] = self._ring.empty_message(size)
        return found[:size]


def _spread(blocks: list[int], ticks: int) -> list[int | None]:
    """Put blocks at even distances into so many ticks."""
    found: list[int | None] = [None] * ticks
    for i, b in enumerate(blocks):
        found[i * ticks // len(blocks)] = b
    return found


class ReturnPath:
    """Sends results for the blocks of other processes back to them, while the next block is computed.

    ``take(b, bytes)`` is called with the results for this process's block ``b``.
    """

    def __init__(self, ring: Ring, size: Callable[[Run], int], take: Callable[[int, Tensor], None]) -> None:
        self._ring, self._size, self._take = ring, size, take
        self._pending: tuple[int, Exchange] | None = None

    def step(self, tick: Tick, message: Tensor | None) -> None:
        """Send back the results for the block of a tick, and take those that have arrived for the own blocks."""
        ring = self._ring
        receive = None
        if tick.sends is not None:  # something comes back from where it was sent to
            receive = ring.empty_message(self._size(ring.blocks[ring.processes.rank][tick.sends]))
        self.finish()
        exchange = ring.processes.exchange(message, ring.source(tick.round), receive, ring.target(tick.round))
        self._pending = tick.sends or 0, exchange

    def finish(self) -> None:
        """Wait for the results that are still on their way, and take them."""
        if self._pending is None:
            return
        b, exchange = self._pending
        received = exchange.receive()
        if received is not None:
            self._take(b, received)
        exchange.finish()
        self._pending = None


def packed(tensors: Sequence[Tensor]) -> Tensor:
    """Return the bytes of tensors one after the other, each from an aligned place on."""
    size = sum(_aligned_size(x.numel() * x.itemsize) for x in tensors)
    out = torch.empty(size, dtype=torch.uint8, device=tensors[0].device)
    pack(tensors, out)
    return out


def pack(tensors: Sequence[Tensor], out: Tensor) -> None:
    """Write the bytes of tensors one after the other, each from an aligned place on."""
    first = 0
    for x in tensors:
        n = x.numel() * x.itemsize
        out[first : first + n].view(x.dtype).view(x.shape).copy_(x)
        first += _aligned_size(n)


def unpacked(message: Tensor, shapes: Sequence[tuple[Sequence[int], torch.dtype]]) -> list[Tensor]:
    """Return the tensors in a message, which share its memory."""
    found, first = [], 0
    for shape, dtype in shapes:
        n = packed_size([(shape, dtype)], aligned=False)
        found.append(message[first : first + n].view(dtype).view(*shape))
        first += _aligned_size(n)
    return found


def packed_size(shapes: Sequence[tuple[Sequence[int], torch.dtype]], aligned: bool = True) -> int:
    """Return the number of bytes in a message with such tensors."""
    total = 0
    for shape, dtype in shapes:
        n = int(torch.Size(shape).numel()) * dtype.itemsize
        total += _aligned_size(n) if aligned else n
    return total


def _aligned_size(n: int) -> int:
    return -(-n // _ALIGNED) * _ALIGNED
