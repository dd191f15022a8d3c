"""A language of seven words, read backwards, that a small translator learns in seconds."""

from __future__ import annotations

import random

from limelight.translate import Pair, Recipe

WORDS = {"the": "le", "cat": "chat", "dog": "chien", "sees": "voit", "a": "un", "man": "homme", "eats": "mange"}
TINY = Recipe(
    vocabulary=60,
    width=32,
    heads=4,
    encoder_layers=1,
    decoder_layers=1,
    hidden=64,
    epochs=2,
    tokens=90,
    held_out=20,
    validated=20,
    warm_up=10,
    rate=3e-3,
    average=0.9,
)
PLAIN = {"phrases": 0.0, "quotes": 0.0, "joined": 0.0}  # pairs as they are


def toy_pairs(count: int = 400) -> list[Pair]:
    """Word for word, in reverse order."""
    draw = random.Random(3)
    pairs = []
    for _ in range(count):
        words = draw.choices(list(WORDS), k=draw.randint(1, 6))
        pairs.append(Pair(" ".join(words) + ".", " ".join(WORDS[w] for w in reversed(words)) + "."))
    return pairs
