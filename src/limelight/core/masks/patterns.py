"""The attention patterns of the literature side by side, and what each costs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from limelight.core.masks.base import Mask
from limelight.core.masks.counts import check_whole
from limelight.core.masks.data import Documents
from limelight.core.masks.layouts import RandomBlocks
from limelight.core.masks.positional import Causal, First, Prefix, Window
from limelight.core.masks.sparse import Dilated, Global, Strided

_LARGEST = 64  # queries of a drawing
_ACROSS = 100  # characters of a line of drawings


@dataclass(frozen=True)
class NamedPattern:
    """A mask, its name, and how many of its query–key pairs are computed."""

    name: str
    mask: Mask | None
    n: int

    @property
    def pairs(self) -> int:
        """The number of allowed pairs of ``n`` queries and keys."""
        return int(self._allowed().sum())

    def _allowed(self) -> torch.Tensor:
        everything = torch.ones(self.n, self.n, dtype=torch.bool)
        return everything if self.mask is None else self.mask.dense(self.n).reshape(self.n, self.n)

    def lines(self) -> list[str]:
        """Return the drawing: the name, the mask, a row for each query, and the cost."""
        rows = (" ".join("■" if x else "·" for x in row) for row in self._allowed().tolist())
        share = self.pairs / self.n**2
        return [self.name, "" if self.mask is None else repr(self.mask), *rows, f"{self.pairs} pairs, {share:.0%}"]


class Patterns(list[NamedPattern]):
    """Patterns of one length; ``print`` draws them side by side."""

    def __str__(self) -> str:
        groups: list[list[list[str]]] = [[]]
        for pattern in self:
            lines = pattern.lines()
            width = max(map(len, lines)) + 4
            if groups[-1] and sum(len(block[0]) for block in groups[-1]) + width > _ACROSS:
                groups.append([])
            groups[-1].append([line.ljust(width) for line in lines])
        drawn = ["\n".join("".join(row).rstrip() for row in zip(*group, strict=True)) for group in groups]
        return "\n\n".join(drawn)

    __repr__ = __str__


def patterns(n: int = 12) -> Patterns:
    """Return the usual attention patterns for ``n`` tokens: ``print`` draws them and says what each costs.

    What a mask forbids is not computed, so that the cost of a pattern is the number of its pairs.

    Args:
        n: the number of tokens, from 1 to 64.

    Returns:
        A list of patterns with ``name``, ``mask`` (None for full attention) and ``pairs``.

    >>> print(patterns(4)[1].pairs)
    10

    """
    n = check_whole("patterns", "n", n)
    if not 1 <= n <= _LARGEST:
        raise ValueError(f"patterns: n = {n}; there is room for 1 to {_LARGEST} tokens")
    reach = max(1, n // 6)
    third = max(1, n // 3)
    ids = torch.arange(n) // third
    masks: dict[str, Mask | None] = {
        "full": None,
        "causal": Causal(),
        "local": Window(reach),
        "causal, local": Causal() & Window(reach),
        "with sinks": Causal() & (Window(reach) | First(1)),
        "prefix": Prefix(third),
        "documents": Documents(ids),
        "causal documents": Causal() & Documents(ids),
        "global tokens": Window(reach) | Global([0]),
        "strided": Causal() & (Window(reach) | Strided(third)),
        "dilated": Dilated(reach, 2),
        "random blocks": Window(reach) | Global([0]) | RandomBlocks(max(1, n // 6), 1),
    }
    return Patterns(NamedPattern(name, mask, n) for name, mask in masks.items())
