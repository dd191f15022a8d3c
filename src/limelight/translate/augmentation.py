"""More pairs from pairs: other numbers and names, added phrases, quotation marks, and sentences joined to long ones.

A model that is trained on the pairs alone learns the few numbers and names that occur in them by heart. Here both sides
of a pair get the same new number or name, so that the only way to be right is to copy it.

>>> draw = random.Random(1)
>>> replace_numbers(Pair("I paid 30 dollars.", "J'ai payé 30 dollars."), draw)
Pair(source='I paid 99 dollars.', target="J'ai payé 99 dollars.")
"""

from __future__ import annotations

import random
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from limelight.translate.data import Pair
from limelight.translate.french import MONTHS, VOWELS, clock, put_name
from limelight.translate.numerals import numbers

_WORD = re.compile(r"[^\W\d_]+")


def reserved(text: str) -> bool:
    """Tells whether a number or name is kept out of training: half of all, so that copying can be tested on them.

    >>> reserved("1996"), reserved("1998")
    (True, False)
    """
    return zlib.crc32(text.casefold().encode()) % 2 == 0


@dataclass(frozen=True)
class Shares:
    """Shares of the pairs that are changed in an epoch; all between 0 and 1."""

    names: float  # of the pairs with a name on both sides, those that get another one
    numbers: float  # of the pairs with a number on both sides, those that get another one
    phrases: float  # of all pairs, those that get a phrase with a number or a name
    quotes: float  # of all pairs, those that get quotation marks
    joined: float  # of all pairs, those that are joined with others
    longest: int  # words of a joined sentence


class Augmenter:
    """Changes pairs at random; what it has learned from the pairs is which words are names."""

    def __init__(self, pairs: Sequence[Pair], shares: Shares) -> None:
        self.shares = shares
        # A number that is written in words on one side teaches the model not to copy.
        self.pairs = (
            [pair for pair in pairs if numbers(pair.source) == numbers(pair.target)] if shares.numbers else pairs
        )
        self.lower = tuple(lower_words(pair[side] for pair in pairs) for side in (0, 1))
        self.names = Names(pairs, self.lower[0] | self.lower[1])

    def epoch(self, seed: str, part: float = 1.0) -> list[Pair]:
        """Every pair once, changed or not, joined or not, and those with numbers and names a few times more.

        ``part`` is the share of the pairs to draw.
        """
        draw = random.Random(seed)
        shares = self.shares
        pairs = self.pairs if part == 1 else draw.sample(self.pairs, max(1, round(part * len(self.pairs))))
        found: list[Pair] = []
        joining: list[Pair] = []
        for pair in pairs:
            for copy in self._copies(pair, draw):
                (joining if draw.random() < shares.joined else found).append(copy)
        draw.shuffle(joining)
        return found + self._joined(joining, draw)

    def _copies(self, pair: Pair, draw: random.Random) -> list[Pair]:
        shares = self.shares
        if shares.numbers and numbers(pair.source):
            return [pair, *(replace_numbers(pair, draw) for _ in range(round(8 * shares.numbers)))]
        changed = numbers_in_digits(pair, draw) if draw.random() < shares.numbers else pair
        name = self.names.shared(changed)
        if name and draw.random() < shares.names:
            changed = replace_name(changed, name, self.names.draw(draw))
        elif draw.random() < 0.2 * shares.names:
            changed = name_for_pronoun(changed, self.names.draw(draw))
        if draw.random() < shares.phrases:
            changed = add_phrase(changed, draw, self.names)
        if draw.random() < shares.quotes:
            changed = add_quotes(changed, draw)
        if (
            name and name != "Tom" and shares.names
        ):  # Tom is in one pair of ten; all other names together in one of fifty
            return [changed, replace_name(pair, name, self.names.draw(draw))]
        return [changed]

    def _joined(self, pairs: list[Pair], draw: random.Random) -> list[Pair]:
        found = []
        rest = iter(pairs)
        group: list[Pair] = []
        wanted = count = 0
        for pair in rest:
            words = len(pair.source.split()) + 1
            if not group:
                wanted, count = draw.randint(10, max(10, self.shares.longest)), 0
            if group and count + words > self.shares.longest:
                found.append(self.join(group, draw))
                group, count = [], 0
            group.append(pair)
            count += words
            if count >= wanted:
                found.append(self.join(group, draw))
                group = []
        return [*found, *group]

    def join(self, pairs: Sequence[Pair], draw: random.Random) -> Pair:
        """One sentence from several, with "and" between most of them, or a text of several sentences."""
        if draw.random() < 0.15:
            return Pair(" ".join(p.source for p in pairs), " ".join(p.target for p in pairs))
        source, target = pairs[0]
        plain = draw.random() < 0.5  # "and" between all
        for pair in pairs[1:]:
            between = (" and ", " et ") if plain else draw.choice(_BETWEEN)
            source = _without_mark(source) + between[0] + self._continued(pair.source, 0)
            target = _without_mark(target) + between[1] + self._continued(pair.target, 1)
        return Pair(source, target)

    def _continued(self, text: str, side: int) -> str:
        """A sentence as it stands inside another: with a small letter, unless its first word is a name or I."""
        return continued(text, self.lower[side])


_BETWEEN = (
    (" and ", " et "),
    (", and ", ", et "),
    (", and ", " et "),
    (", but ", ", mais "),
    (", ", ", "),
    ("; ", " ; "),
)


def continued(text: str, lower: frozenset[str]) -> str:
    """``text`` with a small first letter where its first word occurs so; ``lower`` has all words that do."""
    word = _WORD.match(text)
    if word is None or word[0] == "I" or word[0].lower() not in lower:
        return text
    return text[0].lower() + text[1:]


def _without_mark(text: str) -> str:
    return text.rstrip(".!?… \u00a0\u202f") or text


def lower_words(texts: Iterable[str]) -> frozenset[str]:
    """Words that occur with a small first letter."""
    return frozenset(word for text in texts for word in _WORD.findall(text) if word[0].islower())


def known_words(pairs: Sequence[Pair]) -> list[str]:
    """English words that are no names to copy: with a small letter somewhere, or mostly translated by another word."""
    count, same = Counter[str](), Counter[str]()
    for source, target in pairs:
        there = set(_WORD.findall(target))
        for word in set(_WORD.findall(source)):
            if word[0].isupper():
                count[word] += 1
                same[word] += word in there
    translated = {word.lower() for word in count if 2 * same[word] < count[word]}
    return sorted(translated | lower_words(pair.source for pair in pairs))


# Names


class Names:
    """Recognises the names in pairs, and makes up others."""

    def __init__(self, pairs: Sequence[Pair], lower: frozenset[str]) -> None:
        self.lower = lower
        words = {word.lower() for pair in pairs for text in pair for word in _WORD.findall(text) if len(word) > 3}
        self.after: dict[str, list[str]] = {}
        for word in sorted(words):
            padded = f"^^{word}$"
            for n in range(len(padded) - 2):
                self.after.setdefault(padded[n : n + 2], []).append(padded[n + 2])

    def shared(self, pair: Pair) -> str | None:
        """The first word with a capital that stands once in each sentence of the pair and is no common word."""
        there = Counter(_WORD.findall(pair.target))
        here = Counter(_WORD.findall(pair.source))
        for word, count in here.items():
            if count == 1 == there[word] and word[0].isupper() and len(word) > 1 and word.lower() not in self.lower:
                return str(word)
        return None

    def draw(self, draw: random.Random) -> str:
        """A name of one or two words that are not ``reserved``."""
        while True:
            kind = draw.random()
            name = self._word(draw)
            if kind < 0.12:
                name = f"{name} {self._word(draw)}"
            elif kind < 0.15:
                name = f"{name}-{self._word(draw)}"
            elif kind < 0.18:
                name = draw.choice(_BEFORE) + name
            if not any(reserved(word) for word in _WORD.findall(name) if word not in _PARTICLES):
                return name

    def _word(self, draw: random.Random) -> str:
        while True:
            word = _from_syllables(draw) if draw.random() < 0.5 else self._from_letters(draw)
            word = word[0].upper() + word[1:]
            if 3 <= len(word) <= 12 and not reserved(word) and word.lower() not in self.lower:
                return word

    def _from_letters(self, draw: random.Random) -> str:
        """Letter by letter, each drawn from those that follow the two before it in some word."""
        text = "^^"
        while len(text) < 14:
            letter = draw.choice(self.after.get(text[-2:], ["$"]))
            if letter == "$":
                break
            text += letter
        return text[2:] or "x"


_BEFORE = ("O'", "Mc", "Mac", "De ", "Van ", "San ", "Saint-", "El ", "Al-", "Di")
_PARTICLES = ("O", "De", "Van", "San", "Saint", "El", "Al")
_ONSETS = (
    *("b", "c", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z", "y", "q"),
    *("br", "cr", "dr", "fr", "gr", "kr", "pr", "tr", "bl", "cl", "fl", "gl", "pl", "sl", "sh", "ch", "th", "ph", "st"),
    *(
        "sk",
        "sp",
        "kh",
        "zh",
        "sv",
        "kn",
        "rh",
        "mb",
        "nd",
        "ts",
        "sch",
        "str",
        "qu",
        "gw",
        "dj",
        "ny",
        "x",
        "",
        "",
        "",
    ),
)
_NUCLEI = (
    *(
        "a",
        "e",
        "i",
        "o",
        "u",
        "a",
        "e",
        "i",
        "o",
        "u",
        "y",
        "aa",
        "ee",
        "oo",
        "ai",
        "ay",
        "au",
        "ea",
        "ei",
        "eo",
        "ia",
    ),
    *("ie", "io", "oa", "oi", "ou", "ua", "ue", "ui", "é", "è", "ö", "ü", "ä", "á", "í", "ó", "ø", "å", "ã", "ñi", "ç"),
)
_CODAS = (
    *("", "", "", "", "n", "r", "s", "l", "m", "t", "k", "d", "g", "p", "b", "v", "x", "z", "f", "h", "ck", "nd", "nt"),
    *("ng", "rd", "rt", "rs", "ll", "ss", "tt", "nn", "rr", "st", "sh", "ch", "th", "lt", "ld", "rk", "rn", "sk", "tz"),
    *("ev", "ić", "ez", "ski", "son", "sen", "man", "ton", "berg", "ini", "elli", "oğlu", "ová", "escu", "ș", "ł", "š"),
)


def _from_syllables(draw: random.Random) -> str:
    count = draw.choice((1, 2, 2, 2, 3, 3, 4))
    inside = "".join(
        draw.choice(_ONSETS) + draw.choice(_NUCLEI[:29] if draw.random() < 0.9 else _NUCLEI) for _ in range(count)
    )
    return inside + (draw.choice(_CODAS) if draw.random() < 0.6 else "")


def replace_name(pair: Pair, old: str, new: str) -> Pair:
    """Another name on both sides, with the elision that French needs (d'Anna, de Tom).

    >>> replace_name(Pair("Tom's dog", "le chien de Tom"), "Tom", "Anna").target
    "le chien d'Anna"
    """
    if re.search(rf"\b[lL]['’]{old}\b", pair.target):
        return pair  # a country, with an article
    return Pair(re.sub(rf"\b{old}\b", new, pair.source), put_name(pair.target, old, new))


_PRONOUNS = ((re.compile(r"He(?= |'s )"), re.compile(r"Il ")), (re.compile(r"She(?= |'s )"), re.compile(r"Elle ")))


def name_for_pronoun(pair: Pair, name: str) -> Pair:
    """A name in place of "He" or "She" at the beginning of both sides."""
    for here, there in _PRONOUNS:
        first, second = here.match(pair.source), there.match(pair.target)
        if first and second and "?" not in pair.source:
            return Pair(name + pair.source[first.end() :], f"{name} " + pair.target[second.end() :])
    return pair


# Numbers

_DIGITS = re.compile(r"\d+(?:[.,:]\d+)*")
_IN_WORDS = {
    **{
        "two": "deux",
        "three": "trois",
        "four": "quatre",
        "five": "cinq",
        "six": "six",
        "seven": "sept",
        "eight": "huit",
    },
    **{"nine": "neuf", "ten": "dix", "eleven": "onze", "twelve": "douze", "fifteen": "quinze", "twenty": "vingt"},
    **{"thirty": "trente", "forty": "quarante", "fifty": "cinquante", "sixty": "soixante"},
}


def _unreserved(draw: random.Random, low: int, high: int) -> int:
    while reserved(str(number := draw.randint(low, high))):
        pass
    return number


def _amount(draw: random.Random) -> tuple[str, str]:
    """A number in the writing of each language: 45, 1998, 12,500 (12 500), 3.5 (3,5)."""
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
    """Another number for every one that is written alike on both sides: mostly a year for a year, small for small."""
    source, target = pair
    for old in dict.fromkeys(_DIGITS.findall(source)):
        if source.count(old) != 1 or len(re.findall(rf"(?<!\d){re.escape(old)}(?!\d)", target)) != 1:
            continue
        if re.fullmatch(r"1\d{3}|20\d\d", old) and draw.random() < 0.7:
            new = other = str(_unreserved(draw, 1000, 2099))
        elif old.isdigit() and len(old) < 3 and draw.random() < 0.6:
            new = other = str(_unreserved(draw, 2, 99))
        elif old.isdigit():
            new, other = _amount(draw)
        else:
            continue
        source = source.replace(old, new)
        target = re.sub(rf"(?<!\d){re.escape(old)}(?!\d)", other, target)
    return Pair(source, target)


def numbers_in_digits(pair: Pair, draw: random.Random) -> Pair:
    """Digits for a number that stands in words on both sides: three and trois become 47."""
    for english, french in _IN_WORDS.items():
        if len(re.findall(rf"\b{english}\b", pair.source)) == 1 == len(re.findall(rf"\b{french}\b", pair.target)):
            text, other = _amount(draw) if draw.random() < 0.5 else (str(_unreserved(draw, 2, 99)),) * 2
            source, target = re.sub(rf"\b{english}\b", text, pair.source), re.sub(rf"\b{french}\b", other, pair.target)
            if re.search(rf"\b{english}-|-{english}\b", pair.source) is None and "heures et" not in target:
                return Pair(source, target)
    return pair


def _clock(draw: random.Random) -> tuple[str, str]:
    while True:
        half = draw.choice(("", "", " a.m.", " p.m.", " in the morning"))
        hour = draw.randint(1, 12 if half else 23)
        text = f"{hour}:{draw.randint(1, 59):02}"
        if not reserved(text):
            break
    minutes = text.split(":")[1]
    short = {" in the morning": "a.m."}.get(half, half.strip())
    return text + half, clock(str(hour), minutes, short)


def _date(draw: random.Random) -> tuple[str, str]:
    month = draw.choice(list(MONTHS))
    day, year = _unreserved(draw, 2, 31), _unreserved(draw, 1000, 2099)
    french = f"{day} {MONTHS[month]} {year}"
    kind = draw.random()
    if kind < 0.5:
        return f"{month} {day}, {year}", french
    if kind < 0.7:
        return f"{day} {month} {year}", french
    return f"{month} {day}", f"{day} {MONTHS[month]}"


def _price(draw: random.Random) -> tuple[str, str]:
    text, other = _amount(draw)
    return draw.choice(
        (
            (f"${text}", f"{other} dollars"),
            (f"{text} dollars", f"{other} dollars"),
            (f"€{text}", f"{other} euros"),
            (f"{text} euros", f"{other} euros"),
            (f"{text} yen", f"{other} yens"),
        )
    )


_PLACED = ((" in {}", " à {}"), (" with {}", " avec {}"), (" for {}", " pour {}"), (" near {}", " près de {}"))
_TIMED = ((" at {}", " à {}"), (" before {}", " avant {}"), (" until {}", " jusqu'à {}"), (" around {}", " vers {}"))
_YEARS = ((" in {}", " en {}"), (" since {}", " depuis {}"), (" before {}", " avant {}"), (" until {}", " jusqu'en {}"))


def add_phrase(pair: Pair, draw: random.Random, names: Names) -> Pair:
    """A phrase with a number or a name before the full stop of both sides, or an address or a date at the beginning."""
    source, target = pair
    if not (source.endswith(".") and target.endswith(".")) or len(source.split()) > 12 or "…" in target:
        return pair
    source, target = source.rstrip("."), target.rstrip(".")
    kind = draw.random()
    if kind < 0.22:
        name = names.draw(draw)
        there = (form := draw.choice(_PLACED))[1].format(name)
        there = there.replace(f"de {name}", f"d'{name}") if name[0] in VOWELS else there
        return Pair(f"{source}{form[0].format(name)}.", f"{target}{there}.")
    if kind < 0.42:
        here, there = _clock(draw)
        form = draw.choice(_TIMED)
    elif kind < 0.6:
        here, there = _date(draw)
        if draw.random() < 0.3:
            small = continued(source, names.lower), target[0].lower() + target[1:]
            if small[0] != source:
                return Pair(f"On {here}, {small[0]}.", f"Le {there}, {small[1]}.")
        form = (" on {}", " le {}")
        if draw.random() < 0.3:
            clock = _clock(draw)
            here, there = f"{here} at {clock[0]}", f"{there} à {clock[1]}"
    elif kind < 0.72:
        here = there = str(_unreserved(draw, 1000, 2099))
        form = draw.choice(_YEARS)
    elif kind < 0.86:
        here, there = _price(draw)
        form = (" for {}", " pour {}")
    elif kind < 0.93:
        number = _unreserved(draw, 2, 999)
        name = names.draw(draw)
        street = draw.choice((("Street", "rue"), ("Avenue", "avenue"), ("Road", "route")))
        here, there = f"{number} {name} {street[0]}", f"{number} {street[1]} {name}"
        form = (" at {}", " au {}")
    else:
        text, other = _amount(draw)
        unit = draw.choice((("times", "fois"), ("days", "jours"), ("hours", "heures"), ("people", "personnes")))
        here, there = f"{text} {unit[0]}", f"{other} {unit[1]}"
        form = (" for {}", " pour {}") if unit[0] == "people" else (", {}", ", {}")
    ended = "" if here.endswith(".") else "."
    return Pair(source + form[0].format(here) + ended, target + form[1].format(there) + ".")


# Quotation marks


def add_quotes(pair: Pair, draw: random.Random) -> Pair:
    """Quotation marks around the whole on both sides, straight or French, or a sentence that reports it."""
    mark = draw.choice((("«\u00a0", "\u00a0»"), ('"', '"')))
    quoted = f'"{pair.source}"', f"{mark[0]}{pair.target}{mark[1]}"
    kind = draw.random()
    if kind < 0.4:
        return Pair(*quoted)
    here, there = draw.choice((("He said", "Il a dit"), ("She said", "Elle a dit"), ("Tom said", "Tom a dit")))
    if kind < 0.7:
        return Pair(f"{here}, {quoted[0]}", f"{there} : {quoted[1]}")
    if kind < 0.85:
        return Pair(f"{here}: {quoted[0]}", f"{there} : {quoted[1]}")
    inside = pair.source.rstrip("."), pair.target.rstrip(".")
    said = {"He said": "dit-il", "She said": "dit-elle", "Tom said": "dit Tom"}[here]
    lower = {"He said": "he said", "She said": "she said", "Tom said": "Tom said"}[here]
    comma = "," if pair.source.endswith(".") else ""
    return Pair(f'"{inside[0]}{comma}" {lower}.', f"{mark[0]}{inside[1]}{mark[1]}, {said}.")
