"""Heads of language models: tied to the table of the embedding, or of their own."""

from __future__ import annotations

from torch import nn

from limelight.models.configs import Config, has_head
from limelight.models.mapping import Link, same
from limelight.nn import TiedHead
from limelight.nn.linear import Linear


def language_head(config: Config, table: nn.Embedding, tied: bool = True, scale: float = 1.0) -> nn.Module | None:
    """The head that a configuration speaks of; ``tied`` says what it is where the configuration does not."""
    if not has_head(config):
        return None
    if config.get("tie_word_embeddings", tied):
        return TiedHead(table, scale=scale)
    return Linear(table.embedding_dim, table.num_embeddings, bias=False)


def untied(config: Config, theirs: str, tied: bool = True) -> list[Link]:
    """The link of a head of its own."""
    own = has_head(config) and not config.get("tie_word_embeddings", tied)
    return [same(theirs, "head.weight")] if own else []
