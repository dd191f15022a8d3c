"""Which words a word was written from: cross-attention between words, made of that between their pieces.

A word is chosen when its first piece is written, so the row of a word is that of its first piece; what a word receives
is the sum over its pieces. Rows still sum to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from limelight.lens.calls import Call, Record
from limelight.lens.heads import is_separator


@dataclass(frozen=True)
class Alignment:
    """A head of the cross-attention, between the words that were written and those that were read."""

    call: Call
    head: int
    written: list[str]
    read: list[str]
    weights: Tensor

    def links(self, count: int) -> list[tuple[int, int, float]]:
        """The strongest ones between words that are no marks: which was written, which was read, and the weight."""
        told = self.weights * _telling(self.written)[:, None] * _telling(self.read)
        best = told.flatten().sort(descending=True, stable=True).indices[:count].tolist()
        found = [(n // len(self.read), n % len(self.read)) for n in best]
        return [(i, j, float(self.weights[i, j])) for i, j in found if told[i, j] > 0]


def align(record: Record, written: Sequence[str], read: Sequence[str]) -> Alignment:
    """The head of the cross-attention whose words have the strongest links, given the tokens of both sides."""
    rows, cols = words(written), words(read)
    names = [name for name, _ in rows], [name for name, _ in cols]
    telling = _telling(names[0])
    best: tuple[float, Alignment] | None = None
    with torch.no_grad():
        for call in (call for call in record.log if call.kind == "cross"):
            first = call.weights[0][:, [places[0] for _, places in rows]]  # (heads, words, tokens)
            matrix = torch.stack([first[..., places].sum(-1) for _, places in cols], -1)
            links = (matrix * _telling(names[1])).amax(-1)  # (heads, words)
            scores = (links * telling).sum(-1) / telling.sum().clamp(min=1)
            head = int(scores.argmax())
            if best is None or scores[head] > best[0]:
                best = float(scores[head]), Alignment(call, head, *names, matrix[head])
    if best is None:
        raise ValueError("there is no cross-attention in this record")
    return best[1]


def words(tokens: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Words and the places of their pieces.

    A word begins at a space, after an apostrophe, and with or after a mark.

    >>> words(["▁Le", "▁chat", "▁s'", "ass", "it", "."])
    [('Le', [0]), ('chat', [1]), ("s'", [2]), ('assit', [3, 4]), ('.', [5])]
    """
    found: list[tuple[str, list[int]]] = []
    for place, token in enumerate(tokens):
        piece = token.removeprefix("▁")
        before = found[-1][0] if found else ""
        joins = before[-1:].isalnum() and piece[:1].isalnum() and not token.startswith("▁")
        if found and (joins or before == ""):  # a space that stands alone goes to what follows
            found[-1] = before + piece, [*found[-1][1], place]
        else:
            found.append((piece, [place]))
    return [(name or "▁", places) for name, places in found]


def _telling(names: Sequence[str]) -> Tensor:
    """1 for words, 0 for marks."""
    return torch.tensor([0.0 if is_separator(name) or name == "▁" else 1.0 for name in names])
