"""T5: an encoder-decoder, or its encoder alone, with a learned bias by distance that the layers of a stack share."""

from __future__ import annotations

from functools import partial

from limelight.models.configs import Config, architectures, dropout, flag, need, number, size, word
from limelight.models.mapping import TensorMap, affine, every_layer, same
from limelight.models.output import language_head, untied
from limelight.nn import Block, Decoder, Embedding, Encoder, FeedForward, LanguageModel, MultiHeadAttention, Seq2Seq
from limelight.nn.feedforward import activation
from limelight.nn.norm import RMSNorm
from limelight.nn.positions import T5

TYPES = ("t5", "mt5")
PREFIX = ""
COPIES = r"((encoder|decoder)\.embed_tokens\.weight|lm_head\.weight)"
OTHERS = ""
TABLE = "shared.weight"


def _feed_forward(config: Config) -> tuple[str, bool]:
    """Return the activation of the feed-forward layers, and whether they are gated."""
    kind = word(config, "feed_forward_proj", "relu")
    gated = kind.startswith("gated-")
    name = kind.removeprefix("gated-")
    return ("gelu_new" if gated and name == "gelu" else name), gated


def _depths(config: Config) -> tuple[int, int]:
    """Return the numbers of layers of the encoder and of the decoder; 0 where there is no decoder."""
    (depth,) = need(config, "num_layers")
    if any(name.endswith("EncoderModel") for name in architectures(config)):
        return depth, 0
    return depth, size(config, "num_decoder_layers", depth)


def build(config: Config) -> Seq2Seq | LanguageModel:
    """Build T5 from a configuration; ``T5EncoderModel`` becomes an encoder that returns its hidden states."""
    names = "d_model", "num_heads", "d_kv", "d_ff", "vocab_size"
    width, heads, head_width, hidden, vocabulary = need(config, *names)
    norm = partial(RMSNorm, eps=number(config, "layer_norm_epsilon", 1e-6))
    name, gated = _feed_forward(config)
    drop = dropout(config, "dropout_rate")
    positions = partial(
        T5,
        heads,
        buckets=size(config, "relative_attention_num_buckets", 32),
        max_distance=size(config, "relative_attention_max_distance", 128),
    )

    def attention(positions: T5 | None = None) -> MultiHeadAttention:
        return MultiHeadAttention(
            width, heads, head_width=head_width, bias=False, positions=positions, scale=1.0, dropout=drop
        )

    def block(positions: T5, cross: bool) -> Block:
        feed_forward = FeedForward(width, hidden, activation(name), gated=gated, bias=False, dropout=drop)
        other = attention() if cross else None
        return Block(attention(positions), feed_forward, cross=other, norm=norm, dropout=drop)

    encoder_depth, decoder_depth = _depths(config)
    embedding = Embedding(vocabulary, width, dropout=drop)
    two_sided = positions(two_sided=True)
    encoder = Encoder((block(two_sided, cross=False) for _ in range(encoder_depth)), norm(width))
    if not decoder_depth:
        return LanguageModel(embedding, encoder)
    one_sided = positions(two_sided=False)
    decoder = Decoder((block(one_sided, cross=True) for _ in range(decoder_depth)), norm(width))
    # T5 scales the input of a tied head; mT5, whose head is tied in name only, does not.
    scaled = config["model_type"] == "t5" and flag(config, "scale_decoder_outputs", True)
    head = language_head(config, embedding.table, scale=width**-0.5 if scaled else 1.0)
    return Seq2Seq(embedding, encoder, embedding, decoder, head)


def tensors(config: Config) -> list[TensorMap]:
    """Map the tensors of a checkpoint to the parameters of ``build``."""
    encoder_depth, decoder_depth = _depths(config)
    if not decoder_depth:
        return [
            same("shared.weight", "embedding.table.weight"),
            *_stack(config, theirs="encoder", ours="stack", depth=encoder_depth),
        ]
    return [
        same("shared.weight", "source.table.weight"),
        *_stack(config, theirs="encoder", ours="encoder", depth=encoder_depth),
        *_stack(config, theirs="decoder", ours="decoder", depth=decoder_depth, cross=True),
        *untied(config, "lm_head.weight"),
    ]


def _stack(config: Config, theirs: str, ours: str, depth: int, cross: bool = False) -> list[TensorMap]:
    """Map an encoder, or a decoder with cross-attention."""
    _, gated = _feed_forward(config)
    layer, block = f"{theirs}.block.*.layer", f"{ours}.blocks.*"
    last = 2 if cross else 1
    feed = f"{layer}.{last}.DenseReluDense"
    maps = [
        same(f"{layer}.0.layer_norm.weight", f"{block}.attention_norm.weight"),
        *_attention(f"{layer}.0.SelfAttention", f"{block}.attention"),
        same(f"{layer}.{last}.layer_norm.weight", f"{block}.feed_forward_norm.weight"),
        same(f"{feed}.wi_1.weight" if gated else f"{feed}.wi.weight", f"{block}.feed_forward.up.weight"),
        same(f"{feed}.wo.weight", f"{block}.feed_forward.down.weight"),
    ]
    if gated:
        maps.append(same(f"{feed}.wi_0.weight", f"{block}.feed_forward.gate.weight"))
    if cross:
        maps.append(same(f"{layer}.1.layer_norm.weight", f"{block}.cross_norm.weight"))
        maps += _attention(f"{layer}.1.EncDecAttention", f"{block}.cross")
    table = f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return [
        *every_layer(depth, maps),
        same(table, f"{ours}.blocks.0.attention.positions.table.weight"),
        same(f"{theirs}.final_layer_norm.weight", f"{ours}.norm.weight"),
    ]


def _attention(theirs: str, ours: str) -> list[TensorMap]:
    names = {"q": "query", "k": "key", "v": "value", "o": "out"}
    pairs = ((f"{theirs}.{name}", f"{ours}.{own}") for name, own in names.items())
    return [tensor for pair in pairs for tensor in affine(*pair, bias=False)]
