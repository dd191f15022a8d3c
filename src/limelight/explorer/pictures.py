"""Pictures of a subject: the places of queries and keys on them, and the words of captions and prompts."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from limelight.lens import Call
from limelight.lens.word_maps import pieces_of_words
from limelight.matrix.grid import Grid
from limelight.viz.images import Pixels, as_pixels
from limelight.viz.notebook import encode_png

if TYPE_CHECKING:
    from limelight.explorer.subject import Matrix

_SIDE = 512  # pixels of a side in a page, at most


def pictures_of(image: Any) -> list[Pixels]:
    """Return a picture, or several, as pixels."""
    if image is None:
        return []
    return [as_pixels(one) for one in (image if isinstance(image, (list, tuple)) else [image])]


def on_picture(call: Call, grid: Grid | None, square: bool) -> Call:
    """Return a call with the grids of its queries and keys: a given one where it fits, or a square where wanted."""
    *_, N, M = call.shape
    if grid is None and square and call.grids == (None, None):
        grid = Grid.of_length(M)
    if grid is None:
        return call
    keys = grid if len(grid) == M else None
    queries = grid if len(grid) == N and (call.kind == "self" or keys is None) else None
    return replace(call, grids=(queries, keys))


def check_pictures(pictures: Sequence[Pixels], matrices: Sequence[Matrix]) -> list[Pixels]:
    """Return the pictures; raises ``ValueError`` where they are not one for all, or for each batch element."""
    if not pictures:
        return []
    if all(m.call.grids == (None, None) for m in matrices):
        raise ValueError("explore: no queries or keys are known to be patches of the picture; give grid=Grid(…)")
    most = max(m.B for m in matrices)
    if len(pictures) not in (1, most):
        raise ValueError(f"explore: {len(pictures)} pictures for {most} batch elements; give one for each, or one")
    return list(pictures)


def described_grid(grid: Grid | None) -> dict[str, int] | None:
    """Describe a grid for the page: rows, columns, and the position of the first patch."""
    return None if grid is None else {"rows": grid.rows, "cols": grid.cols, "first": grid.patches.start}


def words_of(calls: Sequence[dict[str, Any]], texts: Sequence[Sequence[str]]) -> dict[int, list[tuple[str, list[int]]]]:
    """Return the words of texts that attend to a picture, with the positions of their pieces, by text."""
    with_picture = {
        text
        for call in calls
        for side, grid in enumerate(call["grids"])
        for text in (pair[side] for pair in call["texts"])
        if grid is None and call["grids"][1 - side] is not None and text is not None
    }
    return {text: pieces_of_words(texts[text]) for text in sorted(with_picture)}


def data_url(pixels: Pixels) -> str:
    """Return a picture as a data URL, made smaller where it is large."""
    scale = _SIDE / max(pixels.shape[:2])
    if scale < 1:
        size = [max(1, round(n * scale)) for n in pixels.shape[:2]]
        x = torch.from_numpy(pixels).permute(2, 0, 1)[None].float()
        small = torch.nn.functional.interpolate(x, size, mode="area")[0].permute(1, 2, 0)
        pixels = small.round().to(torch.uint8).numpy()
    return f"data:image/png;base64,{base64.b64encode(encode_png(np.ascontiguousarray(pixels))).decode()}"
