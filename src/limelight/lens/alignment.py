"""Alignment of words: cross-attention between words, made from the attention between their tokens.

A decoder chooses a word when it writes the word's first token, so the row of a word is that of its first token; the
weight on a word is the sum over its tokens. Rows still sum to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from limelight.lens.record import Call, Record
from limelight.lens.report import is_separator


@dataclass(frozen=True)
class Alignment:
    """One head of cross-attention, from the written words to the words that were read."""

    call: Call
    head: int
    written: list[str]
    read: list[str]
    weights: Tensor

    def links(self, count: int) -> list[tuple[int, int, float]]:
        """Return the strongest links: index of the written word, index of the read word, weight; no punctuation."""
        between_words = self.weights * _is_word(self.written)[:, None] * _is_word(self.read)
        best = between_words.flatten().sort(descending=True, stable=True).indices[:count].tolist()
        found = [(n // len(self.read), n % len(self.read)) for n in best]
        return [(i, j, float(self.weights[i, j])) for i, j in found if between_words[i, j] > 0]


def align(record: Record, written: Sequence[str], read: Sequence[str]) -> Alignment:
    """Return the head of cross-attention whose words have the strongest links.

    ``written`` and ``read`` are the tokens of the queries and of the keys.
    """
    rows, cols = words(written), words(read)
    written_words, read_words = [name for name, _ in rows], [name for name, _ in cols]
    row_is_word = _is_word(written_words)
    best: tuple[float, Alignment] | None = None
    with torch.no_grad():
        for call in (call for call in record.log if call.kind == "cross"):
            first = call.weights[0][:, [tokens[0] for _, tokens in rows]]  # (heads, words, tokens)
            matrix = torch.stack([first[..., tokens].sum(-1) for _, tokens in cols], -1)
            links = (matrix * _is_word(read_words)).amax(-1)  # (heads, words)
            scores = (links * row_is_word).sum(-1) / row_is_word.sum().clamp(min=1)
            head = int(scores.argmax())
            if best is None or scores[head] > best[0]:
                best = float(scores[head]), Alignment(call, head, written_words, read_words, matrix[head])
    if best is None:
        raise ValueError("align: the record has no cross-attention")
    return best[1]


def words(tokens: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Return the words of a text and the positions of their tokens.

    A word begins at a space, after an apostrophe, and at or after punctuation.

    >>> words(["▁Le", "▁chat", "▁s'", "ass", "it", "."])
    [('Le', [0]), ('chat', [1]), ("s'", [2]), ('assit', [3, 4]), ('.', [5])]
    """
    found: list[tuple[str, list[int]]] = []
    for place, token in enumerate(tokens):
        piece = token.removeprefix("▁")
        before = found[-1][0] if found else ""
        joins = before[-1:].isalnum() and piece[:1].isalnum() and not token.startswith("▁")
        if found and (joins or before == ""):  # a space on its own joins the token after it
            found[-1] = before + piece, [*found[-1][1], place]
        else:
            found.append((piece, [place]))
    return [(name or "␣", places) for name, places in found]


def _is_word(names: Sequence[str]) -> Tensor:
    """Return 1 for words and 0 for punctuation."""
    return torch.tensor([0.0 if is_separator(name) or name == "␣" else 1.0 for name in names])
