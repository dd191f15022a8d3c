"""Numbers in digits, as they are written in English and in French."""

from __future__ import annotations

import re
from collections import Counter

_STROKES = r"(?<![\d/.,])\d{1,4}(?:/\d{1,4})+(?![\d/])"  # 1/2, 3/14/2024
# Or groups of three digits with a comma or a point between them, or any digits, and decimals.
NUMBER = re.compile(rf"{_STROKES}|\d{{1,3}}(?:[.,]\d{{3}})+(?!\d)(?:[.,]\d+)?|\d+(?:[.,]\d+)?")
# The same with spaces between the groups, as in French.
_SPACED = re.compile(r"(?<![\d.,])(\d{1,3})((?:[ \u00a0\u202f]\d{3})+)(?!\d)")
_GROUP = re.compile(r"[.,](?=\d{3}(?!\d))")


def numbers(text: str) -> Counter[str]:
    """Count the numbers in a text, written in the same way for both languages.

    >>> sorted(numbers("12,500 people paid $3.50 at 4:30."))
    ['12500', '3.50', '30', '4']
    >>> sorted(numbers("12 500 personnes ont payé 3,50 $ à 4 h 30."))
    ['12500', '3.50', '30', '4']
    >>> sorted(numbers("1/2 cup on 3/14/2024"))
    ['1/2', '3/14/2024']
    """
    text = _SPACED.sub(lambda m: m[1] + re.sub(r"\s", "", m[2]), text)
    return Counter(_GROUP.sub("", number).replace(",", ".") for number in NUMBER.findall(text))


def in_french(number: str) -> str:
    """Write an English number as French does.

    >>> in_french("12,500"), in_french("3.5"), in_french("1998")
    ('12 500', '3,5', '1998')
    """
    return _GROUP.sub(" ", number).replace(".", ",")
