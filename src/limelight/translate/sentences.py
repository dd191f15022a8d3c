"""Text into sentences and back, so that nothing between them is lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

# A mark that ends a sentence, what may close behind it, white space, and something that may begin the next one.
_END = re.compile(r"(?<=[.!?…])([\"'”’»)\]]*)(\s+)(?=[\"'“‘«(\[¿¡]*[A-ZÀ-Þ0-9])|(\s*\n\s*)")
_ABBREVIATION = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Prof|Jr|Sr|vs|etc|e\.g|i\.e|a\.m|p\.m|No|[A-Z]))\.$")
_PLACES = (re.compile(r"[;:.!?…]\s+"), re.compile(r",\s+"), re.compile(r"\s+"))


class Piece(NamedTuple):
    """A sentence, or a part of a long one, and the white space after it."""

    text: str
    after: str


def split(text: str, fits: Callable[[str], bool]) -> list[Piece]:
    r"""The sentences of a text; one that does not fit is cut, at a mark where there is one.

    >>> split("Hello, Mr. Smith. How are you?\nFine.", lambda text: True)
    [Piece(text='Hello, Mr. Smith.', after=' '), Piece(text='How are you?', after='\n'), Piece(text='Fine.', after='')]
    """
    pieces = []
    begin = 0
    for end in _END.finditer(text):
        sentence = text[begin : end.start() + len(end.group(1) or "")]
        if end.group(3) is None and _ABBREVIATION.search(sentence):
            continue
        pieces.append(Piece(sentence, end.group(2) or end.group(3)))
        begin = end.end()
    pieces.append(Piece(text[begin:], ""))
    return [part for piece in pieces if piece.text or piece.after for part in _cut(piece, fits)]


def _cut(piece: Piece, fits: Callable[[str], bool]) -> list[Piece]:
    """In halves, as near to the middle as a mark stands, until all fit."""
    if fits(piece.text):
        return [piece]
    text, middle = piece.text, len(piece.text) / 2
    for places in _PLACES:
        found = [m for m in places.finditer(text) if 0.2 * len(text) < m.end() < 0.8 * len(text)]
        if found:
            best = min(found, key=lambda m: abs(m.end() - middle))
            begin, end = best.end() - len(best.group()) + len(best.group().rstrip()), best.end()
            break
    else:
        begin = end = len(text) // 2
    first, second = Piece(text[:begin], text[begin:end]), Piece(text[end:], piece.after)
    return [*_cut(first, fits), *_cut(second, fits)]
