"""Heat over a picture: in colour on a terminal, in characters where there is none, and as figures of matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.style import Style
from rich.text import Text
from torch import Tensor

from limelight.viz.characters import largest_of, shade, short
from limelight.viz.heatmaps import need_matplotlib, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Pixels = NDArray[np.uint8]  # (height, width, 3)
# Stops of matplotlib's "inferno", which stays readable in grey.
_RAMP = np.array([[0, 0, 4], [66, 10, 104], [147, 38, 103], [221, 81, 58], [252, 165, 10], [252, 255, 164]], float)
_ACROSS = 44  # characters of a panel on a terminal, at most
_FAINT = 0.2  # opacity of the heat over the picture where the heat is 0
MOST_PIXELS = 64 * 10**6  # larger pictures are refused before they are decoded


@dataclass(frozen=True)
class Panel:
    """Heat over a picture, with a title and the patches ``(row, column)`` that are marked."""

    title: str
    heat: Tensor  # (rows, cols)
    marked: tuple[int, int] | None = None


def as_pixels(image: Any) -> Pixels:
    """Return a picture as ``(height, width, 3)`` bytes: a file, one of Pillow, an array or a tensor.

    Arrays are ``(height, width)``, with 1, 3 or 4 channels last, or (as in torch) 1 or 3 channels first. Numbers are
    bytes, or from 0 to 1; others, such as a model's normalised pixels, are stretched from their least to their largest.

    >>> as_pixels(torch.zeros(3, 5, 7)).shape
    (5, 7, 3)
    """
    if isinstance(image, (str, Path)):
        image = open_image(image)
    if isinstance(image, Tensor):
        image = image.detach().float().cpu().numpy() if image.is_floating_point() else image.cpu().numpy()
    elif hasattr(image, "convert"):  # of Pillow
        image = image.convert("RGB")
    x = np.asarray(image)
    x = x[0] if x.ndim == 4 and len(x) == 1 else x
    if x.ndim == 3 and x.shape[0] in (1, 3) and x.shape[2] not in (1, 3, 4):
        x = np.moveaxis(x, 0, 2)
    x = x[..., None] if x.ndim == 2 else x
    if x.ndim != 3 or x.shape[2] not in (1, 3, 4) or 0 in x.shape:
        raise ValueError(f"image has shape {np.shape(image)}; give (height, width, 3), (3, height, width) or a file")
    if x.dtype != np.uint8:
        x = x.astype(np.float64)
        low, high = float(np.nanmin(x)), float(np.nanmax(x))
        if low < 0 or high > 1:
            x = (x - low) / max(high - low, 1e-30)
        x = np.round(np.nan_to_num(x).clip(0, 1) * 255).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(x[..., :3], (*x.shape[:2], 3)))


def open_image(file: str | Path) -> Any:
    """Open a picture with Pillow, turned as its camera says, in full; raises one clear error for anything else."""
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError:
        raise ImportError("pictures are read with Pillow: pip install 'limelight-attention[image]'") from None
    path = Path(file)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the file of a picture")
    most, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None  # its limit only warns; the one below is an error
    try:
        with Image.open(path) as found:
            if found.width * found.height > MOST_PIXELS:
                raise ValueError(
                    f"{path} has {found.width} × {found.height} pixels, and at most {MOST_PIXELS:,} are read; "
                    "make it smaller first"
                )
            found.load()
            return ImageOps.exif_transpose(found)
    except UnidentifiedImageError:
        raise ValueError(f"{path} is not a picture that Pillow can read") from None
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}") from None
    except (SyntaxError, EOFError, OSError) as error:  # what Pillow raises for damaged files
        raise ValueError(f"{path} cannot be read as a picture: {error}") from None
    finally:
        Image.MAX_IMAGE_PIXELS = most


def draw_over(panels: Sequence[Panel], image: Pixels | None, on: Any) -> Any:
    """Draw heat over a picture on a terminal, a console of rich or a new figure."""
    if on == "figure":
        return figure_over(panels, image)
    if on != "terminal" and not isinstance(on, Console):
        raise TypeError(f"show: on = {on!r}; a picture is drawn on 'terminal', 'figure' or a rich Console")
    console = on if isinstance(on, Console) else Console(highlight=False)
    highest = max(largest_of(panel.heat) for panel in panels)
    drawn = [_drawn(panel, image, highest, console) for panel in panels]
    gap = 2
    width = max(len(line) for lines in drawn for line in lines)
    across = max(1, (console.width + gap) // (width + gap))
    for first in range(0, len(drawn), across):
        for parts in zip(*drawn[first : first + across], strict=True):
            line = Text(no_wrap=True, end="")
            for n, part in enumerate(parts):
                line.append_text(part)
                if n + 1 < len(parts):
                    line.append(" " * (width + gap - len(part)))
            console.print(line, soft_wrap=True)
    console.print(Text(f"█ {highest:.3g}", style="dim"))
    return None


def _drawn(panel: Panel, image: Pixels | None, highest: float, console: Console) -> list[Text]:
    """Return the lines of a panel: pixels of two to a character, or shades where there is no colour."""
    cols = panel.heat.shape[1]
    title = Text(short(panel.title) if len(panel.title) > _ACROSS else panel.title, style="bold")
    if console.color_system is None:
        step = max(1, math.ceil(2 * cols / min(2 * _ACROSS, console.width)))
        shown = _pooled(panel.heat, step)
        return [title, *(Text("".join(shade(x, highest)[0] for x in row)) for row in shown.tolist())]
    side = max(1, min(8, _ACROSS // cols, console.width // cols))
    pixels = overlay(_pooled(panel.heat, max(1, math.ceil(cols / console.width))), image, side, highest, panel.marked)
    return [title, *map(_half_blocks, pixels[::2], [*pixels[1::2], None][: math.ceil(len(pixels) / 2)])]


def _pooled(heat: Tensor, step: int) -> Tensor:
    return torch.nn.functional.max_pool2d(heat[None, None].float(), step, ceil_mode=True)[0, 0] if step > 1 else heat


def _half_blocks(upper: Pixels, lower: Pixels | None) -> Text:
    """Return a line whose characters show a pixel of the upper row over one of the lower."""
    line = Text()
    for n, top in enumerate(upper.tolist()):
        bottom = None if lower is None else "#{:02x}{:02x}{:02x}".format(*lower[n].tolist())
        line.append("▀", Style(color="#{:02x}{:02x}{:02x}".format(*top), bgcolor=bottom))
    return line


def overlay(
    heat: Tensor, image: Pixels | None, side: int, highest: float, marked: tuple[int, int] | None = None
) -> Pixels:
    """Return heat over a grey picture as pixels, ``side`` × ``side`` to a patch; a marked patch has a white edge."""
    rows, cols = heat.shape
    shares = (heat.float().nan_to_num() / highest).clamp(0, 1).sqrt()  # small weights keep a shade
    t = shares.numpy().repeat(side, 0).repeat(side, 1)
    colours = np.stack([np.interp(t, np.linspace(0, 1, len(_RAMP)), _RAMP[:, c]) for c in range(3)], -1)
    if image is not None:
        whole = torch.from_numpy(image.mean(2))[None, None].float()
        grey = torch.nn.functional.interpolate(whole, (rows * side, cols * side), mode="area")[0, 0].numpy()
        share = (_FAINT + (1 - _FAINT) * t)[..., None]
        colours = share * colours + (1 - share) * grey[..., None]
    if marked is not None:
        top, left = marked[0] * side, marked[1] * side
        colours[[top, top + side - 1], left : left + side] = 255
        colours[top : top + side, [left, left + side - 1]] = 255
    return np.round(colours).clip(0, 255).astype(np.uint8)


def figure_over(panels: Sequence[Panel], image: Pixels | None) -> Figure:
    """Draw a figure: the picture, and the heat of each panel over it in colours that all share."""
    need_matplotlib()
    count = len(panels) + (image is not None)
    across = min(count, 6) if count <= 12 else math.ceil(math.sqrt(count))
    down = math.ceil(count / across)
    rows, cols = panels[0].heat.shape
    high = 2.1 * (rows / cols if image is None else image.shape[0] / image.shape[1])
    figure = new_figure((0.9 + 2.1 * across, 0.4 + (0.3 + high) * down))
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    highest = max(largest_of(panel.heat) for panel in panels)
    for axis in axes:
        axis.set_axis_off()
    if image is not None:
        axes[0].imshow(image)
        axes[0].set_title("picture", fontsize=9)
    drawn: Any = None
    for axis, panel in zip(axes[count - len(panels) :], panels, strict=False):
        drawn = _draw_panel(axis, panel, image, highest)
    figure.colorbar(drawn, ax=axes, shrink=0.7, aspect=25)
    return figure


def _draw_panel(axis: Any, panel: Panel, image: Pixels | None, highest: float) -> Any:
    from matplotlib.colors import PowerNorm
    from matplotlib.patches import Rectangle

    rows, cols = panel.heat.shape
    extent = (-0.5, cols - 0.5, rows - 0.5, -0.5)
    if image is not None:
        axis.imshow(image.mean(2), cmap="gray", vmin=0, vmax=255, extent=extent)
    heat = panel.heat.float().numpy()
    share = 1.0 if image is None else _FAINT + (1 - _FAINT) * np.sqrt((heat / highest).clip(0, 1))
    drawn = axis.imshow(
        heat, cmap="inferno", norm=PowerNorm(0.5, vmin=0, vmax=highest), alpha=share, extent=extent, aspect="auto"
    )
    axis.set_aspect("auto" if image is None else image.shape[0] / image.shape[1] * cols / rows)
    axis.set_title(panel.title.replace("$", r"\$"), fontsize=9)
    if panel.marked is not None:
        row, col = panel.marked
        axis.add_patch(Rectangle((col - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="white", linewidth=1.5))
    return drawn
