"""Rules for text before and after translation: sentences, numbers, names, addresses, ordinals and quotation marks."""

from __future__ import annotations

import re
import time

import pytest

from limelight.translate import Pair, Recipe, dates, ordinals, stand_ins
from limelight.translate.augmentation import Augmenter
from limelight.translate.copying import Phrase, changes, phrases, whole_names
from limelight.translate.first_names import read_as_names
from limelight.translate.numerals import numbers
from limelight.translate.quotes import without_marks
from limelight.translate.sentences import split
from limelight.translate.words import known_words, reserved


def test_sentences() -> None:
    def fits(text: str) -> bool:
        return len(text) <= 40

    text = '  Hello, Mr. Smith!  How are you? "Fine." she said.\n\nJ. R. came at 5 p.m. It rained… Then 3 left.'
    pieces = split(text, lambda _: True)
    assert [p.text for p in pieces] == [
        "  Hello, Mr. Smith!",
        "How are you?",
        '"Fine."',
        "she said.",
        "J. R. came at 5 p.m. It rained…",
        "Then 3 left.",
    ]
    assert "".join(p.text + p.after for p in pieces) == text
    long = "word " * 300 + "end"
    assert "".join(p.text + p.after for p in split(long, fits)) == long
    assert all(fits(p.text) for p in split(long, fits))
    assert "".join(p.text + p.after for p in split("x" * 200, fits)) == "x" * 200
    assert split("", fits) == []
    clauses = ["I do not know how,", "but I did it", "and when we began it rained", "and Tom and Mary were late."]
    assert [p.text for p in split(" ".join(clauses), fits)] == clauses  # no "and" is left at the end of a part
    assert [p.text for p in split("I saw it and we left.", fits)] == ["I saw it and we left."]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Are you coming? No. I am tired.", ["Are you coming?", "No.", "I am tired."]),
        ("See Fig. 3 on p. 12. It is No. 5.", ["See Fig. 3 on p. 12.", "It is No. 5."]),
        ("Name\tAge\nTom\t5", ["Name", "Age", "Tom", "5"]),
        ("I love you. 😀 See you!", ["I love you.", "😀 See you!"]),
        ("See https://a.b/c?d=e#f for more.", ["See", "for more."]),
        ("http://a.b www.c.d a@b.cd", ["", "", ""]),
        ("a" * 5000 + " dog", ["", "dog"]),
    ],
)
def test_where_sentences_end(text: str, sentences: list[str]) -> None:
    pieces = split(text, lambda _: True)
    assert [piece.text for piece in pieces] == sentences
    assert "".join(piece.text + piece.after for piece in pieces) == text


def test_long_white_space_takes_no_time() -> None:
    begin = time.perf_counter()
    split("a" + " " * 200_000 + "b." + " " * 200_000 + "c", lambda _: True)
    assert time.perf_counter() - begin < 2


def test_speech_and_speaker_are_apart() -> None:
    def pieces(text: str) -> list[str]:
        return [piece.text for piece in split(text, lambda _: True)]

    assert pieces('She asked, "Where?"') == ["She asked,", '"Where?"']
    assert pieces('"Here," he said.') == ['"Here,"', "he said."]
    assert pieces('He said "yes" twice.') == ['He said "yes" twice.']
    assert pieces('"A" and "B," he said.') == ['"A" and "B," he said.']
    for text in ('She asked, "Where?"', '"Here," he said.'):
        assert "".join(piece.text + piece.after for piece in split(text, lambda _: True)) == text


NAMED = [
    Pair("Tom has 30 dollars.", "Tom a 30 dollars."),
    Pair("Tom's dog died in 1998.", "Le chien de Tom est mort en 1998."),
    Pair("He bought three books.", "Il a acheté trois livres."),
    Pair("She lives in Boston.", "Elle vit à Boston."),
    Pair("I paid $200.", "J'ai payé deux cents dollars."),
    Pair("The cat eats.", "Le chat mange."),
]


def test_both_sides_get_the_same_numbers_and_names() -> None:
    shares = Recipe(names=1.0, numbers=1.0, phrases=0.5, quotes=0.2, joined=0.3, longest=20).shares
    augmenter = Augmenter(NAMED * 50, shares)
    pairs = augmenter.epoch("a")
    assert pairs == augmenter.epoch("a") != augmenter.epoch("b")
    assert not any("deux cents" in pair.target for pair in pairs)  # it would teach not to copy
    known = set(known_words(NAMED))
    own = {"He", "She", "Tom", "Boston", "Van", "San", "Saint", "The", "Street", "Avenue", "Road"}
    for source, target in pairs:
        assert numbers(source) == numbers(target), (source, target)
        assert len(source.split()) <= 20 + 16  # a phrase and who said it are added at most
        for word in set(re.findall(r"[^\W\d_]{3,}", source)) - own:
            if word[0].isupper() and word.lower() not in known and word in target:
                assert not reserved(word)
    found = {number for pair in pairs for number in numbers(pair.source) if len(number) == 4}
    assert len(found) > 50
    assert len(set(re.findall(r"[A-Z][a-z]+", " ".join(pair.source for pair in pairs)))) > 100


@pytest.mark.parametrize(
    ("english", "french"),
    [
        ("12,500 people paid $3.50 at 4:30.", "12 500 personnes ont payé 3,50 $ à 4 h 30."),
        ("On 1 May 2024, 7 came.", "Le 1 mai 2024, 7 sont venus."),
        ("1,000,000", "1\u202f000\u202f000"),
    ],
)
def test_numbers_of_two_languages(english: str, french: str) -> None:
    assert numbers(english) == numbers(french)
    assert numbers(english) != numbers(french + " 8")


def test_what_a_translation_loses() -> None:
    known = frozenset(["has", "dogs", "is", "here", "said", "in", "the", "morning"])
    assert changes("Zelda has 5 dogs.", "Zelda a 5 chiens.", known) == []
    assert changes("Zelda has 5 dogs.", "Elle a 50 chiens.", known) == [
        "the number 5 became 50",
        "the name Zelda is missing",
    ]
    assert changes("5 dogs", "des chiens", known) == ["the number 5 is missing"]
    assert changes("dogs", "7 chiens", known) == ["the number 7 was added"]
    assert changes("seven dogs", "7 chiens", known) == []
    assert changes('Said "dogs"', "chiens", known) == ["quotation marks are missing"]
    assert changes('Said "dogs"', "« chiens »", known) == []
    assert changes("Zelda is here.", "Elle est ici.", None) == []
    assert [phrase.text for phrase in phrases("Mr. Jo Zelda has 1,500.5 dogs in Oz.", known)] == [
        "1 500,5",
        "Jo Zelda",
        "Oz",
    ]


def test_names_that_stand_in() -> None:
    pairs = [Pair(f"Tom saw it {n}.", f"Tom l'a vu {n}.") for n in range(50)]
    pairs += [Pair(f"I live in Boston {n}.", f"Je vis à Boston {n}.") for n in range(50)]
    pairs += [Pair(f"I like France {n}.", f"J'aime la France {n}.") for n in range(50)]
    pairs += [Pair("you and I", "toi et moi"), Pair("now or never", "jamais")]
    found = stand_ins.learn(pairs)
    assert found == stand_ins.StandIns(["Tom"], ["Boston"], {"and": "et"})
    text = "Zelda lives in Oz."
    first, second = found.variants(text, ["Zelda", "Oz"])
    assert first == {"Zelda": "Tom", "Oz": "Boston"}
    assert second == {"Zelda": "Boston", "Oz": "Tom"}
    assert stand_ins.put_in(text, first) == "Tom lives in Boston."
    assert stand_ins.put_back("Le chien de Tom vit à Boston.", first) == "Le chien de Zelda vit à Oz."
    assert stand_ins.put_back("Le chien de Tom.", {"Anna": "Tom"}) == "Le chien d'Anna."
    assert not list(found.variants("Zelda, Jo and Oz", ["Zelda", "Jo", "Oz"]))


def test_an_address_is_one_name_and_its_loss_is_noted() -> None:
    known = frozenset({"we", "met", "at", "in"})
    text = "We met Zelda at 14 Rue Street, Oslo in 1987."
    assert phrases(text, known) == [Phrase("1987", True), Phrase("14 Rue Street, Oslo", False), Phrase("Zelda", False)]
    assert changes(text, "Zelda, 14 Rue Street, Oslo, 1987", known) == []
    assert "the address 14 Rue Street, Oslo is missing" in changes(text, "Zelda, 14, Rue, Oslo, 1987", known)
    assert whole_names("We met 3 times in Street View.", known) == ["Street View"]


def test_an_address_in_place_of_a_city() -> None:
    chosen = {"14 Elm Street": "Boston"}
    assert stand_ins.put_in("He lives at 14 Elm Street now.", chosen) == "He lives in Boston now."
    assert stand_ins.put_back("Il vit à Boston maintenant.", chosen) == "Il vit au 14 Elm Street maintenant."


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("January is my sister.", ["January"]),
        ("January is the first month.", []),
        ("Will is my brother, and will you come?", ["Will"]),
        ("Will this do?", []),
        ("May I come in May?", []),
        ("I met Rose and April in April.", ["Rose"]),  # after "and", a month is as likely
        ("Autumn is my favorite season.", []),
        ("We were there on Christmas Eve.", []),
        ("His birthday is August 21st.", []),
    ],
)
def test_first_names_are_told_from_words(text: str, names: list[str]) -> None:
    assert read_as_names(text) == names


@pytest.mark.parametrize(
    ("english", "french", "lost"),
    [
        ("He came on May 5th.", "Il vint le 5 mai.", []),
        ("He came on the 3rd.", "Il vint le 3.", []),
        ("They live on the 12th floor.", "Ils vivent au douzième étage.", []),
        ("a church of the 17th century", "une église du XVIIe siècle", []),
        ("They live on the 12th floor.", "Ils ont 12 étages.", ["the ordinal 12th became 12"]),
        ("the 1970s", "les années soixante-dix", []),
        ("the 1970s", "ce temps", ["the decade 1970s is missing"]),
    ],
)
def test_ordinals_and_decades(english: str, french: str, lost: list[str]) -> None:
    assert ordinals.lost(english, french) == lost


@pytest.mark.parametrize(
    ("english", "french", "lost"),
    [
        ("It is the 10th of May.", "C'est le 10 mai.", []),
        ("It is the 10th of May.", "C'est la maman de 10 mai.", ["the date 10th of May is missing"]),
        ("It was June 3rd, 2001.", "C'était le 3 octobre 2001.", ["the date June 3rd, 2001 is missing"]),
        ("from May 1 to May 5", "du premier mai au 5 mai", []),
        ("Monday, August 21", "lundi 21 août", []),
        ("He was born on 3/14/1998.", "Il est né en 3 octobre 1998-14.", ["the date 3/14/1998 is missing"]),
        ("He was born on 3/14/1998.", "Il est né le 3/14/1998.", []),
        ("You may 10 times try, in May 1998.", "Tu peux essayer 10 fois, en mai 1998.", []),
    ],
)
def test_dates(english: str, french: str, lost: list[str]) -> None:
    assert dates.lost(english, french) == lost


def test_dates_are_put_back_after_their_prepositions() -> None:
    found = stand_ins.numbers_put_in("They worked from May 3 to the 5th of June on Monday.")
    assert found is not None
    english, back = found
    assert english == "They worked from Friday to Sunday on Monday."
    french = stand_ins.numbers_put_back("Ils ont travaillé de vendredi à dimanche, lundi.", back)
    assert french == "Ils ont travaillé du 3 mai au 5 juin, lundi."


def test_fractions_are_one_number() -> None:
    assert changes("Add 1/2 cup.", "Ajoutez la tasse de 1 2%.", None) == [
        "the number 1/2 became 1",
        "the number 2 was added",
    ]
    assert changes("Add 1/2 cup.", "Ajoutez 1/2 tasse.", None) == []


def test_one_pair_of_quotation_marks_inside() -> None:
    assert without_marks('He said "yes, now." twice.') == ("He said yes, now. twice.", 8, 16)
    for text in ('"All of it."', "none", 'an "odd one', 'two "a" and "b"', 'an empty "…" one'):
        assert without_marks(text) is None
