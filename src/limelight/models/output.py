"""Output heads: language-model heads, tied to the embedding or not, and classification heads."""

from __future__ import annotations

from torch import Tensor, nn

from limelight.models.configs import Config, dropout, flag, has_head, size
from limelight.models.mapping import TensorMap, affine, same
from limelight.nn import TiedHead
from limelight.nn.linear import Linear


def language_head(config: Config, table: nn.Embedding, tied: bool = True, scale: float = 1.0) -> nn.Module | None:
    """Return the language-model head of a configuration; ``tied`` is the default of ``tie_word_embeddings``."""
    if not has_head(config):
        return None
    if flag(config, "tie_word_embeddings", tied):
        return TiedHead(table, scale=scale)
    return Linear(table.embedding_dim, table.num_embeddings, bias=False)


def untied(config: Config, theirs: str, tied: bool = True) -> list[TensorMap]:
    """Map the weight of a language-model head that is not tied to the embedding; nothing for a tied one."""
    own = has_head(config) and not flag(config, "tie_word_embeddings", tied)
    return [same(theirs, "head.weight")] if own else []


class TokenClassifier(nn.Module):
    """``x W + b``: the logits of every token's class."""

    def __init__(self, width: int, labels: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout, self.out = nn.Dropout(dropout), nn.Linear(width, labels)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, N, width)`` to ``(B, N, labels)``."""
        logits: Tensor = self.out(self.dropout(x))
        return logits


class SequenceClassifier(nn.Module):
    """``tanh(x₀ W_P + b_P) W + b``: the logits of a text's class, from its first token."""

    def __init__(self, width: int, labels: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.pooler = nn.Linear(width, width)
        self.dropout, self.out = nn.Dropout(dropout), nn.Linear(width, labels)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, N, width)`` to ``(B, labels)``."""
        logits: Tensor = self.out(self.dropout(self.pooler(x[:, 0]).tanh()))
        return logits


def classifier(config: Config, kind: str | None, width: int) -> nn.Module | None:
    """Return the classification head of a configuration: ``kind`` is ``"sequence"``, ``"token"`` or None."""
    if kind is None:
        return None
    names = config.get("id2label")
    labels = size(config, "num_labels", len(names) if isinstance(names, dict) and names else 2)
    rate = "hidden_dropout_prob" if config.get("classifier_dropout") is None else "classifier_dropout"
    return (SequenceClassifier if kind == "sequence" else TokenClassifier)(width, labels, dropout(config, rate))


def classifier_tensors(kind: str | None) -> list[TensorMap]:
    """Map the parameters of a classification head."""
    if kind is None:
        return []
    pooler = affine("pooler.dense", "head.pooler") if kind == "sequence" else []
    return [*pooler, *affine("classifier", "head.out")]
