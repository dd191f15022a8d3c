"""Heatmaps: in characters for a terminal, and as figures of matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.text import Text

from limelight.backends.statistics import REDUCE, cells
from limelight.core.problem import check_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from limelight.matrix.lazy import Weights

_SHADES = " ·░▒▓█"  # nothing at all, little, and four quarters of the largest
_COLOURS = ("", "#51127c", "#b73779", "#e75263", "#fc8961", "#fcb93d")
_LONGEST = 14  # characters of a token
_FEW = 48 * 48  # cells of a figure, each of which is to be told from the others


@dataclass(frozen=True)
class Picture:
    """A matrix to be shown, with what its rows and columns are called."""

    title: str
    matrix: Tensor  # (rows, cols)
    rows: Sequence[str]
    cols: Sequence[str]


def names_of(tokens: Sequence[str] | None, n: int, shown: int) -> list[str]:
    """What to call the cells of an axis of ``n`` places: tokens, or positions, or the first position of each cell."""
    if shown == n:
        return [str(i) for i in range(n)] if tokens is None else [str(t) for t in tokens]
    return [str(int(i)) for i in cells(n, shown, torch.device("cpu"))[0]]


def _shade(x: float, largest: float) -> tuple[str, str]:
    """The two characters of a number, and their colour."""
    if x != x:
        return "??", ""
    level = 0 if x <= 0 else 1 + min(4, int(4 * x / largest + 0.5))
    return 2 * _SHADES[level], _COLOURS[level]


def shades(matrix: Tensor) -> list[str]:
    """Each row in characters, two for a number: █ for the largest, blank for 0, ? for what is no number."""
    top = _largest(matrix)
    return ["".join(_shade(x, top)[0] for x in row) for row in matrix.tolist()]


def _largest(matrix: Tensor) -> float:
    finite = matrix[matrix.isfinite()]
    return max(float(finite.max()), 1e-30) if finite.numel() else 1.0


def side_by_side(pictures: Sequence[Picture]) -> str:
    """Small matrices beside each other, each under its title."""
    blocks = []
    for p in pictures:
        lines = [p.title, *shades(p.matrix)]
        width = max(map(len, lines))
        blocks.append([line.ljust(width) for line in lines])
    return "\n".join("   ".join(row).rstrip() for row in zip(*blocks, strict=True))


def heatmap(picture: Picture) -> Text:
    """With the names of the rows at the left and those of the columns on top, letter below letter."""
    rows, cols = ([short(name) for name in names] for names in (picture.rows, picture.cols))
    margin = max(map(len, rows), default=0)
    height = max(map(len, cols), default=0)
    text = Text(f"{picture.title}\n", style="bold", no_wrap=True, end="")
    for line in range(height):
        letters = (name.rjust(height)[line] for name in cols)
        text.append(f"{'':{margin}} {''.join(f'{c} ' for c in letters)}".rstrip() + "\n", "not bold")
    largest = _largest(picture.matrix)
    for name, numbers in zip(rows, picture.matrix.tolist(), strict=True):
        text.append(f"{name:>{margin}} ", "not bold")
        while numbers and numbers[-1] == 0:
            numbers.pop()
        for x in numbers:
            characters, colour = _shade(x, largest)
            text.append(characters, f"not bold {colour}")
        text.append("\n")
    text.append(f"{'':{margin}} █ {largest:.3g}\n", "not bold dim")
    return text


def short(name: str) -> str:
    """A token in a few characters that can be seen."""
    name = name.replace("\n", "↵").replace("\t", "⇥") or "∅"
    name = "".join(c if c.isprintable() else "�" for c in name)
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"


def print_heatmaps(pictures: Sequence[Picture], console: Console) -> None:
    for p in pictures:
        console.print(heatmap(p), soft_wrap=True)


def figure_of(pictures: Sequence[Picture]) -> Figure:
    """One figure, a heatmap for each picture."""
    need_matplotlib()
    from matplotlib.figure import Figure

    cols = math.ceil(math.sqrt(len(pictures)))
    lines = math.ceil(len(pictures) / cols)
    figure = Figure(figsize=(1 + 3.6 * cols, 0.6 + 3.4 * lines), layout="constrained")
    axes = figure.subplots(lines, cols, squeeze=False).flat
    for axis, picture in zip(axes, pictures, strict=False):
        draw(picture, axis)
    for axis in axes[len(pictures) :]:
        axis.set_axis_off()
    return figure


def draw(picture: Picture, axis: Axes) -> None:
    """On axes that somebody has. Colours follow the square root; in a large picture, a few cells may saturate."""
    from matplotlib.colors import PowerNorm

    x = picture.matrix.float()
    large = x.numel() > _FEW
    brightest = float(x.nan_to_num().flatten().quantile(0.999)) if large else _largest(x)
    norm = PowerNorm(0.5, vmin=0, vmax=brightest or 1.0)
    image = axis.imshow(x.numpy(), cmap="magma", interpolation="nearest", aspect="auto", norm=norm)
    axis.figure.colorbar(image, ax=axis, shrink=0.8, extend="max" if large else "neither")
    axis.set_title(picture.title, fontsize=10)
    for which, names in (("x", picture.cols), ("y", picture.rows)):
        step = max(1, math.ceil(len(names) / (16 if large else 48)))
        ticks = range(0, len(names), step)
        rotation = 90 if which == "x" and max(map(len, names), default=0) > 2 else 0
        getattr(axis, f"set_{which}ticks")(
            ticks, [short(names[i]).replace("$", r"\$") for i in ticks], fontsize=7, rotation=rotation
        )
    axis.set_xlabel("keys", fontsize=8)
    axis.set_ylabel("queries", fontsize=8)


def room(on: Any) -> tuple[int, int]:
    """How many rows and columns there is room for."""
    if on == "terminal" or isinstance(on, Console):
        width = (on if isinstance(on, Console) else Console()).width
        return 48, min(48, max(8, (width - _LONGEST - 2) // 2))
    return 512, 512


def need_matplotlib() -> None:
    """An error that says what to do, where it is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ImportError("a figure needs matplotlib: pip install 'limelight[plot]'") from None


def put(pictures: Sequence[Picture], on: Any) -> Any:
    """On a terminal, a console of rich, a new figure or the axes of one."""
    if on == "terminal" or isinstance(on, Console):
        return print_heatmaps(pictures, on if isinstance(on, Console) else Console(highlight=False))
    if on == "figure":
        return figure_of(pictures)
    if hasattr(on, "imshow"):
        if len(pictures) != 1:
            raise ValueError(f"show: one matrix fits on axes and there are {len(pictures)}; choose one with head=…")
        draw(pictures[0], on)
        return on.figure
    raise TypeError(f"show: on = {on!r}; give 'terminal', 'figure', a rich Console or the axes of a matplotlib figure")


_HELD = 2**22  # weights that may exist at a time, for a picture


def show(
    A: Weights,
    tokens: Sequence[str] | None,
    keys: Sequence[str] | None,
    head: int | None,
    batch: int | tuple[int, ...],
    reduce: str,
    on: Any,
) -> Any:
    """What ``Weights.show`` draws."""
    *lead, H, N, M = A.shape
    if reduce not in REDUCE:
        raise ValueError(f"show: reduce = {reduce!r}; there are 'mean' and 'max'")
    heads = range(H) if head is None else [check_count("show", "head", head, -H, H - 1) % H]
    tokens = _labels("tokens", "queries", tokens, N)
    keys = _labels("keys", "keys", keys, M) if keys is not None else tokens if N == M else None
    rows, cols = (min(n, most) for n, most in zip((N, M), room(on), strict=True))
    at = batch if isinstance(batch, tuple) else (batch,) * len(lead)
    if len(at) != len(lead) or 0 in A.shape:
        raise ValueError(f"show: batch = {batch!r} does not choose one matrix with heads of {A.shape}")
    with torch.no_grad():
        chosen = _part(A, (*at, slice(None) if head is None else head), (rows, cols), reduce)
    names = names_of(tokens, N, rows), names_of(keys, M, cols)
    return put([Picture(f"head {h}", x, *names) for h, x in zip(heads, chosen, strict=True)], on)


def _part(A: Weights, at: tuple[Any, ...], shape: tuple[int, int], reduce: str) -> Tensor:
    """Some heads ``(heads, rows, cols)``, as they are, or pooled where they are too large to be held or shown."""
    heads = 1 if isinstance(at[-1], int) else A.shape[-3]
    if heads * math.prod(A.shape[-2:]) > _HELD:
        return A.pool(*shape, reduce)[at].reshape(heads, *shape).cpu()
    part = A[at].reshape(heads, *A.shape[-2:])
    if shape != A.shape[-2:]:
        part = A.from_dense(part).pool(*shape, reduce)
    return part.float().cpu()


def drawn(A: Weights) -> str:
    """The heads of the first batch element, where they are few and small."""
    *lead, H, N, M = A.shape
    if N > 16 or H * (2 * M + 3) > 110 or 0 in A.shape:
        return ""
    first = (0,) * len(lead)
    with torch.no_grad():
        heads = A[first] if lead else A.dense()
    titles = [f"A[{', '.join(map(str, (*first, h)))}]" for h in range(H)]
    return "\n" + side_by_side([Picture(t, x, (), ()) for t, x in zip(titles, heads.cpu(), strict=True)])


def _labels(name: str, axis: str, labels: Sequence[str] | None, n: int) -> Sequence[str] | None:
    if labels is not None and (isinstance(labels, str) or not hasattr(labels, "__len__")):
        raise TypeError(f"show: {name} must be a list of names, not {labels!r}")
    if labels is not None and len(labels) != n:
        raise ValueError(f"show: {len(labels)} names for {n} {axis} ({name}=…)")
    return labels
