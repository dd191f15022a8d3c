"""LLaMA and Mistral: rotary positions, grouped heads, RMSNorm, SwiGLU; Mistral attends within a sliding window."""

from __future__ import annotations

from functools import partial

from limelight.core.masks import Causal, Window
from limelight.models.configs import Config, dropout, flag, need, number, refuse, rotary, size, word
from limelight.models.mapping import TensorMap, affine, every_layer, same
from limelight.models.output import language_head, untied
from limelight.nn import Block, Decoder, Embedding, FeedForward, LanguageModel, MultiHeadAttention
from limelight.nn.feedforward import activation
from limelight.nn.norm import RMSNorm

TYPES = ("llama", "mistral")
PREFIX = "model."
COPIES = r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq"
OTHERS = ""
TABLE = "embed_tokens.weight"


def build(config: Config) -> LanguageModel:
    """Build LLaMA or Mistral from a configuration."""
    names = "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"
    width, depth, heads, hidden, vocabulary = need(config, *names)
    refuse(config, pretraining_tp=1)
    head_width = size(config, "head_dim", width // heads)
    norm = partial(RMSNorm, eps=number(config, "rms_norm_eps", 1e-6))
    positions = rotary(config, head_width)
    act = activation(word(config, "hidden_act", "silu"))

    def block() -> Block:
        attention = MultiHeadAttention(
            width,
            heads,
            kv_heads=size(config, "num_key_value_heads", heads),
            head_width=head_width,
            bias=_has_bias(config),
            positions=positions,
            dropout=dropout(config, "attention_dropout"),
        )
        feed_forward = FeedForward(width, hidden, act, gated=True, bias=flag(config, "mlp_bias", False))
        return Block(attention, feed_forward, norm=norm)

    # A window of w tokens holds the token itself and the w - 1 before it.
    window = size(config, "sliding_window", 0) if config["model_type"] == "mistral" else 0
    mask = Causal() & Window(window - 1, 0) if window else None
    embedding = Embedding(vocabulary, width)
    decoder = Decoder((block() for _ in range(depth)), norm(width), mask)
    return LanguageModel(embedding, decoder, language_head(config, embedding.table, tied=False))


def _has_bias(config: Config) -> bool:
    return flag(config, "attention_bias", False) and config["model_type"] == "llama"


def tensors(config: Config) -> list[TensorMap]:
    """Map the tensors of a checkpoint to the parameters of ``build``."""
    projections = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "out"}
    parts = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
    bias, mlp_bias = _has_bias(config), flag(config, "mlp_bias", False)
    layer = [
        same("layers.*.input_layernorm.weight", "stack.blocks.*.attention_norm.weight"),
        same("layers.*.post_attention_layernorm.weight", "stack.blocks.*.feed_forward_norm.weight"),
    ]
    for theirs, ours in projections.items():
        layer += affine(f"layers.*.self_attn.{theirs}", f"stack.blocks.*.attention.{ours}", bias)
    for theirs, ours in parts.items():
        layer += affine(f"layers.*.mlp.{theirs}", f"stack.blocks.*.feed_forward.{ours}", mlp_bias)
    found = [
        same("embed_tokens.weight", "embedding.table.weight"),
        *every_layer(config["num_hidden_layers"], layer),
        same("norm.weight", "stack.norm.weight"),
    ]
    return found + untied(config, "lm_head.weight", tied=False)
