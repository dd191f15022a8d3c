"""BERT: an encoder with learned positions and segments, post-norm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from limelight.models.configs import Config, architectures, dropout, has_head, need, number, refuse, size, word
from limelight.models.mapping import TensorMap, affine, every_layer, same
from limelight.models.output import classifier, classifier_tensors
from limelight.nn import Block, Embedding, Encoder, FeedForward, LanguageModel, MultiHeadAttention, TiedHead
from limelight.nn.feedforward import activation
from limelight.nn.positions import Learned

TYPES = ("bert",)
PREFIX = "bert."
COPIES = r"(embeddings\.position_ids|cls\.predictions\.decoder\..*)"
TABLE = "embeddings.word_embeddings.weight"
OTHERS = r"(pooler\.dense\..*|cls\.seq_relationship\..*)"


class MaskedHead(nn.Module):
    """``norm(activation(x W)) tableᵀ + bias``: the logits of masked tokens."""

    def __init__(self, table: nn.Embedding, act: str, norm: nn.Module) -> None:
        super().__init__()
        width = table.embedding_dim
        self.dense, self.norm, self.activation = nn.Linear(width, width), norm, activation(act)
        self.out = TiedHead(table, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, N, width)`` to ``(B, N, vocabulary)``."""
        logits: Tensor = self.out(self.norm(self.activation(self.dense(x))))
        return logits


def classification(config: Config) -> str | None:
    """Return which classification head the checkpoint has: ``"sequence"``, ``"token"`` or None."""
    kinds = {"ForSequenceClassification": "sequence", "ForTokenClassification": "token"}
    return next((kind for name in architectures(config) for end, kind in kinds.items() if name.endswith(end)), None)


def build(config: Config) -> LanguageModel:
    """Build BERT from a configuration."""
    refuse(config, position_embedding_type="absolute")
    embedding, blocks = parts(config, lambda _: MultiHeadAttention)
    head: nn.Module | None = classifier(config, classification(config), embedding.table.embedding_dim)
    if has_head(config):
        head = masked_head(config, embedding.table, word(config, "hidden_act", "gelu"))
    return LanguageModel(embedding, Encoder(blocks), head)


def parts(
    config: Config,
    attention: Callable[[int], Callable[..., MultiHeadAttention]],
    *,
    act: str = "gelu",
    first_position: int = 0,
    scale: float = 1.0,
) -> tuple[Embedding, list[Block]]:
    """Build the embedding and the blocks of BERT and of models that differ from it in their attention.

    ``attention(n)`` makes the attention of layer n; ``act`` is the default of ``hidden_act``.
    """
    names = "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"
    width, depth, heads, hidden, vocabulary = need(config, *names)
    (positions,) = need(config, "max_position_embeddings")
    refuse(config, is_decoder=False, add_cross_attention=False)
    norm, drop = _norm(config), dropout(config, "hidden_dropout_prob")

    def block(n: int) -> Block:
        attend = attention(n)(width, heads, dropout=dropout(config, "attention_probs_dropout_prob"))
        feed_forward = FeedForward(width, hidden, activation(word(config, "hidden_act", act)))
        return Block(attend, feed_forward, norm=norm, order="post", dropout=drop)

    embedding = Embedding(
        vocabulary,
        width,
        positions=Learned(positions - first_position, width, first_position),
        segments=size(config, "type_vocab_size", 2),
        norm=norm(width),
        scale=scale,
        dropout=drop,
    )
    return embedding, [block(n) for n in range(depth)]


def masked_head(config: Config, table: nn.Embedding, act: str) -> MaskedHead:
    """Build the head of a masked language model."""
    return MaskedHead(table, act, _norm(config)(table.embedding_dim))


def _norm(config: Config) -> Callable[[int], nn.Module]:
    return partial(nn.LayerNorm, eps=number(config, "layer_norm_eps", 1e-12))


def tensors(config: Config) -> list[TensorMap]:
    """Map the tensors of a checkpoint to the parameters of ``build``."""
    names = {
        "attention.self.query": "attention.query",
        "attention.self.key": "attention.key",
        "attention.self.value": "attention.value",
        "attention.output.dense": "attention.out",
        "attention.output.LayerNorm": "attention_norm",
        "intermediate.dense": "feed_forward.up",
        "output.dense": "feed_forward.down",
        "output.LayerNorm": "feed_forward_norm",
    }
    pairs = ((f"encoder.layer.*.{theirs}", f"stack.blocks.*.{ours}") for theirs, ours in names.items())
    layer = [tensor for theirs, ours in pairs for tensor in affine(theirs, ours)]
    found = [
        same("embeddings.word_embeddings.weight", "embedding.table.weight"),
        same("embeddings.position_embeddings.weight", "embedding.positions.table.weight"),
        same("embeddings.token_type_embeddings.weight", "embedding.segments.weight"),
        *affine("embeddings.LayerNorm", "embedding.norm"),
        *every_layer(config["num_hidden_layers"], layer),
    ]
    if has_head(config):
        found += [
            *affine("cls.predictions.transform.dense", "head.dense"),
            *affine("cls.predictions.transform.LayerNorm", "head.norm"),
            same("cls.predictions.bias", "head.out.bias"),
        ]
    return found + classifier_tensors(classification(config))
