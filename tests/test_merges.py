"""Encoding with merges left out at random: nothing left out, everything, the same by seed, and always the same text."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tokenizers import Tokenizer

from conftest import SEED
from limelight import translate
from limelight.translate import vocabulary
from limelight.translate.merges import Merges

TEXTS = [
    "The cat sat on the mat, didn't it?",
    "Où est l'été ? Il n'y en a plus depuis 1987 !",
    "“Uncharacteristically”, said Siobhán O’Reilly-Wójcik…",
    "  double\tspaces \u202f and   tabs ",
    "hahahahahaha aaaaaaa mississippi",
    "漢字 and 😀 are not known, but cats are.",
    "a",
    "",
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return translate.load().tokenizer


def test_with_nothing_left_out_the_ids_are_the_tokenizers_own(tokenizer: Tokenizer) -> None:
    words = "".join(sorted({c for text in TEXTS[:2] for c in text}))
    draw = random.Random(1)
    drawn = ["".join(draw.choices(words, k=draw.randint(1, 60))) for _ in range(500)]
    texts = TEXTS + drawn
    assert Merges(tokenizer).encode(texts, 0.0, "x") == vocabulary.encode(tokenizer, texts)


def test_with_everything_left_out_words_are_characters(tokenizer: Tokenizer) -> None:
    for text, ids in zip(TEXTS, Merges(tokenizer).encode(TEXTS, 1.0, "x"), strict=True):
        pieces = [tokenizer.id_to_token(n) for n in ids]
        assert pieces.pop() == "</s>"
        assert all(len(piece) == 1 for piece in pieces if piece != "<unk>")
        if "<unk>" not in pieces and text:
            assert "".join(pieces) == "▁" + " ".join(text.replace("’", "'").split()).replace(" ", "▁")


def test_what_is_drawn_is_the_same_text_in_other_pieces(tokenizer: Tokenizer) -> None:
    merges = Merges(tokenizer)
    texts = TEXTS * 20
    plain = vocabulary.encode(tokenizer, texts)
    found = merges.encode(texts, 0.1, "1 0")
    assert tokenizer.decode_batch(found) == tokenizer.decode_batch(plain)
    assert 0.05 < sum(a != b for a, b in zip(found, plain, strict=True)) / len(plain) < 0.95
    assert merges.encode(texts, 0.1, "1 0") == found
    assert merges.encode(texts, 0.1, "1 1") != found


def test_every_merge_is_left_out_as_often_as_asked() -> None:
    """The merges of "abc" are ab, ▁ab and ▁abc: one is possible at each step, and where it is left out, it ends."""
    tokenizer = vocabulary.learn(["ab", "ab", "ab", "abc", "abc"], 10)
    merges, draw, count, p = Merges(tokenizer), random.Random(SEED), 4000, 0.3
    (word,) = vocabulary.encode(tokenizer, ["abc"])
    drawn = [merges.encode_word(tuple(word[:-1]), p, draw) for _ in range(count)]
    found = Counter(" ".join(map(tokenizer.id_to_token, ids)) for ids in drawn)
    chances = {"▁ a b c": p, "▁ ab c": (1 - p) * p, "▁ab c": (1 - p) ** 2 * p, "▁abc": (1 - p) ** 3}
    assert found.keys() == chances.keys()
    for form, chance in chances.items():
        assert abs(found[form] - count * chance) < 6 * (count * chance * (1 - chance)) ** 0.5, form
