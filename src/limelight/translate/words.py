"""Words of pairs: tells names from other words, and reserves names and numbers for tests of copying."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence

from limelight.translate.data import Pair

WORD = re.compile(r"[^\W\d_]+")


def reserved(text: str) -> bool:
    """Return whether a number or name is kept out of training: half of all are, so that copying can be tested.

    >>> reserved("1996"), reserved("1998")
    (True, False)
    """
    return zlib.crc32(text.casefold().encode()) % 2 == 0


def continued(text: str, lower: frozenset[str]) -> str:
    """Return ``text`` with a lower-case first letter if its first word is in ``lower``, the words that occur so."""
    word = WORD.match(text)
    if word is None or word[0] == "I" or word[0].lower() not in lower:
        return text
    return text[0].lower() + text[1:]


def lower_words(texts: Iterable[str]) -> frozenset[str]:
    """Return the words that occur with a lower-case first letter."""
    return frozenset(word for text in texts for word in WORD.findall(text) if word[0].islower())


def known_words(pairs: Sequence[Pair]) -> list[str]:
    """Return the English words that are not names: lower-case somewhere, or mostly translated by another word."""
    count, same = Counter[str](), Counter[str]()
    for source, target in pairs:
        there = set(WORD.findall(target))
        for word in set(WORD.findall(source)):
            if word[0].isupper():
                count[word] += 1
                same[word] += word in there
    translated = {word.lower() for word in count if 2 * same[word] < count[word]}
    return sorted(translated | lower_words(pair.source for pair in pairs))
