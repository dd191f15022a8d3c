"""Quotation marks inside a sentence: translated without them, then put around the words that were read in them.

The model has seen few quotation marks and loses most of them. What it writes for the words inside is where its
cross-attention looks at them, so that is where the marks belong.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import torch

from limelight.lens.alignment import words
from limelight.lens.report import is_separator
from limelight.translate.results import Sentence

_QUOTED = re.compile(r'^([^"]*)"([^"]+)"([^"]*)$')
_LEAST = 0.7  # share of the words between the marks that were read there


class Quote(NamedTuple):
    """A sentence without its quotation marks, and where the quoted part begins and ends in it."""

    text: str
    begin: int
    end: int


def without_marks(text: str) -> Quote | None:
    """The sentence without the one pair of quotation marks that it has inside; None where it has no such pair.

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
    """The translation with quotation marks around what was read in them; None where that is not in one place."""
    target = sentence.text
    read, written = _places(quote.text, sentence.source_tokens), _places(target, sentence.tokens)
    quoted = [quote.begin <= begin < quote.end for begin, _ in read]
    looks = _looks(sentence)
    found = [n for n, (begin, end) in enumerate(written) if target[begin:end].strip("'’")[:1].isalnum()]
    inside = [n for n in found if quoted[looks[n]]]
    between = [n for n in found if inside and inside[0] <= n <= inside[-1]]
    if not inside or len(between) == len(found) or len(inside) < _LEAST * len(between):
        return None
    begin, end = written[inside[0]][0], written[inside[-1]][1]
    return f'{target[:begin]}"{target[begin:end]}"{target[end:]}'


@torch.no_grad()
def _looks(sentence: Sentence) -> list[int]:
    """For each written word, the word that all heads of the last layer of cross-attention together look at most."""
    rows, cols = words(sentence.tokens), words(sentence.source_tokens)
    call = [call for call in sentence.record.log if call.kind == "cross"][-1]
    weights = call.weights[0][:, [tokens[0] for _, tokens in rows]].mean(0)  # (words, tokens)
    matrix = torch.stack([weights[:, tokens].sum(-1) * (not is_separator(name)) for name, tokens in cols], -1)
    return [int(n) for n in matrix.argmax(-1)]


def _places(text: str, tokens: list[str]) -> list[tuple[int, int]]:
    """Where each word of the tokens begins and ends in their text; those that are not in it, such as its end, at -1."""
    places = []
    at = 0
    for word, _ in words(tokens):
        begin = text.find(word, at)
        at = at if begin < 0 else begin + len(word)
        places.append((begin, begin if begin < 0 else at))
    return places
