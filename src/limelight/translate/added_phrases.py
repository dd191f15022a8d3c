"""Phrases with numbers and names, and quotation marks, that are added to both sides of a pair."""

from __future__ import annotations

import random

from limelight.translate.data import Pair
from limelight.translate.french import VOWELS
from limelight.translate.new_names import Names
from limelight.translate.new_numbers import amount, drawn_clock, drawn_date, drawn_price, unreserved
from limelight.translate.words import continued

_PLACED = ((" in {}", " à {}"), (" with {}", " avec {}"), (" for {}", " pour {}"), (" near {}", " près de {}"))
_TIMED = ((" at {}", " à {}"), (" before {}", " avant {}"), (" until {}", " jusqu'à {}"), (" around {}", " vers {}"))
_YEARS = ((" in {}", " en {}"), (" since {}", " depuis {}"), (" before {}", " avant {}"), (" until {}", " jusqu'en {}"))


def add_phrase(pair: Pair, draw: random.Random, names: Names) -> Pair:
    """Add a phrase with a number or a name at the end of both sides, or a date or an address at their beginning."""
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
        here, there = drawn_clock(draw)
        form = draw.choice(_TIMED)
    elif kind < 0.6:
        here, there = drawn_date(draw)
        if draw.random() < 0.3:
            small = continued(source, names.lower), target[0].lower() + target[1:]
            if small[0] != source:
                return Pair(f"On {here}, {small[0]}.", f"Le {there}, {small[1]}.")
        form = (" on {}", " le {}")
        if draw.random() < 0.3:
            clock = drawn_clock(draw)
            here, there = f"{here} at {clock[0]}", f"{there} à {clock[1]}"
    elif kind < 0.72:
        here = there = str(unreserved(draw, 1000, 2099))
        form = draw.choice(_YEARS)
    elif kind < 0.86:
        here, there = drawn_price(draw)
        form = (" for {}", " pour {}")
    elif kind < 0.93:
        number = unreserved(draw, 2, 999)
        name = names.draw(draw)
        street = draw.choice((("Street", "rue"), ("Avenue", "avenue"), ("Road", "route")))
        here, there = f"{number} {name} {street[0]}", f"{number} {street[1]} {name}"
        form = (" at {}", " au {}")
    else:
        text, other = amount(draw)
        unit = draw.choice((("times", "fois"), ("days", "jours"), ("hours", "heures"), ("people", "personnes")))
        here, there = f"{text} {unit[0]}", f"{other} {unit[1]}"
        form = (" for {}", " pour {}") if unit[0] == "people" else (", {}", ", {}")
    ended = "" if here.endswith(".") else "."
    return Pair(source + form[0].format(here) + ended, target + form[1].format(there) + ".")


def add_quotes(pair: Pair, draw: random.Random) -> Pair:
    """Put both sides in quotation marks, straight or French, alone or as reported speech."""
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
