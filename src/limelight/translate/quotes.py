"""Quotation marks inside a sentence: it is translated without them, and they are put back with cross-attention.

The model has seen few quotation marks and loses most of them. Cross-attention tells which words of the translation were
written from the quoted words, and the marks are put around these.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import torch

from limelight.lens.alignment import words
from limelight.lens.report import is_separator
from limelight.translate.results import Sentence

_QUOTED = re.compile(r'^([^"]*)"([^"]+)"([^"]*)$')
_LEAST = 0.7  # share of the words between the marks that come from quoted words, at least


class Quote(NamedTuple):
    """A sentence without its quotation marks, and the begin and end of the quoted part in it."""

    text: str
    begin: int
    end: int


def without_marks(text: str) -> Quote | None:
    """Remove the only pair of quotation marks inside a sentence; None if it does not have exactly one pair.

    >>> without_marks('The word "love" is short.')
    Quote(text='The word love is short.', begin=9, end=13)
    """
    found = _QUOTED.match(text)
    if found is None or not (found[1].strip() or re.search(r"\w", found[3])):
        return None
    inside = found[2].rstrip(" .,;:!?")
    if not re.search(r"\w", inside):
        return None
    return Quote("".join(found.groups()), len(found[1]), len(found[1]) + len(inside))


def with_marks(quote: Quote, sentence: Sentence) -> str | None:
    """Put quotation marks around the words that were written from the quote; None if these are scattered."""
    target = sentence.text
    read, written = _places(quote.text, sentence.source_tokens), _places(target, sentence.tokens)
    quoted = [quote.begin <= begin < quote.end for begin, _ in read]
    attended = _most_attended(sentence)
    found = [n for n, (begin, end) in enumerate(written) if target[begin:end].strip("'’")[:1].isalnum()]
    inside = [n for n in found if quoted[attended[n]]]
    between = [n for n in found if inside and inside[0] <= n <= inside[-1]]
    if not inside or len(between) == len(found) or len(inside) < _LEAST * len(between):
        return None
    begin, end = written[inside[0]][0], written[inside[-1]][1]
    return f'{target[:begin]}"{target[begin:end]}"{target[end:]}'


@torch.no_grad()
def _most_attended(sentence: Sentence) -> list[int]:
    """Return, for each written word, the source word with the most cross-attention in the last layer."""
    rows, cols = words(sentence.tokens), words(sentence.source_tokens)
    call = [call for call in sentence.record.log if call.kind == "cross"][-1]
    weights = call.weights[0][:, [tokens[0] for _, tokens in rows]].mean(0)  # (words, tokens)
    matrix = torch.stack([weights[:, tokens].sum(-1) * (not is_separator(name)) for name, tokens in cols], -1)
    return [int(n) for n in matrix.argmax(-1)]


def _places(text: str, tokens: list[str]) -> list[tuple[int, int]]:
    """Return the begin and end of each word in the text; -1 for words that are not in it, such as the end token."""
    places = []
    at = 0
    for word, _ in words(tokens):
        begin = text.find(word, at)
        at = at if begin < 0 else begin + len(word)
        places.append((begin, begin if begin < 0 else at))
    return places
