"""Finds numbers in words, such as twelve, that a translation has lost."""

from __future__ import annotations

import re

# French for each number: the word itself, a part of a larger one (seventy-two is soixante-douze), or an hour of the
# afternoon (five is dix-sept heures).
_FRENCH = {
    "two": "deux|douze|second|demi|couple|jumeaux|paire|2",
    "three": "trois|treize|quinze|3",
    "four": "quatre|quatorze|seize|4",
    "five": "cinq|quinze|dix-sept|5|17",
    "six": "six|seize|dix-huit|6|18",
    "seven": "sept|dix-neuf|7|19",
    "eight": "huit|vingt|8|20",
    "nine": "neuf|vingt|9|21",
    "ten": "dix|vingt|10|22",
    "eleven": "onze|vingt|11|23",
    "twelve": "douz|midi|minuit|12",
    "thirteen": "treize|13",
    "fourteen": "quatorze|14",
    "fifteen": "quinze|quart|15",
    "sixteen": "seize|16",
    "seventeen": "dix-sept|17",
    "eighteen": "dix-huit|18",
    "nineteen": "dix-neuf|19",
    "twenty": "vingt|2",
    "thirty": "trent|demi|3",
    "forty": "quarant|4",
    "fifty": "cinquant|5",
    "sixty": "soixant|6",
    "seventy": "soixante|septante|7",
    "eighty": "quatre-vingt|huitante|8",
    "ninety": "quatre-vingt|nonante|9",
    "hundred": "cent|00",
    "thousand": "mil|000",
    "million": "million|000",
    "billion": "milliard|000",
}
_ENGLISH = re.compile(rf"\b({'|'.join(_FRENCH)})s?\b", re.IGNORECASE)


def lost(source: str, target: str) -> list[str]:
    """Describe the numbers in words that a translation has neither in words nor in digits.

    >>> lost("He has two cats and twelve dogs.", "Il a deux chats et un chien.")
    ['twelve is missing']
    """
    target = target.lower()
    found = dict.fromkeys(word.lower() for word in _ENGLISH.findall(source))
    return [f"{word} is missing" for word in found if not re.search(_FRENCH[word], target)]
