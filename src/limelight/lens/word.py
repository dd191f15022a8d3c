"""The view of one word: what it attends to and what attends to it, in every head and in their mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.text import Text
from torch import Tensor

from limelight.lens.reading import Reading
from limelight.lens.record import Call
from limelight.lens.report import is_separator
from limelight.viz.characters import LONGEST_NAME, short

_BAR, _SHORT_BAR = 24, 6  # characters of a weight of 1
_SHOWN, _COLUMN = 3, 22  # strongest tokens of a head, and characters of each: three and the head fit into 80
_MEAN = 8  # strongest tokens of the mean over heads
_LEAST = 0.005  # smaller weights would be printed as 0.00


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
    """Return the positions of tokens that spell a word; of a word of several tokens, that of the first.

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
        known = sorted({short(token.lstrip("▁")) for tokens in reading.tokens.values() for token in tokens})
        listed = ", ".join(known[:30]) + (" …" if len(known) > 30 else "")
        raise ValueError(f"the text has no word {word!r}; its tokens are {listed}")
    return found


def _row(call: Call, i: int) -> Tensor:
    with torch.no_grad():
        return call.weights[0, :, i].float()  # (H, M)


def _column(call: Call, j: int) -> Tensor:
    with torch.no_grad():
        return call.weights[0, :, :, j].float()  # (H, N)


def print_word(reading: Reading, word: str, console: Console, head: int | None = None) -> None:
    """Print what a word attends to and what attends to it: its strongest links, then every layer and head as bars."""
    rows = word_rows(reading, word)
    most = max(row.call.shape[1] for row in rows)
    if head is not None and head >= most:
        raise ValueError(f"there is no head {head}; there are 0 to {most - 1}")
    if head is None:
        _print_strongest(reading, rows, word, console)
    for row in rows:
        place = f"{row.call.stack} {row.call.kind}-attention, layer {row.call.layer}, {word} at {row.position}"
        for weights, names, what in _directions(reading, row):
            console.print(Text(f"{place}: {what}", style="bold"))
            if head is None:
                console.print(Text("  mean of the heads"))
                for weight, n in _largest(weights.mean(0), _MEAN):
                    console.print(Text(f"    {_label(names, n):>{LONGEST_NAME}} {weight:.2f} {_bar(weight, _BAR)}"))
            for number, own in enumerate(weights):
                if head in (None, number):
                    links = (f"{_label(names, n)} {w:.2f} {_bar(w, _SHORT_BAR)}" for w, n in _largest(own, _SHOWN))
                    console.print(
                        Text(f"  head {number:<3}{' '.join(f'{link:<{_COLUMN}}' for link in links)}".rstrip())
                    )
        console.print()


def _directions(reading: Reading, row: WordRow) -> Iterator[tuple[Tensor, Sequence[str], str]]:
    queries, keys = reading.names(row.call)
    if row.to is not None:
        yield row.to, keys, "attends to"
    if row.by is not None:
        yield row.by, queries, "is attended to by"


def _print_strongest(reading: Reading, rows: Sequence[WordRow], word: str, console: Console) -> None:
    """Print the largest weights of single heads, without those of the word itself, the first token and separators."""
    found: dict[str, list[tuple[float, str, str]]] = {}
    for row in rows:
        self_attention = row.call.kind == "self"
        where = f"{row.call.stack} {row.call.kind}-attention, layer {row.call.layer}, head"
        for weights, names, what in _directions(reading, row):
            kept = [n for n in range(len(names)) if not is_separator(names[n])]
            kept = [n for n in kept if not self_attention or n not in (0, row.position)]
            listed = found.setdefault(what, [])
            for head, own in enumerate(weights.nan_to_num().tolist()):
                listed += [(own[n], _label(names, n), f"{where} {head}") for n in kept if own[n] >= _LEAST]
    for what, links in found.items():
        if links:
            title = f"{word} {what}, in single heads (without itself, the first token and separators)"
            console.print(Text(title, style="bold"))
        for weight, name, where in sorted(links, key=lambda link: -link[0])[:_MEAN]:
            console.print(Text(f"    {name:>{LONGEST_NAME}} {weight:.2f} {_bar(weight, _BAR):<{_BAR}} {where}"))
    console.print()


def _largest(weights: Tensor, count: int) -> list[tuple[float, int]]:
    best = weights.nan_to_num().topk(min(count, len(weights)))
    return [(w, n) for w, n in zip(best.values.tolist(), best.indices.tolist(), strict=True) if w >= _LEAST]


def _label(names: Sequence[str], n: int) -> str:
    """Return the name of a token, with its position where several have the same."""
    name = short(names[n])
    return name if names.count(names[n]) == 1 else f"{name} ({n})"


def _bar(weight: float, length: int) -> str:
    """Draw a weight, of which 1 is ``length`` characters long, to an eighth of a character.

    >>> _bar(0.5, 3), _bar(1.0, 3), _bar(0.0, 3)
    ('█▌', '███', '')
    """
    eighths = round(weight * length * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


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
