"""Layouts: which positions of a sequence each process holds.

A layout is data. It turns a sequence of some length, or the numbers of tokens that the processes hold, into runs of
positions for each process; a run is a half-open range, and those of a process come in ascending order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from limelight.parallel.group import Processes


class Run(NamedTuple):
    """Positions ``begin ≤ p < end``."""

    begin: int
    end: int

    @property
    def length(self) -> int:
        """The number of positions."""
        return self.end - self.begin

    def split(self, most: int) -> list[Run]:
        """Cut into runs of at most ``most`` positions."""
        return [Run(x, min(x + most, self.end)) for x in range(self.begin, self.end, most)]


Runs = list[list[Run]]  # one list of runs for every process


class Layout:
    """Base of all layouts: which positions of a sequence each process holds, as runs in ascending order."""

    def cut(self, length: int, processes: int) -> Runs:
        """Return the positions of each of ``processes`` in a sequence of this length, as even as they can be."""
        raise NotImplementedError

    def runs(self, sizes: Sequence[int]) -> Runs:
        """Return the positions of each process where process ``r`` holds ``sizes[r]`` tokens."""
        raise NotImplementedError


@dataclass(frozen=True)
class Contiguous(Layout):
    """Process ``r`` holds one run of positions, after those of process ``r - 1``; any sizes, 0 among them.

    >>> Contiguous().cut(7, 2)
    [[Run(begin=0, end=3)], [Run(begin=3, end=7)]]
    """

    def cut(self, length: int, processes: int) -> Runs:
        bounds = [length * r // processes for r in range(processes + 1)]
        return self.runs([b - a for a, b in pairwise(bounds)])

    def runs(self, sizes: Sequence[int]) -> Runs:
        found, begin = [], 0
        for n in sizes:
            found.append([Run(begin, begin + n)] if n else [])
            begin += n
        return found


@dataclass(frozen=True)
class Zigzag(Layout):
    """Process ``r`` of ``P`` holds parts ``r`` and ``2P - 1 - r`` of ``2P`` equal parts of the sequence.

    Early queries of a causal text attend to few keys and late ones to many, so that every process has the same work.

    >>> Zigzag().cut(8, 2)
    [[Run(begin=0, end=2), Run(begin=6, end=8)], [Run(begin=2, end=6)]]
    """

    def cut(self, length: int, processes: int) -> Runs:
        parts = 2 * processes
        bounds = [length * part // parts for part in range(parts + 1)]
        runs = [Run(begin, end) for begin, end in pairwise(bounds)]
        return [_joined([runs[rank], runs[parts - 1 - rank]]) for rank in range(processes)]

    def runs(self, sizes: Sequence[int]) -> Runs:
        found = self.cut(sum(sizes), len(sizes))
        wanted = [sum(run.length for run in runs) for runs in found]
        if wanted != list(sizes):
            raise ValueError(
                f"Zigzag: the processes hold {list(sizes)} tokens, and {sum(sizes)} tokens over {len(sizes)} processes "
                f"are cut into {wanted}; cut the whole sequence with limelight.parallel.shard(x, Zigzag())"
            )
        return found


def _joined(runs: list[Run]) -> list[Run]:
    """Leave out empty runs, and join two that follow one another."""
    runs = [run for run in runs if run.length]
    if len(runs) == 2 and runs[0].end == runs[1].begin:
        return [Run(runs[0].begin, runs[1].end)]
    return runs


def positions_of(runs: list[Run]) -> Tensor:
    """Return the positions of runs one after the other."""
    return torch.cat([torch.arange(run.begin, run.end) for run in runs] or [torch.arange(0)])


def shard(x: Tensor, layout: Layout | None = None, dim: int = -2, group: Any = None) -> Tensor:
    """Return this process's part of a tensor that every process has whole.

    Args:
        x: the whole tensor, such as q ``(…, heads, tokens, width)``.
        layout: the positions that each process holds, ``Contiguous()`` unless given. Lengths that do not divide give
            parts that differ by one or two.
        dim: the axis of positions; that of q, k and v unless given.
        group: a ``ProcessGroup`` or a one-dimensional ``DeviceMesh``; the default group unless given.

    ::

        ids = parallel.shard(ids, parallel.Zigzag(), dim=1)  # (batch, tokens) → (batch, own tokens)

    """
    processes = Processes.of(group)
    runs = (layout or Contiguous()).cut(x.shape[dim], processes.size)[processes.rank]
    parts = [x.narrow(dim, run.begin, run.length) for run in runs]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim) if parts else x.narrow(dim, 0, 0)


def unshard(x: Tensor, layout: Layout | None = None, dim: int = -2, group: Any = None) -> Tensor:
    """Put the parts of all processes together, in order; the inverse of ``shard``.

    The arguments are those of ``shard``, with this process's part as ``x``.

    Every process gets the whole tensor. In a backward pass it counts once: each process takes its own part of the
    gradient that it has for the whole.
    """
    processes = Processes.of(group)
    sizes = [int(n) for n in processes.gather(torch.tensor([x.shape[dim]])).flatten()]
    runs = (layout or Contiguous()).runs(sizes)
    apply: Any = _Unshard.apply
    whole: Tensor = apply(x, processes, runs, dim)
    return whole


class _Unshard(torch.autograd.Function):
    """Gathers the parts; the gradient of a part is its part of the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, processes: Processes, runs: Runs, dim: int) -> Tensor:
        """Gather parts of different lengths and put them in order."""
        ctx.runs, ctx.dim = runs[processes.rank], dim
        parts = processes.gather_parts(x, [sum(run.length for run in own) for own in runs], dim)
        return assemble(parts, runs, dim)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Any, ...]:
        """Take this process's part."""
        parts = [dx.narrow(ctx.dim, run.begin, run.length) for run in ctx.runs]
        return torch.cat(parts, ctx.dim) if parts else dx.narrow(ctx.dim, 0, 0), None, None, None


def assemble(parts: Sequence[Tensor], runs: Runs, dim: int) -> Tensor:
    """Put the parts of all processes in the order of their positions."""
    pieces: list[tuple[int, Tensor]] = []
    for part, own in zip(parts, runs, strict=True):
        cut = part.split([run.length for run in own], dim) if own else []
        pieces += [(run.begin, x) for run, x in zip(own, cut, strict=True)]
    ordered = [x for _, x in sorted(pieces, key=lambda piece: piece[0])]
    return torch.cat(ordered, dim) if ordered else parts[0]
