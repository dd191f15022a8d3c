"""The explorer as one file that holds every head, pooled where the matrices are large."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from limelight.explorer.bundle import bundle
from limelight.explorer.front import FRONT
from limelight.explorer.head import Head
from limelight.explorer.rooms.text import expected
from limelight.explorer.subject import Subject
from limelight.lens import Record
from limelight.lens.reading import Reading
from limelight.matrix.base import Weights
from limelight.matrix.grid import Grid

_LIMIT = 10 * 10**6  # bytes of a file, at most
_SIDES = (1024, 512, 256, 128, 64, 32, 16)  # cells of a head, at most, along its longer side
_MASKED = 65535
_BYTES = 2 * 4 / 3  # bytes of a cell: 16 bits in base64
_PREDICTED = 256  # last tokens of a text whose predictions are in the file
_DESCRIBED = 800  # bytes of a head's measures and names, at most


def save_page(
    given: Weights | Record | Reading | Sequence[Reading] | Subject,
    path: str | Path,
    tokens: Any = None,
    *,
    image: Any = None,
    grid: Grid | None = None,
    title: str | None = None,
    opens: tuple[int, int] | None = None,
    progress: Callable[[Sequence[Any]], Iterable[Any]] = iter,
) -> None:
    """Write a page with every layer and head into one file that needs nothing but a browser.

    A file has at most 10 MB: where the matrices are larger, a cell stands for several weights, and the page says so.

    Args:
        given: some weights, what ``watch`` recorded, or a reading.
        path: where the file goes.
        tokens: names for queries and keys, as ``explore`` takes them.
        image: the picture whose patches are queries or keys, as ``explore`` takes it.
        grid: how the patches lie, where the record does not know it.
        title: the name of the model.
        opens: number of the call and of the head that the page opens with.
        progress: iterates over the heads, for instance with a bar.

    """
    subject = given if isinstance(given, Subject) else Subject.of(given, tokens, title, image, grid)
    Path(path).write_text(page(subject, opens, progress), encoding="utf-8")


def page(
    subject: Subject,
    opens: tuple[int, int] | None = None,
    progress: Callable[[Sequence[Any]], Iterable[Any]] = iter,
) -> str:
    """Return the page as text."""
    about = subject.about()
    if opens is not None:
        about["opens"] = opens
    script, style = bundle("saved.js"), (FRONT / "style.css").read_text(encoding="utf-8")
    side, both = _fitting(subject, _LIMIT - len(_json(about).encode()) - len(script.encode()) - len(style.encode()))
    reports = [[_short(row) for row in subject.report(matrix.number)] for matrix in subject.matrices]
    levels = [_level(matrix.N, matrix.M, side) for matrix in subject.matrices]
    for call, level in zip(about["calls"], levels, strict=True):
        call["finest"] = level
    about["translates"] = about["reads"] = False
    about["reduces"] = ["mean", "max"] if both or not any(levels) else ["mean"]
    about["note"] = " ".join(filter(None, [about["note"], _pooled_note(levels)]))
    names = [
        (matrix.number, batch, head)
        for matrix in subject.matrices
        for batch in range(matrix.B)
        for head in range(matrix.H)
    ]
    heads, strips = {}, {}
    for call, batch, number in progress(names):
        head, level, key = subject.head(call, batch, number), levels[call], f"{call}/{batch}/{number}"
        heads[key] = {"level": level, "mean": _packed(_cells(head, level, "mean"))}
        if both and level:
            heads[key]["max"] = _packed(_cells(head, level, "max"))
        strips[key] = {n: _floats(_pooled(x, level, n)) for n, x in head.strips().items()}
    data = {"about": about, "reports": reports, "heads": heads, "strips": strips, "next": _next_tokens(subject, about)}
    return _assembled(subject.title, script, style, _json(data))


def _fitting(subject: Subject, room: int) -> tuple[int, bool]:
    """Return how many cells a side may have, and whether both mean and max of each cell fit into the file."""
    for side in _SIDES:
        for both in (True, False):
            total = 0.0
            for m in subject.matrices:
                level = _level(m.N, m.M, side)
                rows, cols = -(-m.N // 2**level), -(-m.M // 2**level)
                cells = rows * cols * (2 if both and level else 1)
                total += m.B * m.H * (cells * _BYTES + (rows + cols + 129) * 16 / 3 + _DESCRIBED)
            if total <= room:
                return side, both
    raise ValueError(
        f"{sum(m.B * m.H for m in subject.matrices)} heads are more than a page of {_LIMIT // 10**6} MB can hold; "
        "record fewer layers, or use limelight explore, which has no limit"
    )


def _next_tokens(subject: Subject, about: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Return the predictions after the last tokens of each decoder's text, and add their place to its calls."""
    found = list({id(m.next_tokens): m.next_tokens for m in subject.matrices if m.next_tokens is not None}.values())
    firsts = [max(one.first, one.end - _PREDICTED) for one in found]
    for m, call in zip(subject.matrices, about["calls"], strict=True):
        if m.next_tokens is not None:
            call["text"] = found.index(m.next_tokens)
            call["predicts"] = firsts[call["text"]]
    return [[expected(one, n) for n in range(first, one.end)] for one, first in zip(found, firsts, strict=True)]


def _level(N: int, M: int, side: int) -> int:
    level = 0
    while -(-max(N, M) // 2**level) > side:
        level += 1
    return level


def _pooled_note(levels: Sequence[int]) -> str:
    if not any(levels):
        return ""
    cell = 2 ** max(levels)
    return f"This file holds cells of up to {cell} × {cell} weights; limelight explore shows every one."


def _cells(head: Head, level: int, reduce: str) -> NDArray[np.float32]:
    return head.level(level, reduce)


def _packed(cells: NDArray[np.float32]) -> dict[str, Any]:
    """Return sixteen bits a cell: the square root of its share of the largest, and 65535 where it is masked."""
    top = max(float(cells.max()), 1e-30)
    share = np.sqrt(np.clip(cells, 0, None).astype(np.float64) / top)
    numbers = np.where(cells < 0, _MASKED, np.round(share * (_MASKED - 1))).astype("<u2")
    return {"top": top, "cells": base64.b64encode(numbers.tobytes()).decode()}


def _pooled(strip: NDArray[np.float32], level: int, name: str) -> NDArray[np.float32]:
    """Return the mean of a strip over the places of each cell; the profile by distance has no cells."""
    if level == 0 or name == "profile":
        return strip
    begin = np.arange(0, len(strip), 2**level)
    sizes = np.minimum(2**level, len(strip) - begin)
    means: NDArray[np.float32] = (np.add.reduceat(strip.astype(np.float64), begin) / sizes).astype(np.float32)
    return means


def _floats(x: NDArray[np.float32]) -> str:
    return base64.b64encode(x.astype("<f4").tobytes()).decode()


def _short(row: dict[str, Any]) -> dict[str, Any]:
    return {name: float(f"{x:.5g}") if isinstance(x, float) else x for name, x in row.items()}


def _json(data: Any) -> str:
    """Return JSON without character sequences that begin or end a script in HTML."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _assembled(title: str, script: str, style: str, data: str) -> str:
    def hashed(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    policy = (
        f"default-src 'none'; script-src {hashed(script)}; style-src {hashed(style)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)} · limelight</title>\n<style>{style}</style>\n</head>\n<body>\n"
        '<div class="limelight page" id="limelight"><p class="starting">Reading…</p></div>\n'
        f'<script type="application/json" id="limelight-data">{data}</script>\n'
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )
