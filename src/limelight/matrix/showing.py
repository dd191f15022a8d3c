"""Drawings of ``Weights``: the matrix, or a pooled picture of it, handed to ``limelight.viz``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limelight.core.checks import check_count
from limelight.matrix.statistics.pool import REDUCTIONS, cells
from limelight.viz.characters import Picture, side_by_side

if TYPE_CHECKING:
    from limelight.matrix.base import Weights

_MAX_WEIGHTS = 2**22  # weights in memory at a time, for a picture
_HTML_HEADS, _HTML_CELLS = 4, 64  # heads that a notebook shows, and cells along a side of each


def show(
    A: Weights,
    tokens: Sequence[str] | None,
    keys: Sequence[str] | None,
    *,
    head: int | None,
    batch: int | tuple[int, ...],
    reduce: str,
    on: Any,
    numbers: bool = False,
) -> Any:
    """Draw the matrix, as ``Weights.show`` documents."""
    from limelight.viz.heatmaps import check_numbers, put, room

    *lead, H, N, M = A.shape
    if reduce not in REDUCTIONS:
        raise ValueError(f"show: reduce = {reduce!r}; there are 'mean' and 'max'")
    heads = range(H) if head is None else [check_count("show", "head", head, -H, H - 1) % H]
    tokens = _check_names("tokens", "queries", tokens, N)
    keys = _check_names("keys", "keys", keys, M) if keys is not None else tokens if N == M else None
    rows, cols = (min(n, most) for n, most in zip((N, M), room(on), strict=True))
    at = batch if isinstance(batch, tuple) else (batch,) * len(lead)
    if len(at) != len(lead) or 0 in A.shape:
        raise ValueError(f"show: batch = {batch!r} does not choose one matrix with heads of {A.shape}")
    if numbers:
        check_numbers(N, M)
    with torch.no_grad():
        chosen = _picture(A, at, head, (rows, cols), reduce)
    row_names, col_names = cell_names(tokens, N, rows), cell_names(keys, M, cols)
    return put([Picture(f"head {h}", x, row_names, col_names) for h, x in zip(heads, chosen, strict=True)], on, numbers)


def draw_small(A: Weights) -> str:
    """Draw the heads of the first batch element in characters, where they are few and small."""
    *lead, H, N, M = A.shape
    if N > 16 or H * (2 * M + 3) > 110 or 0 in A.shape:
        return ""
    first = (0,) * len(lead)
    with torch.no_grad():
        heads = A[first] if lead else A.dense()
    titles = [f"A[{', '.join(map(str, (*first, h)))}]" for h in range(H)]
    return "\n" + side_by_side([Picture(t, x, (), ()) for t, x in zip(titles, heads.cpu(), strict=True)])


def draw_html(A: Weights, described: str) -> str:
    """Draw the first heads of the first batch element for a notebook, where that is quick."""
    from limelight.viz.notebook import matrix_html, side_by_side_html, text_html

    *lead, H, N, M = A.shape
    if 0 in A.shape:
        return text_html(described)
    first, shown = (0,) * len(lead), min(H, _HTML_HEADS)
    if N * M * shown > _MAX_WEIGHTS:
        return text_html(described, "A.show() and limelight.explore(A) draw matrices of any size")
    size = min(N, _HTML_CELLS), min(M, _HTML_CELLS)
    with torch.no_grad():
        pictures = [_picture(A, first, h, size, "mean")[0] for h in range(shown)]
    titles = [f"A[{', '.join(map(str, (*first, h)))}]" for h in range(shown)]
    drawn = [matrix_html(x.numpy(), title=t) for x, t in zip(pictures, titles, strict=True)]
    more = [text_html("", f"and {H - shown} more heads")] if shown < H else []
    return side_by_side_html([*drawn, *more], described)


def cell_names(tokens: Sequence[str] | None, n: int, shown: int) -> list[str]:
    """Name the cells of an axis of ``n`` places: tokens, or positions, or the first position of each cell."""
    if shown == n:
        return [str(i) for i in range(n)] if tokens is None else [str(t) for t in tokens]
    return [str(int(i)) for i in cells(n, shown, torch.device("cpu"))[0]]


def _picture(A: Weights, batch: tuple[int, ...], head: int | None, shape: tuple[int, int], reduce: str) -> Tensor:
    """Return some heads ``(heads, rows, cols)``, pooled where they are too large for memory or for the drawing."""
    part = A.select(batch, head)
    heads, N, M = part.shape
    if heads * math.prod((N, M)) > _MAX_WEIGHTS:
        return part.pool(*shape, reduce).cpu()
    dense = part.dense()
    return (dense if shape == (N, M) else A.from_dense(dense).pool(*shape, reduce)).float().cpu()


def _check_names(name: str, axis: str, names: Sequence[str] | None, n: int) -> Sequence[str] | None:
    if names is not None and (isinstance(names, str) or not hasattr(names, "__len__")):
        raise TypeError(f"show: {name} must be a list of names, not {names!r}")
    if names is not None and len(names) != n:
        raise ValueError(f"show: {len(names)} names for {n} {axis} ({name}=…)")
    return names
