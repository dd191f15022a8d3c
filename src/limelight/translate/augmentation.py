"""Augmentation of training pairs: other numbers and names, added phrases, quotation marks, and joined sentences.

A model that is trained on the pairs alone learns the few numbers and names that occur in them by heart. Here both sides
of a pair get the same new number or name, so that the only way to be right is to copy it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from limelight.translate.added_phrases import add_phrase, add_quotes
from limelight.translate.data import Pair
from limelight.translate.new_names import Names, name_for_pronoun, replace_name
from limelight.translate.new_numbers import numbers_in_digits, replace_numbers
from limelight.translate.numerals import numbers
from limelight.translate.words import continued, lower_words

_BETWEEN = (
    (" and ", " et "),
    (", and ", ", et "),
    (", and ", " et "),
    (", but ", ", mais "),
    (", ", ", "),
    ("; ", " ; "),
)


@dataclass(frozen=True)
class Shares:
    """Shares of the pairs that are changed in an epoch; all between 0 and 1."""

    names: float  # share of the pairs with a name on both sides that get another name
    numbers: float  # share of the pairs with a number on both sides that get another number
    phrases: float  # share of all pairs that get a phrase with a number or a name
    quotes: float  # share of all pairs that get quotation marks
    joined: float  # share of all pairs that are joined with others
    longest: int  # words of a joined sentence, at most


class Augmenter:
    """Changes pairs at random; from all pairs it knows which words are names."""

    def __init__(self, pairs: Sequence[Pair], shares: Shares) -> None:
        self.shares = shares
        # A number that is written in words on one side teaches the model not to copy.
        self.pairs = (
            [pair for pair in pairs if numbers(pair.source) == numbers(pair.target)] if shares.numbers else pairs
        )
        self.lower = tuple(lower_words(pair[side] for pair in pairs) for side in (0, 1))
        self.names = Names(pairs, self.lower[0] | self.lower[1])

    def epoch(self, seed: str, part: float = 1.0) -> list[Pair]:
        """Return every pair once, some changed or joined, and pairs with numbers and names a few times more.

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
        """Join pairs to one sentence, mostly with "and" between them, or to a text of several sentences."""
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
        """Return a sentence as it stands inside another: with a lower-case first letter, unless that is a name or I."""
        return continued(text, self.lower[side])


def _without_mark(text: str) -> str:
    return text.rstrip(".!?… \u00a0\u202f") or text
