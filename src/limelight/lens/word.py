"""One word in view: what it attends to and what attends to it, in every head and on the mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.text import Text
from torch import Tensor

from limelight.lens.reading import Reading
from limelight.lens.record import Call
from limelight.viz.characters import short

_BAR = 24  # characters of a weight of 1
_SHOWN = 5  # strongest tokens of a head
_MEAN = 8  # strongest tokens of the mean over heads


@dataclass(frozen=True)
class WordRow:
    """The weights of one token in one call: ``(heads, tokens)``.

    ``to`` is what it attends to; ``by`` what attends to it, the column of the matrix, or None for a query of
    cross-attention, to which nothing attends.
    """

    call: Call
    position: int
    to: Tensor | None
    by: Tensor | None


def find_word(tokens: Sequence[str], word: str) -> list[int]:
    """Return the positions of the tokens that are a word, or that it begins with, without marks of its beginning.

    >>> find_word(["[CLS]", "the", "ani", "##mal", "▁Animal"], "animal")
    [4]
    >>> find_word(["▁s", "leep", "ing"], "sleeping")
    [0]
    """
    wanted = word.strip().lower()
    plain = [token.replace("▁", " ").removeprefix("##").strip().lower() for token in tokens]
    exact = [n for n, token in enumerate(plain) if token == wanted]
    if exact:
        return exact
    found = []
    for n in range(len(plain)):  # a word of several pieces
        text = ""
        for piece in plain[n:]:
            text += piece
            if not wanted.startswith(text) or not piece:
                break
            if text == wanted:
                found.append(n)
                break
    return found


def word_rows(reading: Reading, word: str) -> list[WordRow]:
    """Return the weights of a word's first token in every call of a reading, for each of its occurrences."""
    found: list[WordRow] = []
    for call in reading.record.log:
        queries, keys = reading.names(call)
        at_queries, at_keys = find_word(queries, word), find_word(keys, word)
        if call.kind == "self":
            found += [WordRow(call, i, _row(call, i), _column(call, i)) for i in at_queries]
        else:
            found += [WordRow(call, i, _row(call, i), None) for i in at_queries]
            found += [WordRow(call, j, None, _column(call, j)) for j in at_keys]
    if not found:
        known = sorted({short(t.lstrip("▁")) for tokens in reading.tokens.values() for t in tokens})
        listed = ", ".join(known[:30]) + (" …" if len(known) > 30 else "")
        raise ValueError(f"the text has no word {word!r}; its tokens are {listed}")
    return found


def _row(call: Call, i: int) -> Tensor:
    with torch.no_grad():
        return call.weights[0, :, i].float()  # (H, M)


def _column(call: Call, j: int) -> Tensor:
    with torch.no_grad():
        return call.weights[0, :, :, j].float()  # (H, N)


def print_word(reading: Reading, word: str, console: Console) -> None:
    """Print bars: for each occurrence, layer and head, what the word attends to and what attends to it."""
    rows = word_rows(reading, word)
    for row in rows:
        queries, keys = reading.names(row.call)
        place = f"{row.call.stack} {row.call.kind}-attention, layer {row.call.layer}, {word} at {row.position}"
        for weights, names, what in ((row.to, keys, "attends to"), (row.by, queries, "is attended to by")):
            if weights is None:
                continue
            console.print(Text(f"{place}: {what}", style="bold"))
            _print_bars("mean of the heads", weights.mean(0), names, _MEAN, console)
            for head, own in enumerate(weights):
                _print_bars(f"head {head}", own, names, _SHOWN, console)


def _print_bars(title: str, weights: Tensor, names: Sequence[str], count: int, console: Console) -> None:
    console.print(Text(f"  {title}"))
    best = weights.nan_to_num().topk(min(count, len(weights)))
    for weight, n in zip(best.values.tolist(), best.indices.tolist(), strict=True):
        if weight >= 0.005:
            name = short(names[n].lstrip("▁") or "␣")
            console.print(Text(f"    {name:>14} ({n:>3}) {weight:.2f} {'█' * round(weight * _BAR)}"))


def word_as_dicts(reading: Reading, word: str) -> list[dict[str, Any]]:
    """Return what ``--json`` prints of a word: all weights of its rows and columns."""
    return [
        {
            "module": row.call.name,
            "stack": row.call.stack,
            "kind": row.call.kind,
            "layer": row.call.layer,
            "position": row.position,
            "attends_to": None if row.to is None else row.to.tolist(),
            "attended_by": None if row.by is None else row.by.tolist(),
        }
        for row in word_rows(reading, word)
    ]
