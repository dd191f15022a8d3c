"""The quality and speed of the translator: BLEU, numbers, names, long sentences, notes, and times.

Everything is measured on sentences that were held out of training, with numbers and names that training never had; only
the days of a month are too few for that.

pip install '.[train]' && python benchmarks/translation.py PAIRS.tsv [MODEL]
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import sacrebleu
import torch

from limelight import translate
from limelight.cli._bench.measuring import best
from limelight.translate import Pair, Translation, Translator
from limelight.translate.words import continued, lower_words, reserved

LOAD = """
import time, torch
begin = time.perf_counter()
from limelight import translate
translate.load()
print(time.perf_counter() - begin)
"""
SHORT = "The cat is sleeping."
FIRST = ("Hello", "Thank you", "Machine learning is fun")  # what people type first

# People and places of many countries. Half of them are reserved, and those that occur in the pairs are left out.
NAMES = """
Aaliyah Abimbola Adebayo Adelaide Agnieszka Ahmed Aikaterini Aisling Akira Alejandro Alistair Amadou Amara Anastasia
Andrzej Aniket Anjali Anwar Aoife Arjun Armando Astrid Augustin Ayumi Azadeh Baltimore Bartholomew Beatriz Bengaluru
Benedikt Bernadette Bilbao Bjarne Bogdan Boniface Branislav Brendan Brisbane Brunhilde Burak Cairns Callum Camila
Cedric Celeste Chandra Chidi Chiara Chukwuemeka Ciaran Clementine Cormac Cornelius Cosima Cyprian Dagmar Damian Danilo
Daphne Delphine Demetrius Denver Desmond Dieter Dimitri Dolores Domenico Donatella Dragana Duarte Dunedin Edmund
Eduardo Efua Eirik Ekaterina Eleanor Emeka Enrique Esmeralda Ethan Eszter Eugenia Fabrizio Farouk Fatima Federica
Felipe Fergus Fernanda Filippo Finnegan Fiona Florentine Franziska Friedrich Gabriela Gareth Genevieve Gianluca
Giorgos Giulia Glasgow Gonzalo Grzegorz Guadalupe Gudrun Guillermo Gustavo Hannelore Haruki Hedwig Heinrich Helsinki
Hiroshi Houston Ibrahim Ignacio Ikechukwu Imogen Ingrid Irina Isadora Ismail Ivanka Jacinta Jakarta Javier Jedediah
Jelena Joaquin Johanna Jorge Jovana Juanita Kamala Karthik Katarzyna Kazimierz Keiko Kenji Khadija Kimberley Kwame
Lachlan Lakshmi Leopold Leticia Liverpool Ljubljana Lorenzo Lucinda Ludmila Magdalena Mahmoud Makoto Malmö Manchester
Marcelo Margarethe Mariana Mateusz Matthias Mehmet Mildred Milos Minneapolis Mireille Mohammed Montgomery Mumbai
Nadezhda Nagendra Naledi Naomi Natasha Nehemiah Nikolai Nkechi Nottingham Oksana Olamide Oleksandr Olumide Ophelia
Orlando Oswald Otieno Padraig Palmira Pankaj Pascale Patricio Penelope Perth Petronella Phoenix Pilar Porto Prakash
Priyanka Przemek Quentin Rafaela Raghav Rajesh Ramona Rasmus Reginald Renata Reykjavik Ricardo Roberta Rodrigo
Rosalind Rotterdam Ruaridh Rupert Sabrina Sacramento Salvador Samantha Sanjay Santiago Saoirse Sebastian Shanghai
Sheffield Shirin Siddharth Sigrid Silvester Siobhan Slobodan Soraya Stanislav Stavros Stellenbosch Sunita Svetlana
Takeshi Tamsin Tanvi Tatiana Temperance Thaddeus Theodora Thessaloniki Thorvald Tobias Toronto Tristan Tucson Ulrika
Umberto Ursula Uttar Valentina Valparaiso Vancouver Venkatesh Veronika Vikram Violeta Vittoria Vladislav Wanjiru
Wilhelmina Winifred Wolfgang Xiomara Xavier Yannis Yasmin Yevgeny Yolanda Yusuf Zachary Zainab Zanzibar Zdenek Zeynep
Zoltan Zuzana Albuquerque Okonkwo Rasmussen Yamaguchi Fernandez Kowalski Papadopoulos Lindqvist Oyelaran Castellanos
Petrovic Haraldsson Nakagawa Balasubramanian Mbeki Achterberg
""".split()

# A held-out sentence with one or more numbers. Training adds some of these phrases (in 1998), but not most of them.
FRAMES = (
    *("In {year}, {small}.", "{same} in {year}.", "{same} between {year} and {year2}.", "By {year}, {small}."),
    *("{same} {count} years ago.", "After {count} days, {small}.", "For {count} minutes, {small}."),
    *("{count} people know that {small}.", "More than {large} people think that {small}.", "{same} in room {count}."),
    *("It costs {price} and {small}.", "I have {price} and {small}.", "We paid {price} because {small}."),
    *("At {clock}, {small}.", "It is {clock} and {small}.", "The train leaves at {clock} and {small}."),
    *("On {month} {day}, {year}, {small}.", "{same} on {month} {day}, {year} at {clock}.", "Since {year}, {small}."),
    *("It is {decimal} degrees and {small}.", "He is {count} years old and {small}.", "Page {count}: {same}."),
)
MONTHS = ("January", "February", "March", "April", "June", "July", "August", "September", "October", "December")


class Case(NamedTuple):
    """A sentence and what its translation must contain."""

    source: str
    wanted: list[str]


def new_number(draw: random.Random, seen: set[str], make: Callable[[], str]) -> str:
    while not reserved(number := make()) or number in seen:
        pass
    return number


def number_cases(sentences: Sequence[str], training: Sequence[Pair], lower: frozenset[str], count: int) -> list[Case]:
    """Held-out sentences with a number put in."""
    draw = random.Random("numbers")
    seen = set(re.findall(r"\d+(?:[.,:]\d+)*", "\n".join(pair.source for pair in training)))
    new = partial(new_number, draw, seen)
    plain = [s for s in sentences if s.endswith(".") and not re.search(r"\d|\.\.", s) and 3 <= len(s.split()) <= 10]
    cases = []
    for n in range(count):
        sentence, frame = plain[n % len(plain)].rstrip("."), FRAMES[n % len(FRAMES)]
        values = {
            "year": new(lambda: str(draw.randint(1100, 2099))),
            "year2": new(lambda: str(draw.randint(1100, 2099))),
            "count": new(lambda: str(draw.randint(11, 999))),
            "large": new(lambda: f"{draw.randint(1000, 9999999):,}"),
            "decimal": new(lambda: f"{draw.randint(1, 99)}.{draw.randint(1, 9)}"),
            "clock": new(lambda: f"{draw.randint(1, 12)}:{draw.randint(1, 59):02}") + draw.choice(("", " a.m.")),
            "day": str(draw.randint(2, 31)),
        }
        amount = new(
            lambda: draw.choice((str(draw.randint(11, 9999)), f"{draw.randint(1, 999)}.{draw.randint(10, 99)}"))
        )
        price = draw.choice(("${}", "{} dollars", "{} euros")).format(amount)
        used = set(re.findall(r"{(\w+)}", frame))
        wanted = [value.split()[0] for name, value in values.items() if name in used] + [amount] * ("price" in used)
        words = {"small": continued(sentence, lower), "same": sentence, "month": draw.choice(MONTHS), "price": price}
        cases.append(Case(frame.format(**values, **words).replace(" a.m..", " a.m."), wanted))
    return cases


def name_cases(
    references: dict[str, list[str]], training: Sequence[Pair], lower: frozenset[str], count: int
) -> list[Case]:
    """Held-out sentences in which the name that both languages have, or he or she, is another name."""
    draw = random.Random("names")
    seen = {word for pair in training for text in pair for word in re.findall(r"\w+", text)}
    new = [name for name in NAMES if reserved(name) and name not in seen]
    places: list[tuple[str, str]] = []
    for source, targets in references.items():
        there = set(re.findall(r"\w+", targets[0]))
        for word in set(re.findall(r"\w+", source)):
            if word in there and word[0].isupper() and len(word) > 2 and word.lower() not in lower:
                places.append((source, word))
                break
        else:
            if re.match(r"(?:He|She) ", source):
                places.append((source, source.split()[0]))
    cases = []
    for n in range(count):
        source, word = places[n % len(places)]
        name = draw.choice(new) if draw.random() < 0.8 else f"{draw.choice(new)} {draw.choice(new)}"
        cases.append(Case(re.sub(rf"\b{word}\b", name, source, count=1), [name]))
    print(f"({len(new)} names in {len(places)} held-out sentences)")
    return cases


def number_pattern(number: str) -> str:
    """A number as French may write it: 3.5 as 3,5, 1,500 as 1 500, 3:45 as 3 h 45."""
    number = re.escape(number).replace(r"\.", ".")
    number = re.sub(r",(?=\d{3})", "[ \u00a0\u202f.,]?", number)
    number = re.sub(r"(?<=\d)\.(?=\d)", "[.,]", number)
    return r"(?<!\d)" + number.replace(":", r" ?(?::|h|heures?) ?") + r"(?!\d)"


def has_numbers(case: Case, text: str) -> bool:
    """Tells whether a translation has every number once, and no other."""
    for number in sorted(case.wanted, key=len, reverse=True):
        text, found = re.subn(number_pattern(number), "", text, count=1)
        if not found:
            return False
    return not re.search(r"\d", text)


def has_name(case: Case, text: str) -> bool:
    return all(re.search(rf"(?<!\w){name}(?!\w)", text) for name in case.wanted)


def noted(case: Case, found: Translation) -> bool:
    """Tells whether a note speaks of what must be kept, by name, or of a number that was added."""
    words = [part for wanted in case.wanted for part in re.split(r"[ :]", wanted)]
    words = [word.replace(",", "") for word in words]
    return any(
        re.search(rf"\b{re.escape(word)}\b", note.split(": ")[0]) for note in found.notes for word in words
    ) or any("was added" in note for note in found.notes)


def report_copies(translator: Translator, what: str, cases: list[Case], right: Callable[[Case, str], bool]) -> None:
    begin = time.perf_counter()
    found = translator.translate_all([case.source for case in cases])
    wrong = [(case, one) for case, one in zip(cases, found, strict=True) if not right(case, one.text)]
    notes = sum(noted(case, one) for case, one in wrong)
    share = 100 * (1 - len(wrong) / len(cases))
    print(f"{what} right in {share:.1f}% of {len(cases)} sentences, in {time.perf_counter() - begin:.0f} s;", end=" ")
    print(f"of the {len(wrong)} others, {notes} are noted")
    for case, one in wrong[:3]:
        print(f"  {case.source} → {one.text}")


def report_long(
    translator: Translator, references: dict[str, list[str]], lower: Sequence[frozenset[str]], count: int
) -> None:
    """BLEU of sentences that are joined by "and" before and after their translation."""
    draw = random.Random("long")
    plain = [source for source in references if source.endswith(".") and '"' not in source]
    groups = []
    while len(groups) < count:
        wanted, group = draw.randint(25, 52), []
        while sum(len(s.split()) + 1 for s in group) < wanted:
            group.append(draw.choice(plain))
        if sum(len(s.split()) + 1 for s in group) <= 60:
            groups.append(group)

    def joined(texts: Sequence[str], side: int) -> str:
        rest = [continued(text, lower[side]) for text in texts[1:]]
        return (" and ", " et ")[side].join(text.rstrip(".!? \u202f\u00a0") for text in [texts[0], *rest]) + "."

    most = max(len(references[s]) for group in groups for s in group)
    columns = [
        [joined([references[s][min(n, len(references[s]) - 1)] for s in group], 1) for group in groups]
        for n in range(most)
    ]
    whole = translator.translate_all([joined(group, 0) for group in groups])
    short = sorted({s for group in groups for s in group})
    apart = {s: one.text for s, one in zip(short, translator.translate_all(short), strict=True)}
    scores = [
        sacrebleu.corpus_bleu(texts, columns).score
        for texts in ([one.text for one in whole], [joined([apart[s] for s in group], 1) for group in groups])
    ]
    pieces = sum(len(one.sentences) for one in whole) / len(whole)
    print(f"{count} sentences of 25 to 60 words, joined by and: BLEU {scores[0]:.1f}; translated apart", end=" ")
    print(f"and then joined: {scores[1]:.1f}; each is translated in {pieces:.2f} pieces")


def main(file: str, folder: str | None, count: int, long: int) -> None:
    recipe = translate.Recipe()
    training, references = translate.divide(translate.read_pairs(file), recipe.held_out, recipe.seed)
    lower = [lower_words(pair[side] for pair in training) for side in (0, 1)]
    translator = translate.load(folder)
    print(f"BLEU on {len(references)} sentences that were held out, with all of their translations:")
    for beams in (1, 4):
        begin = time.perf_counter()
        score = translate.bleu(translator.model, translator.tokenizer, references, beams=beams)
        print(f"  {beams} beam{'s' * (beams > 1)}: {score:.1f}, in {time.perf_counter() - begin:.0f} s")
    report_copies(translator, "numbers", number_cases(list(references), training, lower[0], count), has_numbers)
    report_copies(translator, "names", name_cases(references, training, lower[0] | lower[1], count), has_name)
    report_long(translator, references, lower, long)
    doubts = sum(one.doubtful for found in translator.translate_all(list(references)) for one in found.sentences)
    print(f"doubtful: {doubts} of the {len(references)} held-out sentences; of {', '.join(map(repr, FIRST))}:", end=" ")
    print(", ".join("yes" if translator(text).sentences[0].doubtful else "no" for text in FIRST))
    torch.set_num_threads(1)
    calls = {f"{n} beam{'s' * (n > 1)}": partial(translator, SHORT, beams=n) for n in (1, 4)}
    for name, seconds in best(calls, 3.0).items():
        print(f"{SHORT!r}, {name}, 1 thread: {1e3 * seconds:.0f} ms")
    loads = [float(subprocess.check_output([sys.executable, "-c", LOAD])) for _ in range(3)]
    print(f"loading, beyond importing torch: {min(loads):.2f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--count", type=int, default=500, help="sentences with numbers, and with names")
    parser.add_argument("--long", type=int, default=200, help="long sentences")
    given = parser.parse_args()
    main(given.pairs, given.model, given.count, given.long)
