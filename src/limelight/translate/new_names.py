"""Replaces names in pairs: recognises them on both sides, makes up others, and puts them in with French elision."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence

from limelight.translate.data import Pair
from limelight.translate.french import put_name
from limelight.translate.words import WORD, reserved


class Names:
    """Recognises the names in pairs, and makes up others."""

    def __init__(self, pairs: Sequence[Pair], lower: frozenset[str]) -> None:
        self.lower = lower
        words = {word.lower() for pair in pairs for text in pair for word in WORD.findall(text) if len(word) > 3}
        self.after: dict[str, list[str]] = {}
        for word in sorted(words):
            padded = f"^^{word}$"
            for n in range(len(padded) - 2):
                self.after.setdefault(padded[n : n + 2], []).append(padded[n + 2])

    def shared(self, pair: Pair) -> str | None:
        """Return the first word with a capital that both sentences contain once, unless it is a common word."""
        there = Counter(WORD.findall(pair.target))
        here = Counter(WORD.findall(pair.source))
        for word, count in here.items():
            if count == 1 == there[word] and word[0].isupper() and len(word) > 1 and word.lower() not in self.lower:
                return str(word)
        return None

    def draw(self, draw: random.Random) -> str:
        """Make up a name of one or two words that are not ``reserved``."""
        while True:
            kind = draw.random()
            name = self._word(draw)
            if kind < 0.12:
                name = f"{name} {self._word(draw)}"
            elif kind < 0.15:
                name = f"{name}-{self._word(draw)}"
            elif kind < 0.18:
                name = draw.choice(_BEFORE) + name
            if not any(reserved(word) for word in WORD.findall(name) if word not in _PARTICLES):
                return name

    def _word(self, draw: random.Random) -> str:
        while True:
            word = _from_syllables(draw) if draw.random() < 0.5 else self._from_letters(draw)
            word = word[0].upper() + word[1:]
            if 3 <= len(word) <= 12 and not reserved(word) and word.lower() not in self.lower:
                return word

    def _from_letters(self, draw: random.Random) -> str:
        """Make up a word letter by letter, each drawn from those that follow the two before it in real words."""
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
    """
    b c d f g h j k l m n p r s t v w z y q br cr dr fr gr kr pr tr bl cl fl gl pl sl sh ch th ph st sk sp kh zh
    sv kn rh mb nd ts sch str qu gw dj ny x
""".split()
    + [""] * 3
)
_NUCLEI = """
    a e i o u a e i o u y aa ee oo ai ay au ea ei eo ia ie io oa oi ou ua ue ui é è ö ü ä á í ó ø å ã ñi ç
""".split()
_CODAS = (
    [""] * 4
    + """
    n r s l m t k d g p b v x z f h ck nd nt ng rd rt rs ll ss tt nn rr st sh ch th lt ld rk rn sk tz ev ić ez ski
    son sen man ton berg ini elli oğlu ová escu ș ł š
""".split()
)


def _from_syllables(draw: random.Random) -> str:
    count = draw.choice((1, 2, 2, 2, 3, 3, 4))
    inside = "".join(
        draw.choice(_ONSETS) + draw.choice(_NUCLEI[:29] if draw.random() < 0.9 else _NUCLEI) for _ in range(count)
    )
    return inside + (draw.choice(_CODAS) if draw.random() < 0.6 else "")


def replace_name(pair: Pair, old: str, new: str) -> Pair:
    """Replace a name on both sides, with the elision that French needs (d'Anna, de Tom).

    >>> replace_name(Pair("Tom's dog", "le chien de Tom"), "Tom", "Anna").target
    "le chien d'Anna"
    """
    if re.search(rf"\b[lL]['’]{old}\b", pair.target):
        return pair  # a country: its article depends on the name
    return Pair(re.sub(rf"\b{old}\b", new, pair.source), put_name(pair.target, old, new))


_PRONOUNS = ((re.compile(r"He(?= |'s )"), re.compile(r"Il ")), (re.compile(r"She(?= |'s )"), re.compile(r"Elle ")))


def name_for_pronoun(pair: Pair, name: str) -> Pair:
    """Replace "He" or "She" at the beginning of both sides by a name."""
    for here, there in _PRONOUNS:
        first, second = here.match(pair.source), there.match(pair.target)
        if first and second and "?" not in pair.source:
            return Pair(name + pair.source[first.end() :], f"{name} " + pair.target[second.end() :])
    return pair
