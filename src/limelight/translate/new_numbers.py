"""Replaces numbers in pairs: digits, hours, dates and prices, written as each language writes them.

>>> draw = random.Random(1)
>>> replace_numbers(Pair("I paid 30 dollars.", "J'ai payé 30 dollars."), draw)
Pair(source='I paid 99 dollars.', target="J'ai payé 99 dollars.")
"""

from __future__ import annotations

import random
import re

from limelight.translate.data import Pair
from limelight.translate.french import MONTHS, clock
from limelight.translate.words import reserved

_DIGITS = re.compile(r"\d+(?:[.,:]\d+)*")
_IN_WORDS = {
    "two": "deux",
    "three": "trois",
    "four": "quatre",
    "five": "cinq",
    "six": "six",
    "seven": "sept",
    "eight": "huit",
    "nine": "neuf",
    "ten": "dix",
    "eleven": "onze",
    "twelve": "douze",
    "fifteen": "quinze",
    "twenty": "vingt",
    "thirty": "trente",
    "forty": "quarante",
    "fifty": "cinquante",
    "sixty": "soixante",
}


def unreserved(draw: random.Random, low: int, high: int) -> int:
    while reserved(str(number := draw.randint(low, high))):
        pass
    return number


def amount(draw: random.Random) -> tuple[str, str]:
    """Draw a number, and return it as English and as French write it: 45, 1998, 12,500 (12 500), 3.5 (3,5)."""
    while True:
        kind = draw.random()
        if kind < 0.45:
            text = other = str(draw.randint(2, 10 ** draw.choice((1, 2, 2, 3, 3)) - 1))
        elif kind < 0.65:
            text = other = str(draw.randint(1500, 2099))
        elif kind < 0.75:
            text = other = str(draw.randint(1000, 99999))
        elif kind < 0.88:
            text = f"{draw.randint(1000, 10 ** draw.choice((4, 5, 6, 7)) - 1):,}"
            other = text.replace(",", " ")
        else:
            text = f"{draw.randint(0, 10 ** draw.choice((1, 2, 3)))}.{draw.randint(1, 99)}"
            other = text.replace(".", ",")
        if not reserved(text):
            return text, other


def replace_numbers(pair: Pair, draw: random.Random) -> Pair:
    """Replace numbers that both sides have in digits, mostly a year by a year and a small number by a small one."""
    source, target = pair
    for old in dict.fromkeys(_DIGITS.findall(source)):
        if source.count(old) != 1 or len(re.findall(rf"(?<!\d){re.escape(old)}(?!\d)", target)) != 1:
            continue
        if re.fullmatch(r"1\d{3}|20\d\d", old) and draw.random() < 0.7:
            new = other = str(unreserved(draw, 1000, 2099))
        elif old.isdigit() and len(old) < 3 and draw.random() < 0.6:
            new = other = str(unreserved(draw, 2, 99))
        elif old.isdigit():
            new, other = amount(draw)
        else:
            continue
        source = source.replace(old, new)
        target = re.sub(rf"(?<!\d){re.escape(old)}(?!\d)", other, target)
    return Pair(source, target)


def numbers_in_digits(pair: Pair, draw: random.Random) -> Pair:
    """Replace a number that both sides have in words by digits: three and trois become 47."""
    for english, french in _IN_WORDS.items():
        if len(re.findall(rf"\b{english}\b", pair.source)) == 1 == len(re.findall(rf"\b{french}\b", pair.target)):
            text, other = amount(draw) if draw.random() < 0.5 else (str(unreserved(draw, 2, 99)),) * 2
            source, target = re.sub(rf"\b{english}\b", text, pair.source), re.sub(rf"\b{french}\b", other, pair.target)
            if re.search(rf"\b{english}-|-{english}\b", pair.source) is None and "heures et" not in target:
                return Pair(source, target)
    return pair


def drawn_clock(draw: random.Random) -> tuple[str, str]:
    while True:
        half = draw.choice(("", "", " a.m.", " p.m.", " in the morning"))
        hour = draw.randint(1, 12 if half else 23)
        text = f"{hour}:{draw.randint(1, 59):02}"
        if not reserved(text):
            break
    minutes = text.split(":")[1]
    short = {" in the morning": "a.m."}.get(half, half.strip())
    return text + half, clock(str(hour), minutes, short)


def drawn_date(draw: random.Random) -> tuple[str, str]:
    month = draw.choice(list(MONTHS))
    day, year = unreserved(draw, 2, 31), unreserved(draw, 1000, 2099)
    french = f"{day} {MONTHS[month]} {year}"
    kind = draw.random()
    if kind < 0.5:
        return f"{month} {day}, {year}", french
    if kind < 0.7:
        return f"{day} {month} {year}", french
    return f"{month} {day}", f"{day} {MONTHS[month]}"


def drawn_price(draw: random.Random) -> tuple[str, str]:
    text, other = amount(draw)
    return draw.choice(
        (
            (f"${text}", f"{other} dollars"),
            (f"{text} dollars", f"{other} dollars"),
            (f"€{text}", f"{other} euros"),
            (f"{text} euros", f"{other} euros"),
            (f"{text} yen", f"{other} yens"),
        )
    )
