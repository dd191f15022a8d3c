"""The vocabulary of a translator: byte-pair encoding, shared by both languages."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from limelight.models.tokenizers import read_tokenizer as read

__all__ = ["END", "PADDING", "UNKNOWN", "encode", "learn", "number", "read"]

END, UNKNOWN, PADDING = "</s>", "<unk>", "<pad>"

# A word keeps the space before it and an apostrophe after it (l', n', qu'); digits stand alone; marks keep together.
_PIECES = r"▁?[\p{L}\p{M}]+'?|▁?\p{N}|▁?[^\p{L}\p{M}\p{N}▁]+|▁+"

# ASCII, Latin-1, Latin Extended-A, a few letters of Extended-B (Romanian, Vietnamese), and Vietnamese.
_LETTERS = (
    *range(0x21, 0x7F),
    *range(0xC0, 0x180),
    0x1A0,
    0x1A1,
    0x1AF,
    0x1B0,
    *range(0x218, 0x21C),
    *range(0x1EA0, 0x1EFA),
)


def learn(sentences: Iterable[str], size: int) -> Tokenizer:
    """Learn a byte-pair vocabulary of ``size`` tokens, with ``</s>`` after every text."""
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFC(),
            normalizers.Replace("’", "'"),
            normalizers.Replace(Regex(r"\s+"), " "),  # white space of any kind
            normalizers.Strip(),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Split(Regex(_PIECES), "isolated")]
    )
    tokenizer.decoder = decoders.Metaspace()
    special = [AddedToken(name, special=True) for name in (END, UNKNOWN, PADDING)]
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, min_frequency=2, show_progress=False)
    tokenizer.train_from_iterator(sentences, trainer)
    ended = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, number(tokenizer, END))])
    tokenizer.post_processor = ended
    return tokenizer


def with_letters(tokenizer: Tokenizer) -> Tokenizer:
    """Add a token for every Latin letter and every ASCII character, so that any name can be spelled.

    Tokens keep their ids; new ones come after them.
    """
    data = json.loads(tokenizer.to_str())
    pieces: dict[str, int] = data["model"]["vocab"]
    for c in map(chr, _LETTERS):
        if c not in pieces and (c.isalpha() or c.isascii()) and unicodedata.normalize("NFC", c) == c:
            pieces[c] = len(pieces)
    return Tokenizer.from_str(json.dumps(data))


def encode(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Return the ids of each text, with the token that ends it."""
    return [found.ids for found in tokenizer.encode_batch_fast(texts)]


def number(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a token of the vocabulary."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"the vocabulary has no {token}")
    return found
