"""Names, dates and times of day in French."""

from __future__ import annotations

import re

MONTHS = {
    "January": "janvier",
    "February": "février",
    "March": "mars",
    "April": "avril",
    "May": "mai",
    "June": "juin",
    "July": "juillet",
    "August": "août",
    "September": "septembre",
    "October": "octobre",
    "November": "novembre",
    "December": "décembre",
}
VOWELS = "aeiouyhâàéèêëîïôöùûüAEIOUYHÂÀÉÈÊËÎÏÔÖÙÛÜ"
_ELIDED = {"de": "d'", "que": "qu'", "De": "D'", "Que": "Qu'", "lorsque": "lorsqu'", "puisque": "puisqu'"}
_FULL = {short: full for full, short in _ELIDED.items()}


def clock(hour: str, minutes: str, half: str) -> str:
    """Write a time of day in French; ``half`` is "a.m.", "p.m." or empty.

    >>> clock("3", "45", "p.m.")
    "3 h 45 de l'après-midi"
    """
    if not half:
        return f"{hour} h {minutes}"
    evening = half.startswith("p") and 6 <= int(hour) < 12
    return f"{hour} h {minutes} " + (
        "du matin" if half.startswith("a") else "du soir" if evening else "de l'après-midi"
    )


def put_name(text: str, old: str, new: str) -> str:
    """Replace a name in a French sentence.

    >>> put_name("Le chien de Tom", "Tom", "Anna"), put_name("Le chien d'Anna", "Anna", "Tom")
    ("Le chien d'Anna", 'Le chien de Tom')
    """
    text = text.replace("’", "'")
    if new[0] in VOWELS:
        text = re.sub(rf"\b({'|'.join(_ELIDED)}) {old}\b", lambda m: _ELIDED[m[1]] + old, text)
    else:
        text = re.sub(rf"\b({'|'.join(_FULL)}){old}\b", lambda m: f"{_FULL[m[1]]} {old}", text)
    return re.sub(rf"\b{old}\b", lambda _: new, text)
