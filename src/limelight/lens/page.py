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

from limelight.lens.calls import Call
from limelight.lens.heads import Heads
from limelight.lens.reading import Reading
from limelight.matrix.statistics.pool import cells
from limelight.viz.characters import short

_CELLS = 160  # on a side; a longer text is pooled


def page(
    texts: Sequence[tuple[Reading, Heads]],
    chosen: tuple[Call, int],
    progress: Callable[[Sequence[Any]], Any] = iter,
) -> str:
    """The page as text, of some readings with the reports on their heads; it opens with the head ``chosen``."""
    groups: dict[str, dict[str, Any]] = {}
    opened = [0, 0, chosen[1]]
    calls = [(n, reading, report, call) for n, (reading, report) in enumerate(texts, 1) for call in reading.record.log]
    for n, reading, report, call in progress(calls):
        title = f"{n}. " * (len(texts) > 1) + f"{call.stack} {call.kind}-attention"
        if title not in groups:
            groups[title] = {"title": title, **_sides(reading, call), "layers": []}
        group = groups[title]
        if call is chosen[0]:
            opened[:2] = [list(groups).index(title), len(group["layers"])]
        labels = {row["head"]: row["label"] for row in report if row["module"] == call.name}
        heads = [{"number": h, "label": labels[h], **_packed(x)} for h, x in enumerate(_matrices(call))]
        group["layers"].append({"number": call.layer, "heads": heads})
    about = "; ".join(_about(reading) for reading, _ in texts[:3]) + "; …" * (len(texts) > 3)
    data = {"model": texts[0][0].model, "about": about, "groups": list(groups.values()), "chosen": opened}
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")  # nothing in it can end or begin a script
    template = files("limelight.lens").joinpath("page.html").read_text(encoding="utf-8")
    title = f"<title>limelight: {html.escape(texts[0][0].model)}</title>"
    return template.replace("<title>limelight</title>", title).replace("__DATA__", text)


def _about(reading: Reading) -> str:
    stacks = {call.stack for call in reading.record.log}
    sizes = {stack: len(tokens) for stack, tokens in reading.tokens.items() if stack in stacks}
    about = " and ".join(f"{n} tokens of the {stack}" for stack, n in sizes.items())
    if max(sizes.values()) > _CELLS:
        about += f", of which a cell is the mean of what it covers, at most {_CELLS} × {_CELLS} cells"
    return about


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
