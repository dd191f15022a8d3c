"""Reads the tokenizer of a checkpoint."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer


def read_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer in the folder of a model, from its ``tokenizer.json``."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise FileNotFoundError(f"{folder} has no tokenizer.json")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises plain Exception
        raise ValueError(f"{file} is not a tokenizer: {error}") from None
