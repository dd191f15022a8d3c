"""Names in French sentences, with the elision before a vowel."""

from __future__ import annotations

import re

VOWELS = "aeiouyhâàéèêëîïôöùûüAEIOUYHÂÀÉÈÊËÎÏÔÖÙÛÜ"
_ELIDED = {"de": "d'", "que": "qu'", "De": "D'", "Que": "Qu'", "lorsque": "lorsqu'", "puisque": "puisqu'"}
_FULL = {short: full for full, short in _ELIDED.items()}


def put_name(text: str, old: str, new: str) -> str:
    """A sentence with another name.

    >>> put_name("Le chien de Tom", "Tom", "Anna"), put_name("Le chien d'Anna", "Anna", "Tom")
    ("Le chien d'Anna", 'Le chien de Tom')
    """
    text = text.replace("’", "'")
    if new[0] in VOWELS:
        text = re.sub(rf"\b({'|'.join(_ELIDED)}) {old}\b", lambda m: _ELIDED[m[1]] + old, text)
    else:
        text = re.sub(rf"\b({'|'.join(_FULL)}){old}\b", lambda m: f"{_FULL[m[1]]} {old}", text)
    return re.sub(rf"\b{old}\b", lambda _: new, text)
