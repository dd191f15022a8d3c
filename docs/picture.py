"""Draws the README's picture: an attention matrix of 32,768 × 32,768 with its statistics, and a translator's alignment.

    pip install '.[plot]' && python docs/picture.py     # writes docs/attention.png and attention-dark.png, in seconds

The large matrix is computed from a real text, docs/experiments.md: every character asks for the places where the eight
characters before it stood earlier, as an induction head does. Its queries and keys are sums of random vectors, one for
each character and distance, so that similar contexts have similar vectors. Nothing n × n is ever stored.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import limelight as ll
from limelight import translate
from limelight.translate.display import alignment_of

HERE = Path(__file__).parent
LENGTH, CONTEXT, WIDTH = 32768, 8, 64
ACCENT = "#c4447c"  # on white and on black
SENTENCE = "The cat sat on the mat."


def contexts(text: str) -> Tensor:
    """Return a vector for each character, ``(1, length, width)``: the sum of those of the characters before it."""
    g = torch.Generator().manual_seed(0)
    codes = torch.tensor([ord(c) % 512 for c in text])
    table = torch.randn(CONTEXT, 512, WIDTH, generator=g) / WIDTH**0.5
    x = torch.zeros(len(text), WIDTH)
    for distance in range(CONTEXT):
        x[distance:] += table[distance][codes[: len(text) - distance]]
    return x[None]


def draw_matrix(figure: Figure, area: tuple[float, float, float, float]) -> None:
    """Draw the matrix with a part of it enlarged, its entropies to the right and what each character receives below."""
    x = contexts((HERE / "experiments.md").read_text(encoding="utf-8")[:LENGTH])
    A = ll.weights(x, x, mask=ll.Causal(), scale=3.0)
    seen = A.observe(pool=(512, 512, "max"), entropy=True, received=True)
    left, bottom, wide, high = area
    axis = figure.add_axes((left, bottom + 0.16 * high, 0.84 * wide, 0.84 * high))
    axis.imshow(seen.pool[0], cmap="magma", vmin=0, vmax=float(seen.pool.quantile(0.99)), aspect="auto")
    axis.set_xticks([])
    axis.set_yticks([])
    axis.set_title(
        f"A = ll.weights(q, k, mask=ll.Causal())\n{LENGTH:,} × {LENGTH:,} weights, never stored", fontsize=11
    )
    axis.set_ylabel("queries: the characters of a text", fontsize=9)
    enlarge(A, axis)
    entropy = seen.entropy[0].unfold(0, 64, 64).mean(-1)
    side = figure.add_axes((left + 0.86 * wide, bottom + 0.16 * high, 0.13 * wide, 0.84 * high))
    side.fill_betweenx(range(len(entropy)), 0, entropy, color=ACCENT, lw=0)
    side.set(ylim=(len(entropy), 0), xticks=[], yticks=[])
    side.set_title("A.entropy()", fontsize=9)
    received = seen.received[0].unfold(0, 64, 64).mean(-1)
    below = figure.add_axes((left, bottom, 0.84 * wide, 0.13 * high))
    below.fill_between(range(len(received)), 0, received, color=ACCENT, lw=0)
    below.set(xlim=(0, len(received)), xticks=[], yticks=[])
    below.set_xlabel("keys, and how much attention each gets: A.received()", fontsize=9)


def enlarge(A: ll.Weights, axis: Axes) -> None:
    """Draw the part of the matrix around the longest repetition into its empty upper half."""
    cell = LENGTH // 512
    mean = A.pool(512, 512)[0].tril(-64)  # far from the diagonal
    row, col = (int(i) * cell for i in divmod(int(mean.argmax()), 512))
    part = A[0, row : row + cell, col : col + cell]
    inset = axis.inset_axes((0.56, 0.56, 0.41, 0.41))
    inset.imshow(part, cmap="magma", vmin=0, vmax=float(part.quantile(0.99)), aspect="auto")
    inset.set(xticks=[], yticks=[])
    inset.spines[:].set_color("white")
    inset.set_xlabel(f"A[0, {row}:{row + cell}, {col}:{col + cell}]\nany part, exactly", fontsize=8, color="white")
    x, y = col / cell, row / cell
    line = {"arrowstyle": "-", "color": "white", "lw": 0.8, "alpha": 0.7}
    axis.annotate("", xy=(0.56, 0.56), xytext=(x, y), xycoords="axes fraction", textcoords="data", arrowprops=line)
    axis.plot(x, y, "s", mfc="none", mec="white", ms=7)


def draw_alignment(axis: Axes) -> None:
    """Draw the attention with which the translator writes each word."""
    (sentence,) = translate.load()(SENTENCE).sentences
    one = alignment_of(sentence)
    read, written = (["(end)" if word == "</s>" else word for word in words] for words in (one.read, one.written))
    axis.imshow(one.weights, cmap="magma", vmin=0, vmax=1)
    axis.set_xticks(range(len(read)), read, rotation=45)
    axis.set_yticks(range(len(written)), written)
    axis.xaxis.tick_top()
    axis.set_title(f"limelight translate “{SENTENCE}”\nwhat it looks at while it writes", fontsize=11)


def main() -> None:
    """Write the picture for light and for dark pages."""
    for name, style, background in (
        ("attention", "default", "white"),
        ("attention-dark", "dark_background", "#0d1117"),
    ):
        with plt.style.context(style):
            figure = plt.figure(figsize=(12, 5.2), facecolor=background)
            draw_matrix(figure, (0.03, 0.06, 0.52, 0.82))
            draw_alignment(figure.add_axes((0.62, 0.06, 0.36, 0.7)))
            figure.savefig(HERE / f"{name}.png", dpi=125)


if __name__ == "__main__":
    main()
