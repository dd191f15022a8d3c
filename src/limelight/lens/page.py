"""One page with every layer and head, that needs nothing but a browser."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limelight.lens.heads import Heads
from limelight.lens.reading import Reading
from limelight.pictures import short
from limelight.questions import cells
from limelight.record import Call

_CELLS = 160  # on a side; a longer text is pooled


def page(
    reading: Reading, report: Heads, chosen: tuple[Call, int], progress: Callable[[Sequence[Any]], Any] = iter
) -> str:
    """The page as text; it opens with the head ``chosen``."""
    labels = {(row["module"], row["head"]): row["label"] for row in report}
    groups: dict[str, dict[str, Any]] = {}
    opened = [0, 0, chosen[1]]
    for call in progress(reading.record.log):
        title = f"{call.stack} {call.kind}-attention"
        if title not in groups:
            groups[title] = {"title": title, **_sides(reading, call), "layers": []}
        group = groups[title]
        if call is chosen[0]:
            opened[:2] = [list(groups).index(title), len(group["layers"])]
        matrices = _matrices(call)
        heads = [{"number": h, "label": labels[call.name, h], **_packed(x)} for h, x in enumerate(matrices)]
        group["layers"].append({"number": call.layer, "heads": heads})
    sizes = {
        stack: len(tokens)
        for stack, tokens in reading.tokens.items()
        if any(c.stack == stack for c in reading.record.log)
    }
    about = " and ".join(f"{n} tokens of the {stack}" for stack, n in sizes.items())
    if max(sizes.values()) > _CELLS:
        about += f"; a cell is the mean of the weights that it covers, at most {_CELLS} × {_CELLS} cells"
    data = {"model": reading.model, "about": about, "groups": list(groups.values()), "chosen": opened}
    # "</" would end the script that holds the data.
    text = json.dumps(data, ensure_ascii=False).replace("</", "<\\/")
    template = files("limelight.lens").joinpath("page.html").read_text(encoding="utf-8")
    named = template.replace("<title>limelight</title>", f"<title>limelight: {html.escape(reading.model)}</title>")
    return named.replace("__DATA__", text)


def _sides(reading: Reading, call: Call) -> dict[str, list[str]]:
    sides = {}
    for side, places, tokens in zip(("queries", "keys"), ("from", "to"), reading.names(call), strict=True):
        n = len(tokens)
        begin, end = cells(n, min(n, _CELLS), torch.device("cpu"))
        several = n > _CELLS
        spans = [f"{a}–{b - 1}" if several else str(a) for a, b in zip(begin.tolist(), end.tolist(), strict=True)]
        sides[side] = [short(tokens[a]) + ("…" if several else "") for a in begin.tolist()]
        sides[places] = spans
    return sides


def _matrices(call: Call) -> Tensor:
    """Every head ``(H, rows, cols)``."""
    _, _, N, M = call.shape
    with torch.no_grad():
        if max(N, M) > _CELLS:
            return call.weights.pool(min(N, _CELLS), min(M, _CELLS))[0].float()
        return call.weights[0].float()


def _packed(matrix: Tensor) -> dict[str, Any]:
    """Sixteen bits a cell, as a share of the largest."""
    largest = float(matrix.max())
    numbers = (matrix / max(largest, 1e-30) * 65535).round().numpy().astype("<u2")
    return {"max": largest, "cells": base64.b64encode(np.ascontiguousarray(numbers).tobytes()).decode()}
