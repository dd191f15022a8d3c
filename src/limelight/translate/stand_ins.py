"""Names and numbers that the model knows by heart, in place of those that it does not know.

Where the model fails to copy a name or a number, the sentence is translated with a stand-in: a name or number from so
many training pairs that the model always gets it right. Then the real one is put back.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from limelight.translate import dates
from limelight.translate.data import Pair
from limelight.translate.french import clock, put_name
from limelight.translate.numerals import NUMBER, in_french
from limelight.translate.ordinals import ORDINAL, is_day
from limelight.translate.ordinals import in_french as ordinal_in_french

NAMES = "names.json"  # in a model's folder

_CAPITAL = re.compile(r"(?<![^\W\d_])[^\W\d_a-zß-öø-ÿ][^\W\d_]{2,}")
_WHERE = re.compile(r"(?:\b[Ii]n|\b[Aa]t|\b[Tt]o|\b[Ff]rom|\b[Nn]ear|\b[Vv]isit\w*|\b[Ii]nto|\b[Aa]round) $")
_ARTICLE = re.compile(r"(?:\b(?:le|la|en|du|au|Le|La|En) |[lL]['’])$")
_PART = re.compile(r"[A-Z]\w+ $")
_ENOUGH = 50  # pairs with a name, before it may be a stand-in
_JOINING = {"and": "et", "but": "mais", "or": "ou"}
_COUNT = 4  # stand-ins of each kind


@dataclass(frozen=True)
class StandIns:
    """Names of people and of places that the model copies, the most frequent first, and conjunctions."""

    people: Sequence[str] = ()
    places: Sequence[str] = ()
    joining: Mapping[str, str] = field(default_factory=dict)  # conjunctions with their translation, such as and: et

    def variants(self, text: str, names: Sequence[str]) -> Iterator[dict[str, str]]:
        """Yield different choices of a stand-in for each name of a text; nothing if there are not enough."""
        placed = [name for name in names if _WHERE.search(text[: text.index(name)])]
        for turned in (False, True):
            chosen: dict[str, str] = {}
            for name in names:
                kinds = (self.places, self.people) if (name in placed) != turned else (self.people, self.places)
                known = (other for kind in kinds for other in kind)
                free = [other for other in known if other not in chosen.values() and other not in text]
                if not free:
                    return
                chosen[name] = free[0]
            yield chosen


def put_in(text: str, chosen: dict[str, str]) -> str:
    """Replace the names of an English text by their stand-ins."""
    for name, other in chosen.items():
        if name[0].isdigit():  # an address: at 221 Baker Street becomes in Boston
            text = re.sub(rf"\bat {re.escape(name)}(?!\w)", f"in {other}", text)
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", other, text)
    return text


def put_back(text: str, chosen: dict[str, str]) -> str:
    """Replace the stand-ins in a French text by the real names.

    >>> put_back("le chien de Tom", {"Anna": "Tom"})
    "le chien d'Anna"
    """
    for name, other in chosen.items():
        if name[0].isdigit():
            text = re.sub(rf"\bà {other}\b", f"au {other}", text)
        text = put_name(text, other, name)
    return text


# Numbers that every model of these languages has seen often. A year stands for a year.
_IN_WORDS = (("thirty", "trente"), ("fifty", "cinquante"), ("forty", "quarante"), ("sixty", "soixante"))
_YEARS = ("2013", "2003", "2012")
_FREE = re.compile(rf"(?<![\w$€£.,:/-])([$€£]?)({NUMBER.pattern})(?![\w%:/-]|[.,]\d)")
_PLACES = (("third", "troisième"), ("second", "deuxième"))
_CURRENCIES = {"$": " dollars", "€": " euros", "£": " pounds", "": ""}


_CLOCK = re.compile(r"(?<![\d:.])(\d{1,2}):(\d\d)(?![\d:])(?: ?([ap])\.?m\b\.?)?")
_DAYS = (("Monday", "lundi"), ("Friday", "vendredi"), ("Sunday", "dimanche"))
_CLOCKS = (("seven o'clock", "sept heures"), ("nine o'clock", "neuf heures"))


def numbers_put_in(text: str) -> tuple[str, dict[str, str]] | None:
    """Replace the numbers of an English text by stand-ins, and return what stands for what in French; or None.

    >>> numbers_put_in("I paid $45 in 1998.")
    ('I paid thirty dollars in 2013.', {'trente': '45', '2013': '1998'})
    >>> numbers_put_in("He came on May 3, 1998 at 4:15 p.m.")
    ("He came on Monday at seven o'clock.", {'lundi': 'le 3 mai 1998', 'sept heures': "4 h 15 de l'après-midi"})
    """
    words, years, clocks = iter(_IN_WORDS), iter(_YEARS), iter(_CLOCKS)
    days = iter([(english, french) for english, french in _DAYS if english not in text])
    places = iter(_PLACES)
    back: dict[str, str] = {}

    def date(found: re.Match[str]) -> str:
        english, french = next(days, ("", ""))
        back[french] = dates.in_french(found)
        return english

    def time(found: re.Match[str]) -> str:
        english, french = next(clocks, ("", ""))
        back[french] = clock(found[1], found[2], f"{found[3]}.m." if found[3] else "")
        ended = found[0].endswith(".") and found.end() == len(found.string)
        return english + "." * ended

    def number(found: re.Match[str]) -> str:
        sign, digits = found[1], found[2]
        if not sign and re.fullmatch(r"1\d{3}|20\d\d", digits):
            english = french = next(years, "")
        else:
            english, french = next(words, ("", ""))
        back[french] = in_french(digits)
        return english + _CURRENCIES[sign]

    def ordinal(found: re.Match[str]) -> str:
        if is_day(found):
            return found[0]
        english, french = next(places, ("", ""))
        back[french] = ordinal_in_french(found[1])
        return english

    changed = _CLOCK.sub(time, dates.DATE.sub(date, text))
    changed = _FREE.sub(number, ORDINAL.sub(ordinal, changed))
    if not back or "" in back or any(digits not in back for digits in re.findall(r"\d+", changed)):
        return None
    return None if any(known in text for known in back) else (changed, back)


def numbers_put_back(text: str, back: dict[str, str]) -> str:
    """Replace the stand-ins in a French text by the real numbers; one that does not occur exactly once is left."""
    for known, number in back.items():
        article = "" if known in dict(_PLACES).values() else "(?:le )?"
        found = list(re.finditer(rf"(?<![\w-]){article}{known}(?![\w-])", text, re.IGNORECASE))
        if len(found) == 1:
            begin, end = found[0].span()
            new = number[0].upper() + number[1:] if found[0][0][0].isupper() else number
            text = dates.contracted(text[:begin] + new + text[end:])
    return text


def learn(pairs: Sequence[Pair]) -> StandIns:
    """Find names that are the same in both sentences of nearly all pairs with them, without an article in French."""
    count, same, placed = Counter[str](), Counter[str](), Counter[str]()
    lower = {word for pair in pairs for word in re.findall(r"\b[a-z]+\b", pair.source)}
    for source, target in pairs:
        for found in _CAPITAL.finditer(source):
            name = found[0]
            count[name] += 1
            placed[name] += _WHERE.search(source[: found.start()]) is not None
            there = re.search(rf"\b{name}\b", target)
            alone = not _PART.search(source[: found.start()])  # not a part of a longer name such as New York
            same[name] += alone and there is not None and not _ARTICLE.search(target[: there.start()])
    kept = [
        name for name, n in count.most_common() if n >= _ENOUGH and same[name] > 0.9 * n and name.lower() not in lower
    ]
    places = [name for name in kept if placed[name] > 0.3 * count[name]]
    joining = {here: there for here, there in _JOINING.items() if _is_translated(pairs, here, there)}
    return StandIns([name for name in kept if name not in places][:_COUNT], places[:_COUNT], joining)


def _is_translated(pairs: Sequence[Pair], here: str, there: str) -> bool:
    """Return whether most pairs with the word ``here`` in the source have ``there`` in the target."""
    found = [re.search(rf"\b{there}\b", pair.target) for pair in pairs if f" {here} " in pair.source]
    return 2 * sum(one is not None for one in found) > len(found) > 0


def write(folder: Path, found: StandIns) -> None:
    """Write stand-ins to the folder of a model."""
    (folder / NAMES).write_text(json.dumps(asdict(found), ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def read(folder: Path) -> StandIns:
    """Read stand-ins from the folder of a model; empty if it has none."""
    file = folder / NAMES
    return StandIns(**json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else StandIns()
