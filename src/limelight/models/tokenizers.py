"""Reads the tokenizer of a checkpoint, and names tokens for people to read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel
from torch import Tensor


def read_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer in the folder of a model, from its ``tokenizer.json``."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise FileNotFoundError(f"{folder} has no tokenizer.json")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises plain Exception
        raise ValueError(f"{file} is not a tokenizer: {error}") from None


def readable_tokens(tokenizer: Tokenizer, ids: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """Return the tokens of each list of ids: byte-level ones decoded, with ``▁`` for a space, others as they are."""
    names = {stack: [tokenizer.id_to_token(i) or str(i) for i in mine.tolist()] for stack, mine in ids.items()}
    byte_level = isinstance(tokenizer.decoder, ByteLevel)
    if not byte_level and not any("Ġ" in token for tokens in names.values() for token in tokens):
        return names

    def decoded(token: str) -> str:
        number = tokenizer.token_to_id(token)
        found = None if number is None else tokenizer.decode([number])
        return (found or token).replace(" ", "▁")

    return {stack: [decoded(token) for token in tokens] for stack, tokens in names.items()}
