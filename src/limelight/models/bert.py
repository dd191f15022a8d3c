"""BERT: an encoder with learned positions and segments, post-norm."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from limelight.models.configs import Config, has_head, need, refuse
from limelight.models.mapping import Link, affine, layers, same
from limelight.nn import Block, Embedding, Encoder, FeedForward, LanguageModel, MultiHeadAttention, TiedHead
from limelight.nn.feedforward import activation
from limelight.nn.positions import Learned

TYPES = ("bert",)
PREFIX = "bert."
COPIES = r"(embeddings\.position_ids|cls\.predictions\.decoder\..*)"
TABLE = "embeddings.word_embeddings.weight"
OTHERS = r"(pooler\.dense\..*|cls\.seq_relationship\..*)"


class MaskedHead(nn.Module):
    """``norm(activation(x W)) tableᵀ + bias``: what a masked token was."""

    def __init__(self, table: nn.Embedding, act: str, norm: nn.Module) -> None:
        super().__init__()
        width = table.embedding_dim
        self.dense, self.norm, self.activation = nn.Linear(width, width), norm, activation(act)
        self.out = TiedHead(table, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, N, width)`` to ``(B, N, vocabulary)``."""
        logits: Tensor = self.out(self.norm(self.activation(self.dense(x))))
        return logits


def build(config: Config) -> LanguageModel:
    names = "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"
    width, depth, heads, hidden, vocabulary = need(config, *names)
    (places,) = need(config, "max_position_embeddings")
    refuse(config, position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
    norm = partial(nn.LayerNorm, eps=config.get("layer_norm_eps", 1e-12))
    act, drop = config.get("hidden_act", "gelu"), config.get("hidden_dropout_prob", 0.0)

    def block() -> Block:
        attention = MultiHeadAttention(width, heads, dropout=config.get("attention_probs_dropout_prob", 0.0))
        return Block(attention, FeedForward(width, hidden, activation(act)), norm=norm, order="post", dropout=drop)

    embedding = Embedding(
        vocabulary,
        width,
        positions=Learned(places, width),
        segments=config.get("type_vocab_size", 2),
        norm=norm(width),
        dropout=drop,
    )
    head = MaskedHead(embedding.table, act, norm(width)) if has_head(config) else None
    return LanguageModel(embedding, Encoder(block() for _ in range(depth)), head)


def links(config: Config) -> list[Link]:
    parts = {
        "attention.self.query": "attention.query",
        "attention.self.key": "attention.key",
        "attention.self.value": "attention.value",
        "attention.output.dense": "attention.out",
        "attention.output.LayerNorm": "attention_norm",
        "intermediate.dense": "feed_forward.up",
        "output.dense": "feed_forward.down",
        "output.LayerNorm": "feed_forward_norm",
    }
    layer = [x for theirs, ours in parts.items() for x in affine(f"encoder.layer.*.{theirs}", f"stack.blocks.*.{ours}")]
    found = [
        same("embeddings.word_embeddings.weight", "embedding.table.weight"),
        same("embeddings.position_embeddings.weight", "embedding.positions.table.weight"),
        same("embeddings.token_type_embeddings.weight", "embedding.segments.weight"),
        *affine("embeddings.LayerNorm", "embedding.norm"),
        *layers(config["num_hidden_layers"], layer),
    ]
    if has_head(config):
        found += [
            *affine("cls.predictions.transform.dense", "head.dense"),
            *affine("cls.predictions.transform.LayerNorm", "head.norm"),
            same("cls.predictions.bias", "head.out.bias"),
        ]
    return found
