"""Longformer: BERT with windows, and global tokens that have projections of their own (Beltagy et al., 2020)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from limelight.core.masks import Global, GlobalKeys, Mask, Padding, Window
from limelight.models import bert
from limelight.models.configs import Config, has_head, need, shown, size
from limelight.models.mapping import TensorMap, affine, every_layer, same
from limelight.nn import Encoder, LanguageModel, MultiHeadAttention
from limelight.nn.linear import Linear

TYPES = ("longformer",)
PREFIX = "longformer."
COPIES = r"(embeddings\.position_ids|lm_head\.decoder\..*)"
TABLE = bert.TABLE
OTHERS = r"pooler\.dense\..*"


@dataclass(frozen=True, eq=False)
class Tokens(Mask):
    """Marks the tokens of a batch that are padding and those that are global, ``(B, N)`` booleans or None."""

    padding: Padding | None
    global_tokens: Tensor | None

    def within(self, window: int) -> Mask:
        """The keys of queries that are not global: a window, and the global tokens."""
        mask: Mask = Window(window)
        if self.global_tokens is not None:
            mask = mask | GlobalKeys(Global(self.global_tokens))
        return mask if self.padding is None else self.padding & mask


class LongformerAttention(MultiHeadAttention):
    """Attention within a window and to global tokens; global tokens attend to all by other projections.

    It attends twice: all queries within their windows, then the global queries, whose outputs replace the first ones.
    """

    def __init__(self, width: int, heads: int, *, window: int, **options: Any) -> None:
        super().__init__(width, heads, **options)
        self.window = window
        self.query_global, self.key_global, self.value_global = (Linear(width, width) for _ in "qkv")

    def forward(self, x: Tensor, context: Tensor | None = None, *, mask: Mask | None = None, **other: Any) -> Tensor:
        """``x (B, N, width)`` to the same shape; ``mask`` is the ``Tokens`` of the batch."""
        tokens = mask if isinstance(mask, Tokens) else Tokens(_as_padding(mask), None)
        q, k, v, _ = self._operands(x, None, None, 0)
        y = self.attend(q, k, v, mask=tokens.within(self.window), bias=None).transpose(1, 2)  # (B, N, H, D)
        if tokens.global_tokens is not None:
            y = self._with_global(x, y, tokens.global_tokens, tokens.padding)
        out: Tensor = self.out(y.flatten(2))
        return out

    def _with_global(self, x: Tensor, y: Tensor, chosen: Tensor, padding: Padding | None) -> Tensor:
        """Replace the outputs of global tokens.

        All batch elements compute as many as the one with the most; those with fewer discard the surplus.
        """
        most = int(chosen.sum(1).max())
        rows = chosen.int().argsort(dim=1, descending=True, stable=True)[:, :most]  # (B, most)
        found = chosen.gather(1, rows)
        q = self._split(self.query_global(x.gather(1, rows[..., None].expand(-1, -1, x.shape[2]))), self.num_heads)
        k, v = (self._split(project(x), self.num_heads) for project in (self.key_global, self.value_global))
        z = self.attend(q, k, v, mask=padding, bias=None).transpose(1, 2)
        batch = torch.arange(len(x), device=x.device)[:, None].expand_as(rows)
        return y.index_put((batch[found], rows[found]), z[found])


class LongformerEncoder(Encoder):
    """Blocks with attention within windows."""

    def forward(self, x: Tensor, *, mask: Mask | None = None) -> Tensor:
        """``x (B, N, width)`` to the same shape."""
        return self._run(x, mask)


class Longformer(LanguageModel):
    """``head(stack(embedding(ids)))``, with tokens of the caller's choice that see all and are seen by all."""

    def forward(
        self,
        ids: Tensor,
        *,
        mask: Mask | None = None,
        global_tokens: Tensor | None = None,
        segments: Tensor | None = None,
        last: bool = False,
        **other: Any,
    ) -> Tensor:
        """``ids (B, N)`` to logits or hidden states.

        ``mask`` is ``Padding(lengths)`` or None. ``global_tokens`` is True for global tokens, ``(N,)`` or ``(B, N)``;
        in classification the first token, in question answering those of the question.
        """
        if other:
            raise TypeError(
                f"Longformer has no option {min(other)!r}; it attends to all tokens at once, without a cache"
            )
        x = self.stack(self.embedding(ids, 0, segments), mask=Tokens(_as_padding(mask), _as_flags(global_tokens, ids)))
        x = x[:, -1:] if last else x
        out: Tensor = x if self.head is None else self.head(x)
        return out


def _as_padding(mask: Mask | None) -> Padding | None:
    if mask is None or (isinstance(mask, Padding) and not mask.left):
        return mask
    raise TypeError(f"Longformer: mask must be Padding(lengths) or None, not {mask!r}; the windows are its own")


def _as_flags(value: Any, ids: Tensor) -> Tensor | None:
    if value is None:
        return None
    if not isinstance(value, Tensor) or value.dtype != torch.bool or value.shape not in (ids.shape, ids.shape[1:]):
        found = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(
            f"global_tokens must be a boolean tensor {tuple(ids.shape)}, True for global tokens, not {found}"
        )
    return value.expand(ids.shape) if bool(value.any()) else None


def _windows(config: Config) -> list[int]:
    """The keys on each side that a token sees, for each layer."""
    (depth,) = need(config, "num_hidden_layers")
    found = config.get("attention_window", 512)
    sizes = [found] * depth if isinstance(found, int) else found
    whole = isinstance(sizes, list) and all(isinstance(n, int) and n > 0 and n % 2 == 0 for n in sizes)
    if not whole or len(sizes) != depth:
        raise ValueError(
            f"config.json: attention_window = {shown(found)} must be an even number, or one for each of {depth} layers"
        )
    return [n // 2 for n in sizes]


def build(config: Config) -> Longformer:
    """Build Longformer from a configuration."""
    windows = _windows(config)

    def attention(n: int) -> Callable[..., MultiHeadAttention]:
        return partial(LongformerAttention, window=windows[n])

    first = 1 + (0 if config.get("pad_token_id") == 0 else size(config, "pad_token_id", 1))
    embedding, blocks = bert.parts(config, attention, first_position=first)
    head = bert.masked_head(config, embedding.table, "gelu") if has_head(config) else None
    return Longformer(embedding, LongformerEncoder(blocks), head)


def tensors(config: Config) -> list[TensorMap]:
    """Map the tensors of a checkpoint to the parameters of ``build``."""
    ours = "stack.blocks.*.attention"
    names = "query_global", "key_global", "value_global"
    pairs = ((f"encoder.layer.*.attention.self.{name}", f"{ours}.{name}") for name in names)
    layer = [tensor for theirs, ours in pairs for tensor in affine(theirs, ours)]
    found = bert.tensors({**config, "architectures": []}) + every_layer(config["num_hidden_layers"], layer)
    if has_head(config):
        found += [
            *affine("lm_head.dense", "head.dense"),
            *affine("lm_head.layer_norm", "head.norm"),
            same("lm_head.bias", "head.out.bias"),
        ]
    return found
