"""Drawn pictures of two objects, with captions such as “a red circle above a blue square”."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

SIZE, PATCH = 32, 4  # pixels
GRID = SIZE // PATCH
RADIUS, NOISE, PAPER = 4.2, 0.03, 0.93
COLOURS = {
    "red": (0.85, 0.15, 0.15),
    "green": (0.15, 0.65, 0.25),
    "blue": (0.15, 0.3, 0.85),
    "yellow": (0.95, 0.8, 0.15),
}
SHAPES = ("circle", "square", "triangle", "cross")
START, END = "<start>", "<end>"
WORDS = (START, END, "a", "above", "left", "of", *COLOURS, *SHAPES)
LONGEST = 10  # words of “a red circle left of a blue square”, with start and end
NOT_SCORED = -100


@dataclass(frozen=True)
class Drawings:
    """Pictures ``(B, 3, 32, 32)``, their captions ``(B, 10)``, and the patches ``(B, 2, 64)`` of both objects.

    A caption is numbers of words; ``NOT_SCORED`` follows its end.
    """

    pictures: Tensor
    captions: Tensor
    patches: Tensor

    def __len__(self) -> int:
        return len(self.pictures)


def _held_out_pairs() -> Tensor:
    """Choose a quarter of all pairs ``(16, 16)`` of objects at random, the same in every run."""
    chosen = (torch.rand(16, 16, generator=torch.Generator().manual_seed(0)) < 0.25).triu()
    return chosen | chosen.T


def never_together(objects: Tensor) -> Tensor:
    """Return which pairs ``(…, 2)`` of objects are held out, in any order and at any place.

    An object is ``4 · colour + shape``. Every object, every two shapes and every two colours are in the training, but
    a red circle and a blue square, for example, are never in one picture.
    """
    return _held_out_pairs()[objects[..., 0], objects[..., 1]]


def draw_pictures(count: int, *, held_out: bool, seed: int) -> Drawings:
    """Draw pictures of pairs of objects that are held out from training, or of those that are not.

    The first object of a caption is the upper one, or the left one. Centres lie on a grid of 4 pixels with a jitter of
    1, at least 12 pixels apart along the relation and at most one step of the grid across it.
    """
    g = torch.Generator().manual_seed(seed)
    objects = torch.randint(0, 16, (16 * count + 64, 2), generator=g)
    objects = objects[never_together(objects) == held_out][:count]
    above = torch.randint(0, 2, (count,), generator=g) == 0
    along, across = _centres(count, g)
    xs = torch.where(above[:, None], across, along)
    ys = torch.where(above[:, None], along, across)
    inside = _inside(objects % 4, xs, ys)  # (B, 2, 32, 32)
    colours = torch.tensor(list(COLOURS.values()))[objects // 4]  # (B, 2, 3)
    pictures = torch.full((count, 3, SIZE, SIZE), PAPER)
    for n in range(2):
        pictures = torch.where(inside[:, n, None], colours[:, n, :, None, None], pictures)
    pictures = pictures + NOISE * torch.randn(pictures.shape, generator=g)
    return Drawings(pictures, _captions(objects, above), max_pool2d(inside.float(), PATCH).flatten(2) > 0)


def _centres(count: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw the centres ``(B, 2)`` of both objects along the relation and across it, in pixels."""

    def between(low: Tensor | int, high: int) -> Tensor:
        return low + (torch.rand(count, generator=g) * (high + 1 - low)).long()

    first = between(1, 4)
    second = between(first + 3, 7)
    side = between(1, 7)
    other_side = (side + between(-1, 1)).clamp(1, 7)
    jitter = torch.randint(-1, 2, (2, count, 2), generator=g)
    along, across = torch.stack([first, second], 1), torch.stack([side, other_side], 1)
    return PATCH * along + jitter[0], PATCH * across + jitter[1]


def _inside(shapes: Tensor, xs: Tensor, ys: Tensor) -> Tensor:
    """Return which pixels are inside each object: ``(B, 2, 32, 32)``."""
    pixels = torch.arange(SIZE) + 0.5
    dx = ((pixels - xs[..., None]) / RADIUS)[..., None, :]
    dy = ((pixels - ys[..., None]) / RADIUS)[..., :, None]
    circle = dx**2 + dy**2 < 1
    square = (dx.abs() < 0.85) & (dy.abs() < 0.85)
    triangle = (dy < 0.85) & (dx.abs() < 0.55 * (dy + 1))
    cross = ((dx.abs() < 0.32) & (dy.abs() < 1)) | ((dy.abs() < 0.32) & (dx.abs() < 1))
    every = torch.stack([circle, square, triangle, cross], 2)  # (B, 2, 4, 32, 32)
    return every.gather(2, shapes[..., None, None, None].expand(-1, -1, 1, SIZE, SIZE))[:, :, 0]


def _captions(objects: Tensor, above: Tensor) -> Tensor:
    number = {word: n for n, word in enumerate(WORDS)}
    names = [f"a {colour} {shape}" for colour in COLOURS for shape in SHAPES]
    rows = []
    for (one, two), is_above in zip(objects.tolist(), above.tolist(), strict=True):
        words = f"{START} {names[one]} {'above' if is_above else 'left of'} {names[two]} {END}".split()
        rows.append([number[word] for word in words] + [NOT_SCORED] * (LONGEST - len(words)))
    return torch.tensor(rows)


def spelled(caption: Tensor) -> str:
    """Write a caption in words, without its start and end."""
    words = [WORDS[n] for n in caption.tolist() if n >= 0]
    return " ".join(words[1 : words.index(END)] if END in words else words[1:])
