"""Ordinals and decades in digits, such as 3rd and 1980s: which a translation lost, and how French writes them."""

from __future__ import annotations

import re

from limelight.translate.french import MONTHS

ORDINAL = re.compile(r"\b(\d+)(?:st|nd|rd|th)\b")
_DECADE = re.compile(r"\b((?:\d\d)?\d0)'?s\b")
_MONTH = "|".join(MONTHS)
# The day of a date, which French writes without an ending: May 5th, the 5th of May, on the 5th.
_AFTER_DATE, _BEFORE_DATE = re.compile(rf"(?:{_MONTH}) (?:the )?$"), re.compile(rf" (?:of )?(?:{_MONTH})")
_ON_THE, _ALONE = re.compile(r"\b(?:on|for|by|since|until|from|to) the $", re.IGNORECASE), re.compile(r"\W*$|[,;]")
_ENDING = r" ?(?:er|re|ère|nd|nde|e|è|ème|ième|ᵉ)\b"
_IN_WORDS = {
    "1": "premier|première",
    "2": "deuxième|second",
    "3": "troisième",
    "4": "quatrième",
    "5": "cinquième",
    "6": "sixième",
    "7": "septième",
    "8": "huitième",
    "9": "neuvième",
    "10": "dixième",
}


def in_french(number: str) -> str:
    """Write an ordinal in digits as French does.

    >>> in_french("1"), in_french("21")
    ('1er', '21e')
    """
    return number + ("er" if number == "1" else "e")


def is_day(found: re.Match[str]) -> bool:
    """Return whether an ordinal is the day of a date."""
    before, after = found.string[: found.start()], found.string[found.end() :]
    return bool(
        _AFTER_DATE.search(before) or _BEFORE_DATE.match(after) or (_ON_THE.search(before) and _ALONE.match(after))
    )


def lost(source: str, target: str) -> list[str]:
    """Describe the ordinals and decades that a translation lost, or kept as a plain number.

    >>> lost("He came 3rd in the 1980s.", "Il vint 3 en 1980.")
    ['the ordinal 3rd became 3', 'the decade 1980s became 1980']
    >>> lost("He came 3rd in the 1980s, on May 5th.", "Il vint 3e dans les années 80, le 5 mai.")
    []
    """
    found = []
    for one in ORDINAL.finditer(source):
        words = _IN_WORDS.get(one[1], r"[\w-]+ième|[IVX]+e")
        if not is_day(one) and not re.search(rf"\b(?:{one[1]}{_ENDING}|{words})", target, re.IGNORECASE):
            found.append(f"the ordinal {one[0]} {_became(one[1], target)}")
    for one in _DECADE.finditer(source):
        if not re.search(rf"\bannées (?:(?:\d\d)?{one[1][-2:]}\b|[^\W\d])", target):
            found.append(f"the decade {one[0]} {_became(one[1], target)}")
    return found


def _became(number: str, target: str) -> str:
    return f"became {number}" if re.search(rf"\b{number}\b", target) else "is missing"


def with_decades(source: str, target: str) -> str:
    """Return a translation in which decades are written as decades and not as years.

    >>> with_decades("I was born in the 1980s.", "Je suis né en 1980.")
    'Je suis né dans les années 1980.'
    """
    for one in _DECADE.finditer(source):
        target = re.sub(rf"\b(les|des|aux|Les|Des|Aux) (?:années (?:de )?)?{one[1]}\b", rf"\1 années {one[1]}", target)
        target = re.sub(rf"\ben {one[1]}\b", f"dans les années {one[1]}", target)
        target = re.sub(rf"\bEn {one[1]}\b", f"Dans les années {one[1]}", target)
    return target
