"""Matrices, tables and texts as HTML for notebooks: small, without scripts, for light and dark pages alike.

Colours are shades over whatever the page's background is: of one accent for positive numbers, of another for negative
ones. Text has the page's own colour.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_POSITIVE, _NEGATIVE = (201, 83, 28), (63, 127, 217)  # readable on white and on black
_SHOWN = 16  # rows and columns whose numbers are shown; larger matrices are pictures
_PICTURE = 512  # pixels of a picture that are stored on a side, at most
_WIDE = 320  # pixels of a picture on the screen
_ROWS = 60  # of a table
_FONT = "font: 13px/1.4 system-ui, sans-serif; font-variant-numeric: tabular-nums;"


def matrix_html(
    matrix: ArrayLike, rows: Sequence[str] | None = None, cols: Sequence[str] | None = None, title: str = ""
) -> str:
    """Return a matrix as a tinted table with its numbers, or as a picture where it is larger than 16 × 16.

    >>> html = matrix_html([[0.25, 0.75], [1.0, 0.0]], ["the", "<cat>"], ["a", "b"], "weights")
    >>> "&lt;cat&gt;" in html, "0.75" in html, "script" in html
    (True, True, False)
    """
    x = _two_dimensional("matrix_html", matrix)
    for name, names, n in (("rows", rows, x.shape[0]), ("cols", cols, x.shape[1])):
        if names is not None and len(names) != n:
            raise ValueError(f"matrix_html: {len(names)} names for {n} {name}")
    finite = x[np.isfinite(x)]
    largest = max(float(np.abs(finite).max()), 1e-30) if finite.size else 1.0
    if max(x.shape) <= _SHOWN:
        return _block(title, _numbers(x, rows, cols, largest))
    finite = np.nan_to_num(x, posinf=0.0, neginf=0.0)
    shade = np.sign(finite) * np.sqrt(np.abs(finite) / largest)
    return _block(title, _picture(shade), f"{x.shape[0]} × {x.shape[1]}, largest {largest:.3g}")


def side_by_side_html(parts: Sequence[str], title: str = "") -> str:
    """Return pieces of HTML in a row, which breaks where there is no room.

    >>> side_by_side_html(["<p>a</p>", "<p>b</p>"], "both").count("<p>")
    2
    """
    return _block(title, f'<div style="display: flex; flex-wrap: wrap; gap: 4px 22px">{"".join(parts)}</div>')


def text_html(text: str, below: str = "") -> str:
    """Return a text, and smaller ones below it.

    >>> "&lt;b&gt;" in text_html("<b>")
    True
    """
    return _block(text, "", below)


def table_html(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None, title: str = "") -> str:
    """Return rows as a table; of a long one, the first 60 rows.

    >>> table_html([{"head": 3, "entropy": 0.51234}]).count("<td")
    2
    """
    names = list(rows[0]) if columns is None and rows else list(columns or [])
    first = rows[0] if rows else {}
    head = "".join(
        f'<th style="text-align: {_side(first.get(n))}; padding: 1px 8px; opacity: .7">{escape(n)}</th>' for n in names
    )
    body = "".join(f"<tr>{''.join(_cell(row.get(n)) for n in names)}</tr>" for row in rows[:_ROWS])
    more = f"{len(rows) - _ROWS} more rows" if len(rows) > _ROWS else ""
    return _block(title, f'<table style="border-collapse: collapse"><tr>{head}</tr>{body}</table>', more)


def _side(value: Any) -> str:
    """Return the side to which a value is aligned: numbers to the right."""
    return "right" if isinstance(value, (int, float, np.number)) and not isinstance(value, bool) else "left"


def _cell(value: Any) -> str:
    text = "" if value is None else f"{value:.3g}" if isinstance(value, (float, np.floating)) else str(value)
    return f'<td style="text-align: {_side(value)}; padding: 1px 8px; white-space: nowrap">{escape(text)}</td>'


def _two_dimensional(function: str, values: ArrayLike) -> NDArray[np.float64]:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 2:
        raise ValueError(f"{function}: give a matrix (rows, cols), not an array of shape {x.shape}")
    return x


def _block(title: str, content: str, below: str = "") -> str:
    head = f'<div style="font-weight: 600; margin-bottom: 3px">{escape(title)}</div>' if title else ""
    foot = f'<div style="opacity: .7; margin-top: 3px">{escape(below)}</div>' if below else ""
    return f'<div style="{_FONT} margin: 4px 0; overflow-x: auto">{head}{content}{foot}</div>'


def _numbers(x: NDArray[np.float64], rows: Sequence[str] | None, cols: Sequence[str] | None, largest: float) -> str:
    def cell(v: float) -> str:
        r, g, b = _NEGATIVE if v < 0 else _POSITIVE
        text = "−∞" if v == -np.inf else "∞" if v == np.inf else f"{v:.2f}".replace("-", "−")
        alpha = 0.0 if not np.isfinite(v) else 0.6 * abs(v) / largest
        style = f"background: rgb({r} {g} {b} / {alpha:.2f}); padding: 2px 7px; text-align: right; border-radius: 3px"
        return f'<td style="{style}">{text}</td>'

    def names(given: Sequence[str] | None, n: int, side: str) -> list[str]:
        labels = [str(i) for i in range(n)] if given is None else given
        return [f'<th style="font-weight: 400; opacity: .7; text-align: {side}">{escape(str(t))}</th>' for t in labels]

    head = "".join(names(cols, x.shape[1], "center"))
    lines = (
        f"<tr>{name}{''.join(map(cell, line))}</tr>"
        for name, line in zip(names(rows, x.shape[0], "right"), x.tolist(), strict=True)
    )
    body = f"<tr><th></th>{head}</tr>{''.join(lines)}"
    return f'<table style="border-spacing: 2px; border-collapse: separate">{body}</table>'


def _picture(shade: NDArray[np.float64]) -> str:
    """Return shades from −1 to 1 as an image, a pixel for each or for several, of which it shows the darkest."""
    rows, cols = shade.shape
    if not rows or not cols:
        return "<div>empty</div>"
    step = -(-max(rows, cols) // _PICTURE)
    if step > 1:
        down, across = np.arange(0, rows, step), np.arange(0, cols, step)
        highest = np.maximum.reduceat(np.maximum.reduceat(shade, down, 0), across, 1)
        lowest = np.minimum.reduceat(np.minimum.reduceat(shade, down, 0), across, 1)
        shade = np.where(-lowest > highest, lowest, highest)
    wide = min(_WIDE, max(3 * cols, 24))
    high = max(1, round(wide * rows / cols))
    style = f"width: {wide}px; height: {high}px; image-rendering: pixelated; outline: 1px solid rgb(128 128 128 / .35)"
    source = base64.b64encode(_png(shade)).decode()
    return f'<img alt="{rows} × {cols} matrix" style="{style}" src="data:image/png;base64,{source}">'


def _png(shade: NDArray[np.float64]) -> bytes:
    """Return a PNG in the colour of each shade's sign, whose opacity is the shade."""
    pixels = np.empty((*shade.shape, 4), np.uint8)
    pixels[..., :3] = np.where(shade[..., None] < 0, _NEGATIVE, _POSITIVE)
    pixels[..., 3] = np.round(np.abs(shade).clip(0, 1) * 255)
    return encode_png(pixels)


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return a PNG of ``pixels (rows, cols, 3 or 4)``: RGB, or RGB and opacity."""
    rows, cols, channels = pixels.shape
    lines = np.concatenate([np.zeros((rows, 1), np.uint8), pixels.reshape(rows, -1)], 1)  # filter 0 before each line

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    kind = {3: 2, 4: 6}[channels]  # RGB, RGBA
    size = struct.pack(">IIBBBBB", cols, rows, 8, kind, 0, 0, 0)  # 8 bits a channel
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", size)
        + chunk(b"IDAT", zlib.compress(lines.tobytes()))
        + chunk(b"IEND", b"")
    )
