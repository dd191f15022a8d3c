"""Splits a text into sentences, and keeps everything between them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

# Text between two sentences: white space after a mark and closing quotes or brackets, before a possible beginning; the
# end of a line or a column; a URL, an e-mail address or an endless word, which are not translated. The look-behinds
# keep a run of white space from being tried again from its middle, which would take quadratic time.
_END = re.compile(
    r"(?<=[.!?…])(?P<closing>[\"'”’»)\]]*)(?P<space>\s+)(?=[\"'“‘«(\[¿¡]*[A-ZÀ-Þ0-9]|[^\w\s])"
    r"|(?P<kept>(?:(?<!\s)\s+|(?<!\S))(?:(?:https?://|www\.)\S+|[^\s@]+@[^\s@]+\.[^\s@]+|[!-~]{41,})(?:\s+|$))"
    r"|(?P<line>(?<!\s)[^\S\n\t]*[\n\t]\s*)"
)
_ABBREVIATION = re.compile(r"\b(?:Mr|Mrs|Ms|Dr|St|Prof|Jr|Sr|vs|etc|e\.g|i\.e|a\.m|p\.m|[A-Z])\.$")
_NUMBERED = re.compile(r"\b(?:Fig|Figs|No|Nos|Vol|Ch|Sec|Eq|p|pp|approx|ca)\.$", re.IGNORECASE)
_JOINING = r"(?:so|because|although|though|while|whereas|which|who|when|where|if|unless|until|after|before)"
# Words after "and", "but" or "or" that usually begin a clause and do not continue a list.
_SUBJECT = (
    r"(?:I|you|he|she|it|we|they|there|this|that|these|those|my|your|his|her|its|our|their|the|a|an|no|all|some|every"
    r"|everyone|everybody|nobody|someone|what|who|where|when|why|how|if|please|let|don't|never|do|does|did|can|is|are)"
)
# The space between speech and speaker, in either order: she asked, "Where?" and "Here," he said.
_SPEECH = re.compile(r'(?<=[,:])\s+(?="[^"]+"\W*$)|(?<=[,.!?]")\s+(?=[^\W\d_][^"]*$)')
_INVERTED = re.compile(
    r"(\w+ed|said|says|asks|thought) ((?:[A-Z]\w*\.? )*[A-Z]\w*|(?:the|a|an|my|your|his|her|our|their) [\w ]+)([.!?]*)"
)
_CLAUSE = re.compile(rf",?\s+(?=(?:and|but|or)\s+{_SUBJECT}(?:'\w+)?\s)")
_LEAST = 3  # words of a clause, at least
_PLACES = (
    re.compile(r"[;:!?…]\s+"),  # a full stop inside a sentence is that of an abbreviation
    re.compile(r",?\s+(?=(?:and|but|or)\s)"),
    re.compile(rf"(?<!\band)(?<!\bbut)(?<!\bor),?\s+(?={_JOINING}\s)"),
    re.compile(r",\s+"),
    re.compile(r"\s+"),
)


class Piece(NamedTuple):
    """A sentence, or a part of a long one, and the text between it and the next one."""

    text: str
    after: str
    continues: bool = False  # an earlier piece belongs to the same sentence


def split(text: str, fits: Callable[[str], bool]) -> list[Piece]:
    r"""Split a text into sentences; one that does not fit is cut, at a mark if it has one.

    >>> [piece.text for piece in split("Hello, Mr. Smith. How are you?\nFine.", lambda text: True)]
    ['Hello, Mr. Smith.', 'How are you?', 'Fine.']
    """
    pieces = []
    begin = 0
    for end in _END.finditer(text):
        sentence = text[begin : end.start() + len(end["closing"] or "")]
        if end["space"] and (_ABBREVIATION.search(sentence) or _is_numbered(sentence, text[end.end()])):
            continue
        pieces.append(Piece(sentence, end["space"] or end["kept"] or end["line"]))
        begin = end.end()
    pieces.append(Piece(text[begin:], ""))
    spoken = [part for piece in pieces if piece.text or piece.after for part in _speech(piece)]
    return [part for piece in spoken for part in _parts(piece, fits)]


def _speech(piece: Piece) -> list[Piece]:
    """Split a sentence into what is said in quotation marks and who says it."""
    found = _SPEECH.search(piece.text) if piece.text.count('"') == 2 else None
    if found is None:
        return [piece]
    first, second = piece.text[: found.start()], piece.text[found.end() :]
    return [Piece(first, found[0]), Piece(second, piece.after, continues=first.startswith('"'))]


def subject_first(text: str) -> str:
    """Put the speaker before the verb, the order that the model has learned; other texts are unchanged.

    >>> subject_first("asked Mary."), subject_first("he said.")
    ('Mary asked.', 'he said.')
    """
    found = _INVERTED.fullmatch(text)
    return text if found is None else f"{found[2]} {found[1]}{found[3]}"


def _is_numbered(sentence: str, following: str) -> bool:
    """Return True if the mark belongs to the number after it: Fig. 3, p. 12."""
    return following.isdigit() and _NUMBERED.search(sentence) is not None


def _parts(piece: Piece, fits: Callable[[str], bool]) -> list[Piece]:
    """Cut a sentence that does not fit into clauses, and clauses that do not fit into halves."""
    if fits(piece.text):
        return [piece]
    clauses: list[Piece] = []
    begin = 0
    for found in _CLAUSE.finditer(piece.text):
        before, after = piece.text[begin : found.start()], piece.text[found.end() :]
        if min(len(before.split()), len(after.split())) >= _LEAST:
            comma = found[0].rstrip()
            clauses.append(Piece(before + comma, found[0][len(comma) :], piece.continues or begin > 0))
            begin = found.end()
    clauses.append(Piece(piece.text[begin:], piece.after, piece.continues or begin > 0))
    return [part for clause in clauses for part in _cut(clause, fits)]


def _cut(piece: Piece, fits: Callable[[str], bool]) -> list[Piece]:
    """Cut in halves, at the mark or conjunction nearest to the middle, until all parts fit."""
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
    first = Piece(text[:begin], text[begin:end], piece.continues)
    second = Piece(text[end:], piece.after, continues=not text[:begin].endswith(("!", "?", "…")))
    return [*_cut(first, fits), *_cut(second, fits)]
