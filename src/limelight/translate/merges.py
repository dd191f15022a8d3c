"""Byte-pair encoding with merges left out at random, so that a model sees words in many pieces (BPE-dropout)."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from itertools import groupby, pairwise

from tokenizers import Encoding, Tokenizer

from limelight.translate.vocabulary import UNKNOWN

_DRAWN = 64  # encodings of a word that are drawn for one call, at most

Word = tuple[int, ...]  # the ids of a word


class Merges:
    """The merges of a byte-pair vocabulary, each of which can be left out at random (Provilkov et al. 2020)."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        model = json.loads(tokenizer.to_str())["model"]
        self._tokenizer = tokenizer
        self._ids: dict[str, int] = model["vocab"]
        self._pieces = {n: piece for piece, n in self._ids.items()}
        self._unknown = self._ids[UNKNOWN]
        merges = (merge if isinstance(merge, list) else merge.split(" ") for merge in model["merges"])
        self._merged = {
            (self._ids[left], self._ids[right]): (rank, self._ids[left + right])
            for rank, (left, right) in enumerate(merges)
        }

    def encode(self, texts: Sequence[str], dropped: float, seed: str) -> list[list[int]]:
        """Return the ids of each text, with the token that ends it, each merge left out with probability ``dropped``.

        A word that occurs often gets one of 64 encodings drawn for this call. Words with characters that the
        vocabulary does not know are encoded as ever.
        """
        draw = random.Random(seed)
        divided = [_words(found) for found in self._tokenizer.encode_batch(list(texts))]
        counts = Counter(word for words in divided for word, known in words if known)
        drawn = {
            word: [self.encode_word(word, dropped, draw) for _ in range(min(count, _DRAWN))]
            for word, count in counts.items()
        }
        return [
            [n for word, known in words for n in (draw.choice(drawn[word]) if known else word)] for words in divided
        ]

    def encode_word(self, word: Word, dropped: float, draw: random.Random) -> Word:
        """Return the ids of a word, given by its ids without anything left out, with merges left out at random.

        At every step each possible merge is left out with probability ``dropped``; the first of the others in the
        vocabulary's order is made, and where there is none, the word is done.
        """
        if self._unknown in word:
            return word
        ids = [self._ids[c] for n in word for c in self._pieces[n]]
        while True:
            best = None
            for place, pair in enumerate(pairwise(ids)):
                found = self._merged.get(pair)
                if found and (best is None or found < best[0]) and draw.random() >= dropped:
                    best = found, place
            if best is None:
                return tuple(ids)
            ids[best[1] : best[1] + 2] = [best[0][1]]


def _words(found: Encoding) -> list[tuple[Word, bool]]:
    """Divide ids into words; what is not part of the text, such as its end, is not a word."""
    both = groupby(zip(found.ids, found.word_ids, strict=True), key=lambda pair: pair[1])
    return [(tuple(n for n, _ in group), word is not None) for word, group in both]
