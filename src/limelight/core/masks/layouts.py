"""Masks made of square blocks: any layout, and random blocks."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from limelight.core.broadcasting import tensor_batch_and_heads
from limelight.core.dropout import philox
from limelight.core.masks.base import Lowered, Mask, positions
from limelight.core.masks.counts import check_whole
from limelight.core.spans import runs_of_true


@dataclass(frozen=True, eq=False, repr=False)
class Blocks(Mask):
    """``layout[position // block, key // block]``: any pattern of square blocks of ``block`` positions.

    Args:
        layout: booleans ``(rows, columns)``, with leading axes ``(batch, heads)`` where they differ. Both axes count
            positions from the first key, so there is a row and a column for every block of keys, and may be more.
            With fewer queries than keys, as in a cache, the queries use the rows of their positions.
        block: the number of positions along a side of a block, such as 64.

    >>> print(Blocks(torch.tensor([[True, False], [True, True]]), 2).dense(4).int())
    tensor([[1, 1, 0, 0],
            [1, 1, 0, 0],
            [1, 1, 1, 1],
            [1, 1, 1, 1]], dtype=torch.int32)

    """

    layout: Tensor
    block: int
    _runs: Tensor | None = field(init=False)  # (batch or 1, rows, count, 2) in blocks; None where heads differ

    def __post_init__(self) -> None:
        layout = self.layout
        if not isinstance(layout, Tensor) or layout.dtype != torch.bool:
            got = layout.dtype if isinstance(layout, Tensor) else type(layout).__name__
            raise TypeError(f"Blocks: the layout must be a boolean tensor, not {got}; True means attend")
        if layout.ndim < 2:
            raise ValueError(f"Blocks: the layout has shape {tuple(layout.shape)}; give (rows, columns) of blocks")
        object.__setattr__(self, "block", _check_block("Blocks", self.block))
        batch, heads = tensor_batch_and_heads(layout)
        rows = layout.reshape(batch, *layout.shape[-2:]).cpu() if heads == 1 else None
        object.__setattr__(self, "_runs", None if rows is None else runs_of_true(rows))

    def allows(self, i: Tensor, j: Tensor, N: int, M: int) -> Tensor:
        self._fit(M)
        p = positions(i, N, M)
        layout = self.layout.to(i.device)
        layout = layout.flatten(0, -4) if layout.ndim > 4 else layout
        return layout[..., p.clamp(min=0) // self.block, j // self.block] & (p >= 0)

    def lower(self, N: int, M: int) -> Lowered:
        self._fit(M)
        if self._runs is None:
            return Lowered(None, self.dense(N, M))
        return Lowered(spans_of_blocks(self._runs, self.block, N, M), None)

    def _fit(self, M: int) -> None:
        rows, columns = self.layout.shape[-2:]
        need = -(-M // self.block)
        if min(rows, columns) < need:
            raise ValueError(
                f"Blocks: a layout of {rows} × {columns} blocks of {self.block} does not cover {M} positions; "
                f"give at least {need} × {need}"
            )

    def batch_and_heads(self) -> tuple[int, int]:
        return tensor_batch_and_heads(self.layout)

    def __repr__(self) -> str:
        return f"Blocks(<{tuple(self.layout.shape)} bool>, {self.block})"

    def _extent(self) -> tuple[int, int]:
        n = min(self.layout.shape[-2:]) * self.block
        return n, n


@dataclass(frozen=True)
class RandomBlocks(Mask):
    """``count`` random blocks of keys for every block of queries, without repetition (Zaheer et al., 2020).

    Blocks are drawn among all blocks of the keys, from ``seed`` and their number alone. For a cache, whose number of
    keys grows, fix the layout for the longest text: ``Blocks(RandomBlocks(64, 3).layout(4096), 64)``.

    Args:
        block: the number of positions along a side of a block, such as 64.
        count: the number of blocks of keys that each block of queries sees; all of them where there are fewer.
        seed: the seed of the draws, 0 or more.

    >>> RandomBlocks(2, 1, seed=5).layout(8).sum(1)
    tensor([1, 1, 1, 1])

    """

    block: int
    count: int
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "block", _check_block("RandomBlocks", self.block))
        object.__setattr__(self, "count", check_whole("RandomBlocks", "count", self.count))
        object.__setattr__(self, "seed", check_whole("RandomBlocks", "seed", self.seed))

    def chosen(self, M: int) -> Tensor:
        """Return the numbers of the blocks of keys of every block of queries, ``(blocks, count)``, for ``M`` keys.

        Floyd's sampling: of the blocks up to ``last``, draw one, or take ``last`` where that was drawn before.
        """
        blocks = -(-M // self.block)
        rows, zero = torch.arange(blocks), torch.zeros((), dtype=torch.int64)
        chosen: list[Tensor] = []
        for last in range(max(blocks - self.count, 0), blocks):
            step = torch.full((), last, dtype=torch.int64)
            word = philox((rows, step, zero, zero), torch.full((), self.seed % 2**63, dtype=torch.int64))[0]
            drawn = word % (last + 1)
            repeated = torch.stack([drawn == x for x in chosen]).any(0) if chosen else torch.zeros_like(drawn) > 0
            chosen.append(torch.where(repeated, last, drawn))
        return torch.stack(chosen, 1) if chosen else rows.new_zeros(blocks, 0)

    def layout(self, M: int) -> Tensor:
        """Return the pattern for ``M`` keys as booleans ``(blocks, blocks)``, the layout of ``Blocks``."""
        chosen = self.chosen(M)
        empty = torch.zeros(len(chosen), len(chosen), dtype=torch.bool)
        return empty.scatter(1, chosen, True)

    def allows(self, i: Tensor, j: Tensor, N: int, M: int) -> Tensor:
        p = positions(i, N, M)
        chosen = self.chosen(M).to(i.device)[p.clamp(min=0) // self.block]  # (*shape of i, count)
        return (chosen == (j // self.block)[..., None]).any(-1) & (p >= 0)

    def lower(self, N: int, M: int) -> Lowered:
        chosen = self.chosen(M).sort(1).values
        if not chosen.numel():
            return Lowered(torch.full((1, N, 1, 2), M, dtype=torch.int32), None)
        return Lowered(spans_of_blocks(torch.stack([chosen, chosen + 1], -1)[None], self.block, N, M), None)

    def cache_key(self) -> Hashable | None:
        return RandomBlocks, self.block, self.count, self.seed

    def __repr__(self) -> str:
        return f"RandomBlocks({self.block}, {self.count}, seed={self.seed})"

    def _extent(self) -> tuple[int, int]:
        n = max(9, self.block * max(8, 2 * self.count))
        return n, n


def spans_of_blocks(block_runs: Tensor, block: int, N: int, M: int) -> Tensor:
    """Turn the runs of blocks ``(batch or 1, rows, count, 2)`` of each row into spans of keys for every query."""
    p = torch.arange(M - N, M)
    spans = (block_runs * block).clamp(max=M)[:, p.clamp(min=0) // block]
    return torch.where((p >= 0)[:, None, None], spans, M).to(torch.int32)


def _check_block(mask: str, value: object) -> int:
    block = check_whole(mask, "block", value)
    if block == 0:
        raise ValueError(f"{mask}: block = 0; give the number of positions along a side of a block, such as 64")
    return block
