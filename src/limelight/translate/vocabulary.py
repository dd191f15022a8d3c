"""Words into pieces, for two languages at once."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from limelight.models.tokenizers import read_tokenizer as read

__all__ = ["END", "PADDING", "UNKNOWN", "encode", "learn", "number", "read"]

END, UNKNOWN, PADDING = "</s>", "<unk>", "<pad>"

# A word keeps the space before it and an apostrophe after it (l', n', qu'); digits stand alone; marks keep together.
_PIECES = r"▁?[\p{L}\p{M}]+'?|▁?\p{N}|▁?[^\p{L}\p{M}\p{N}▁]+|▁+"


def learn(sentences: Iterable[str], size: int) -> Tokenizer:
    """A byte-pair vocabulary of ``size`` pieces, with ``</s>`` after every text."""
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFC(),
            normalizers.Replace("’", "'"),
            normalizers.Replace(Regex(r"\s+"), " "),  # of every width
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


def encode(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Ids of each text, with the token that ends it."""
    return [found.ids for found in tokenizer.encode_batch_fast(texts)]


def number(tokenizer: Tokenizer, token: str) -> int:
    """The id of a token that the vocabulary has."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"the vocabulary has no {token}")
    return found
