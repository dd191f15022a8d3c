"""The page: every layer and head of some readings in one HTML file that needs nothing but a browser."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limelight.lens import strict_json
from limelight.lens.reading import Reading
from limelight.lens.record import Call
from limelight.lens.report import Heads
from limelight.matrix.statistics.pool import cells
from limelight.viz.characters import short

_MAX_CELLS = 160  # on a side of a picture; a longer text is pooled
_MAX_BYTES = 7_000_000  # of all pictures together, so that the page stays below 10 MB
_MAX_HEADS = 20_000  # on the page, all texts together
_CELL_BYTES = 2 * 4 / 3  # 16 bits, in base64


def page(
    texts: Sequence[tuple[Reading, Heads]],
    chosen: tuple[Call, int],
    progress: Callable[[Sequence[Any]], Any] = iter,
) -> str:
    """Return the page as HTML.

    Args:
        texts: readings, each with the report on its heads.
        chosen: the call and head that the page opens with.
        progress: wraps the list of calls while they are worked through.

    """
    shown = _that_fit(texts)
    side = _side([call for reading, _ in shown for call in reading.record.log])
    groups: dict[str, dict[str, Any]] = {}
    opened = [0, 0, chosen[1]]
    calls = [(n, reading, report, call) for n, (reading, report) in enumerate(shown, 1) for call in reading.record.log]
    for n, reading, report, call in progress(calls):
        title = f"{n}. " * (len(shown) > 1) + f"{call.stack} {call.kind}-attention"
        if title not in groups:
            groups[title] = {"title": title, **_axes(reading, call, side), "layers": []}
        group = groups[title]
        if call is chosen[0]:
            opened[:2] = [list(groups).index(title), len(group["layers"])]
        labels = {row["head"]: row["label"] for row in report if row["module"] == call.name}
        heads = [{"number": h, "label": labels[h], **_packed(x)} for h, x in enumerate(_matrices(call, side))]
        group["layers"].append({"number": call.layer, "heads": heads})
    about = "; ".join(_about(reading, side) for reading, _ in shown[:3]) + "; …" * (len(shown) > 3)
    if len(shown) < len(texts):
        about += f"; the first {len(shown)} of {len(texts)} texts"
    data = {"model": shown[0][0].model, "about": about, "groups": list(groups.values()), "chosen": opened}
    # No "<" in the data can end the script element or begin a comment.
    text = strict_json.dumps(data).replace("<", "\\u003c")
    title = f"<title>limelight: {html.escape(shown[0][0].model)}</title>"
    before, after = _template().split("__DATA__")  # the data is never searched for the placeholder
    return before.replace("<title>limelight</title>", title) + text + after


def _template() -> str:
    return files("limelight.lens").joinpath("page.html").read_text(encoding="utf-8")


def _that_fit(texts: Sequence[tuple[Reading, Heads]]) -> Sequence[tuple[Reading, Heads]]:
    """Return the first texts, at least one, that have no more heads than a page can hold."""
    heads = 0
    for n, (reading, _) in enumerate(texts):
        heads += sum(call.shape[1] for call in reading.record.log)
        if n and heads > _MAX_HEADS:
            return texts[:n]
    return texts


def _side(calls: Sequence[Call]) -> int:
    """Return the largest number of cells on a side with which all pictures together fit on a page."""
    for side in range(_MAX_CELLS, 4, -4):
        size = sum(call.shape[1] * min(call.shape[2], side) * min(call.shape[3], side) for call in calls)
        if size * _CELL_BYTES <= _MAX_BYTES:
            return side
    return 4


def _about(reading: Reading, side: int) -> str:
    stacks = {call.stack for call in reading.record.log}
    sizes = {stack: len(tokens) for stack, tokens in reading.tokens.items() if stack in stacks}
    about = " and ".join(f"{n} tokens of the {stack}" for stack, n in sizes.items())
    if max(sizes.values()) > side:
        about += f", pooled to at most {side} × {side} cells, each the mean of the weights that it covers"
    return about


def _axes(reading: Reading, call: Call, side: int) -> dict[str, list[str]]:
    """Return the labels of queries and keys, and the ranges of positions ``from`` and ``to`` that each covers."""
    axes = {}
    for axis, ranges, tokens in zip(("queries", "keys"), ("from", "to"), reading.names(call), strict=True):
        n = len(tokens)
        begin, end = cells(n, min(n, side), torch.device("cpu"))
        pooled = n > side
        axes[axis] = [short(tokens[a]) + ("…" if pooled else "") for a in begin.tolist()]
        axes[ranges] = [f"{a}–{b - 1}" if pooled else str(a) for a, b in zip(begin.tolist(), end.tolist(), strict=True)]
    return axes


def _matrices(call: Call, side: int) -> Tensor:
    """Return the pictures of all heads, ``(H, rows, cols)``."""
    _, _, N, M = call.shape
    with torch.no_grad():
        if max(N, M) > side:
            return call.weights.pool(min(N, side), min(M, side))[0].float()
        return call.weights[0].float()


def _packed(matrix: Tensor) -> dict[str, Any]:
    """Return the largest weight, and every weight as 16 bits of it, in base64; NaN counts as 0."""
    matrix = matrix.nan_to_num()
    largest = float(matrix.max())
    shares = (matrix / max(largest, 1e-30) * 65535).round().numpy().astype("<u2")
    return {"max": largest, "cells": base64.b64encode(np.ascontiguousarray(shares).tobytes()).decode()}
