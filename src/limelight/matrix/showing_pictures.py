"""Drawings of ``Weights`` over a picture whose patches are the queries or the keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limelight.core.checks import check_count
from limelight.matrix.grid import Grid

if TYPE_CHECKING:
    from limelight.matrix.base import Weights

Token = int | str | tuple[int, int]


def show_picture(
    A: Weights,
    image: Any,
    grid: Grid | None,
    *,
    query: Token | None,
    key: Token | None,
    head: int | None,
    batch: int | tuple[int, ...],
    on: Any,
) -> Any:
    """Draw weights over a picture, as ``Weights.show`` documents."""
    from limelight.viz.images import Panel, as_pixels, draw_over

    H, N, M = A.shape[-3:]
    if query is not None and key is not None:
        raise ValueError(f"show: query = {query!r} and key = {key!r}; give one of them")
    length = M if key is None else N
    grid = Grid.of_length(length) if grid is None else grid
    if len(grid) != length:
        side = "keys" if key is None else "queries"
        raise ValueError(f"show: {grid} has {len(grid)} tokens, and the matrix has {length} {side}")
    heads = None if head is None else check_count("show", "head", head, -H, H - 1) % H
    with torch.no_grad():
        lines, marked = _lines(A.select(batch, heads), grid, query, key)
    heat = grid.heat(lines.float().cpu())
    panels = [Panel(f"head {h if heads is None else heads}", x, marked) for h, x in enumerate(heat)]
    if heads is None and H > 1:
        panels.insert(0, Panel("mean of the heads", heat.mean(0), marked))
    return draw_over(panels, None if image is None else as_pixels(image), on)


def _lines(A: Weights, grid: Grid, query: Token | None, key: Token | None) -> tuple[Tensor, tuple[int, int] | None]:
    """Return rows, columns or mean rows ``(heads, tokens)``, and the patch that they belong to."""
    N, M = A.shape[-2:]
    if query is None and key is None:
        if N != M or not grid.special:
            return A.received() / N, None
        query = next(iter(grid.special.values()))
    token = query if key is None else key
    assert token is not None
    other = N if key is None else M  # tokens of the side that is chosen from
    if not isinstance(token, int) and other != len(grid):
        raise ValueError(
            f"show: {token!r} is a place of the picture, and this side has {other} other tokens: give a number"
        )
    at = grid.position(token) if other == len(grid) else check_count("show", "token", token, -other, other - 1) % other
    patch = at - grid.patches.start
    marked = divmod(patch, grid.cols) if other == len(grid) and 0 <= patch < grid.rows * grid.cols else None
    return (A[:, at] if key is None else A[:, :, at]), marked
