"""The parts of ``limelight look`` that belong to a picture: heat over it, for a patch and for each written word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from limelight.lens.reading import Reading
from limelight.lens.record import Call, Record
from limelight.lens.word import find_word
from limelight.lens.word_maps import WordMaps, caption_maps
from limelight.matrix.flow import rollout
from limelight.matrix.grid import Grid
from limelight.viz.images import Panel, draw_over

_RESIDUAL = 0.5  # share of the residual connection in the rollout


def on_the_picture(reading: Reading) -> Reading:
    """Return the calls of a reading whose queries and keys are patches; all calls if there are none."""
    record = Record()
    for call in reading.record.log:
        if call.grids[0] is not None and call.grids[1] is not None:
            record.add(call)
    return replace(reading, record=record) if record.log else reading


def check_patch(reading: Reading, patch: tuple[int, int] | None) -> None:
    """Raise ``ValueError`` for a patch outside the picture."""
    if patch is not None:
        next(call.grids[1] for call in reading.record.log if call.grids[1] is not None).position(patch)


def described(reading: Reading) -> str:
    """Describe the tokens of a picture."""
    grid = next(call.grids[1] for call in reading.record.log if call.grids[1] is not None)
    special = f", after {', '.join(grid.before)}" if grid.before else ""
    assert reading.picture is not None
    height, width = reading.picture.shape[:2]
    return f"tokens: {grid.rows} × {grid.cols} patches of a picture of {height} × {width} pixels{special}"


def draw(reading: Reading, call: Call, head: int, patch: tuple[int, int] | None, console: Console) -> None:
    """Draw what a patch, or the first special token, attends to: through all layers, in one layer and in one head."""
    grid, lines, what = _lines(reading, call, head, patch)
    console.print(f"{call.name}, layer {call.layer}: {what}", style="bold")
    panels = [Panel(title, grid.heat(line), patch) for title, line in lines.items()]
    draw_over(panels, reading.picture, console)
    if "written" in reading.tokens and any(c.kind == "cross" for c in reading.record.log):
        console.print()
        draw_words(reading, console)


def draw_words(reading: Reading, console: Console, word: str | None = None) -> None:
    """Draw where a captioner looked while it wrote each word, or one of them."""
    if "written" not in reading.tokens:
        raise ValueError(f"{reading.model} writes no words; choose a patch with --patch ROW,COLUMN")
    maps = _words(reading)
    if word is not None and not find_word(maps.words, word):
        raise ValueError(f"there is no word {word!r}; words: {', '.join(maps.words)}")
    console.print("where it looked while it wrote each word", style="bold")
    maps.show(reading.picture, None if word is None else [word], on=console)


def _words(reading: Reading) -> WordMaps:
    return caption_maps(reading.record, reading.tokens["written"])


def _lines(
    reading: Reading, call: Call, head: int, patch: tuple[int, int] | None
) -> tuple[Grid, dict[str, Tensor], str]:
    """Return the grid, rows of weights by title, and the name of the token that they belong to."""
    grid = call.grids[1]
    if grid is None:
        raise ValueError(f"{call.name} does not look at the picture; choose another layer with --layer")
    A = call.weights
    own = call.grids[0] is not None
    with torch.no_grad():
        if not own or (patch is None and not grid.special):
            rows, what = A[0].float().mean(1), "the mean of all queries"
            return grid, {"mean of the heads": rows.mean(0), f"head {head}": rows[head]}, what
        at = next(iter(grid.special.values())) if patch is None else grid.position(patch)
        rows = A[0, :, at].float()
        layers = [c.weights for c in reading.record.log if c.grids == call.grids and c.shape[-2:] == call.shape[-2:]]
        lines = {"mean of the heads": rows.mean(0), f"head {head}": rows[head]}
        if len(layers) > 1:
            lines = {f"rollout, {len(layers)} layers": rollout(layers, [at], residual=_RESIDUAL)[0, 0].float(), **lines}
    return grid, lines, f"what {grid.names()[at]} looks at"


def as_dict(reading: Reading, call: Call, head: int, patch: tuple[int, int] | None) -> dict[str, Any]:
    """Return what ``--json`` prints of a picture."""
    grid, lines, what = _lines(reading, call, head, patch)
    assert reading.picture is not None
    found: dict[str, Any] = {
        "picture": {
            "pixels": list(reading.picture.shape[:2]),
            "rows": grid.rows,
            "cols": grid.cols,
            "before": list(grid.before),
        },
        "heat": {"of": what, **{title: grid.heat(line).tolist() for title, line in lines.items()}},
    }
    if "written" in reading.tokens and any(c.kind == "cross" for c in reading.record.log):
        maps = _words(reading)
        found["words"] = [
            {"word": word, "heat": heat.tolist()} for word, heat in zip(maps.words, maps.maps, strict=True)
        ]
    return found
