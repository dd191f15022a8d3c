"""Finds the numbers, names and quotation marks that a translation must keep, and those that it lost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from limelight.translate import dates, number_words, ordinals
from limelight.translate.first_names import read_as_names
from limelight.translate.numerals import NUMBER, in_french, numbers

WORDS = "words.txt"  # file in a model's folder: English words that it knows; other words with a capital are names

_WORD = re.compile(r"[^\W\d_]+")
_WORDS = re.compile(r"[^\W\d_]+(?:[ '-][^\W\d_]+)*")
# 221B Baker Street, London; 350 Fifth Avenue, New York, NY 10118: kept as it is.
_STREETS = "Street|Avenue|Road|Lane|Drive|Boulevard|Square|Court|Place|Terrace|Way|St|Ave|Rd|Blvd"
ADDRESS = re.compile(
    rf"\b\d+[A-Za-z]?(?: [A-Z]\w*| \d+(?:st|nd|rd|th)){{1,4}}? (?:{_STREETS})\b"
    r"(?:, [A-Z]\w+(?: [A-Z]\w+)*)*(?: \d{5}\b)?"
)
_QUOTE = re.compile(r'["«»“”]')
# Words that a translation may write in digits.
_IN_WORDS = re.compile(
    r"\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|twenty|thirty|forty|fifty|sixty"
    r"|seventy|eighty|ninety|hundreds?|thousands?|millions?|billions?|dozens?|half|quarter|noon|midnight|o'clock"
    r"|first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|twelfth|\w+teenth|\w+tieth)\b",
    re.IGNORECASE,
)


_TITLES = frozenset({"mr", "mrs", "ms", "dr", "st", "prof", "jr", "sr"})


def names(text: str, known: frozenset[str] | None) -> list[str]:
    """Return the words with a capital that are not among the known English words, if these are given.

    >>> names("Yesterday Zelda met Mr. Okonkwo.", frozenset({"yesterday", "met"}))
    ['Zelda', 'Okonkwo']
    """
    first_names = read_as_names(text)
    found = (word for word in _WORD.findall(text) if _is_name(word, known, first_names))
    return list(dict.fromkeys(found))


def _is_name(word: str, known: frozenset[str] | None, first_names: Sequence[str]) -> bool:
    if known is None or len(word) < 2 or not word[0].isupper():
        return False
    return word in first_names or (word.lower() not in known and word.lower() not in _TITLES)


def whole_names(text: str, known: frozenset[str] | None) -> list[str]:
    """Return the names of a text, neighbouring ones joined to one, and addresses.

    >>> whole_names("Zelda saw Lily-Rose Okonkwo.", frozenset({"saw"}))
    ['Zelda', 'Lily-Rose Okonkwo']
    >>> whole_names("Zelda lives at 221 Baker Street, London.", frozenset({"lives", "at"}))
    ['221 Baker Street, London', 'Zelda']
    """
    addresses = ADDRESS.findall(text)
    found = _WORDS.finditer(ADDRESS.sub("\n", text))
    split = (re.split(r"([ '-])", run[0]) for run in found)
    first_names = read_as_names(text)
    wholes: list[str] = []
    for parts in split:
        whole = ""
        for n in range(0, len(parts), 2):
            if not _is_name(parts[n], known, first_names):
                wholes.append(whole)
                whole = ""
            else:
                whole += (parts[n - 1] if whole else "") + parts[n]
        wholes.append(whole)
    return list(dict.fromkeys(name for name in (*addresses, *wholes) if name))


class Phrase(NamedTuple):
    """A number or name that a translation has to contain, as it is written in French."""

    text: str
    is_number: bool


def phrases(text: str, known: frozenset[str] | None) -> list[Phrase]:
    """Return all numbers in digits and all names of a sentence."""
    found = [Phrase(in_french(number), True) for number in NUMBER.findall(ADDRESS.sub("\n", text))]
    return [*found, *(Phrase(name, False) for name in whole_names(text, known))]


def may_write_digits(text: str) -> bool:
    """Return whether a sentence has a number in words, which its translation may write in digits."""
    return _IN_WORDS.search(text) is not None


def changes(source: str, target: str, known: frozenset[str] | None) -> list[str]:
    """Describe the numbers, names and quotation marks that a translation does not keep; empty if it keeps all.

    >>> changes("Zelda paid 5 dollars.", "Elle a payé 50 dollars.", frozenset({"paid"}))
    ['the number 5 became 50', 'the name Zelda is missing']
    """
    here, there = numbers(source), numbers(target)
    lost, new = here - there, there - here
    if may_write_digits(source):
        new = Counter()
    found = [f"the number {a} became {b}" for a, b in zip(lost.elements(), new.elements(), strict=False)]
    found += [f"the number {number} is missing" for number in list(lost.elements())[new.total() :]]
    found += [f"the number {number} was added" for number in list(new.elements())[lost.total() :]]
    found += [*ordinals.lost(source, target), *dates.lost(source, target), *number_words.lost(source, target)]
    found += [f"the address {address} is missing" for address in ADDRESS.findall(source) if address not in target]
    written = set(_WORD.findall(target))
    found += [f"the name {name} is missing" for name in names(source, known) if name not in written]
    if len(_QUOTE.findall(source)) > len(_QUOTE.findall(target)):
        found.append("quotation marks are missing")
    return found


def read_words(lines: Iterable[str]) -> frozenset[str]:
    """Return English words from a text with one word on each line."""
    return frozenset(line.strip() for line in lines if line.strip())
