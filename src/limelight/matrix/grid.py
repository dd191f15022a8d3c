"""Grids: queries or keys that are the patches of a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from limelight.core.checks import check_count


@dataclass(frozen=True)
class Grid:
    """The patches of a picture in a sequence of tokens: row after row, with other tokens before and after them.

    Args:
        rows: rows of patches.
        cols: columns of patches.
        before: names of the tokens before the patches, such as ``("class",)``.
        after: names of the tokens after the patches.

    >>> grid = Grid(2, 3, before=("class",))
    >>> len(grid), grid.position("class"), grid.position((1, 0))
    (7, 0, 4)
    >>> grid.names()
    ['[class]', '0,0', '0,1', '0,2', '1,0', '1,1', '1,2']

    """

    rows: int
    cols: int
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("rows", "cols"):
            check_count("Grid", name, getattr(self, name), 1, 2**20)
        for name in ("before", "after"):
            given = getattr(self, name)
            if isinstance(given, str) or not all(isinstance(x, str) for x in given):
                raise TypeError(f"Grid: {name} = {given!r} must be names of tokens, such as ('class',)")
            object.__setattr__(self, name, tuple(given))

    @staticmethod
    def of_length(length: int) -> Grid:
        """Return the square grid of ``length`` tokens, with a class token before it where one is left over.

        >>> Grid.of_length(197)
        Grid(rows=14, cols=14, before=('class',), after=())
        """
        for before in ((), ("class",)):
            side = math.isqrt(max(length - len(before), 0))
            if side and side * side + len(before) == length:
                return Grid(side, side, before)
        raise ValueError(
            f"{length} tokens are neither a square of patches nor one with a class token; say how they lie with "
            "grid=limelight.lens.Grid(rows, cols, before=('class', …))"
        )

    def __len__(self) -> int:
        return len(self.before) + self.rows * self.cols + len(self.after)

    @property
    def patches(self) -> slice:
        """The positions of the patches in the sequence."""
        first = len(self.before)
        return slice(first, first + self.rows * self.cols)

    @property
    def special(self) -> dict[str, int]:
        """The positions of the tokens that are not patches, by name."""
        last = self.patches.stop
        return {name: n for n, name in [*enumerate(self.before), *enumerate(self.after, last)]}

    def position(self, token: int | str | Sequence[int]) -> int:
        """Return the position of a patch ``(row, column)``, of a special token by name, or of a number."""
        if isinstance(token, str):
            if token not in self.special:
                known = ", ".join(map(repr, self.special)) or "none"
                raise ValueError(
                    f"the picture has no token {token!r}; special tokens: {known}; a patch is (row, column)"
                )
            return self.special[token]
        if isinstance(token, int):
            return check_count("Grid", "token", token, -len(self), len(self) - 1) % len(self)
        if len(token) != 2:
            raise ValueError(f"a patch is (row, column), not {token!r}")
        row = check_count("Grid", "row", token[0], 0, self.rows - 1)
        return len(self.before) + row * self.cols + check_count("Grid", "column", token[1], 0, self.cols - 1)

    def names(self) -> list[str]:
        """Return a name for every token: ``"row,column"`` of patches, and ``"[class]"`` of special ones."""
        patches = [f"{row},{col}" for row in range(self.rows) for col in range(self.cols)]
        return [*(f"[{name}]" for name in self.before), *patches, *(f"[{name}]" for name in self.after)]

    def heat(self, weights: Tensor) -> Tensor:
        """Return weights ``(…, tokens)`` of the whole sequence as a picture of the patches, ``(…, rows, cols)``."""
        if weights.shape[-1] != len(self):
            raise ValueError(f"{weights.shape[-1]} tokens do not fit {self}, which has {len(self)}")
        heat: Tensor = weights[..., self.patches].unflatten(-1, (self.rows, self.cols))
        return heat
