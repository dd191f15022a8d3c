"""Multi-head attention as a layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from limelight.backends import Int8Rows, attention_with_cache
from limelight.core.biases import Bias
from limelight.core.checks import check_count, check_dropout, reject_options
from limelight.core.masks import Mask
from limelight.functional import attention, attention_int8, weights
from limelight.matrix.base import Weights
from limelight.nn.arguments import (
    check_norm_maker,
    check_positions,
    check_scale,
    check_sequence,
    check_size,
    explain_arguments,
)
from limelight.nn.cache import Slot
from limelight.nn.linear import Linear, add_projection, project
from limelight.nn.positions import Positions, Rotary


class HeadOutputs(NamedTuple):
    """The parts of a multi-head attention layer's output that come from each head.

    The layer's output is the sum of ``contributions`` over heads, plus the bias of W_O.
    """

    outputs: Tensor  # (B, heads, N, value width): before W_O
    contributions: Tensor  # (B, heads, N, width): after W_O


class MultiHeadAttention(nn.Module):
    """``concat(softmax(scale · qᵢ kᵢᵀ) vᵢ) W_O`` with ``q = x W_Q``, ``k = c W_K``, ``v = c W_V``.

    ``c`` is ``x`` itself, or a context of another width (cross-attention).

    Args:
        width: the width of ``x`` and of the output.
        heads: the number of query heads.
        kv_heads: the number of key and value heads; ``heads`` unless given (grouped heads).
        head_width: the width of queries and keys in a head; ``width / heads`` unless given.
        value_width: the width of values in a head; ``head_width`` unless given.
        context_width: the width of the context; ``width`` unless given.
        bias: whether the projections of q, k and v add a bias.
        out_bias: the same for the projection of the output; as ``bias`` unless given.
        positions: a position scheme of ``limelight.positions``.
        norm: returns a norm for queries and keys of every head, given their width, such as ``nn.RMSNorm``.
        scale: factor of the scores; ``1/√head_width`` unless given.
        dropout: share of the weights that is dropped in training.

    >>> layer = MultiHeadAttention(32, 4, kv_heads=2)
    >>> layer(torch.randn(3, 5, 32)).shape
    torch.Size([3, 5, 32])

    """

    # The functions that compute attention and weights; limelight.parallel.sequence replaces them on a layer.
    compute_attention = staticmethod(attention)
    make_weights = staticmethod(weights)

    @explain_arguments("MultiHeadAttention(width, heads), such as MultiHeadAttention(32, 4)")
    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_width: int | None = None,
        value_width: int | None = None,
        context_width: int | None = None,
        bias: bool = True,
        out_bias: bool | None = None,
        positions: Positions | None = None,
        norm: Callable[[int], nn.Module] | None = None,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        who = type(self).__name__
        width, heads = check_count(who, "width", width, 1), check_count(who, "heads", heads, 1)
        kv_heads = check_size(who, "kv_heads", kv_heads, heads)
        if heads % kv_heads:
            raise ValueError(f"{who}: heads = {heads} must be a multiple of kv_heads = {kv_heads}")
        if head_width is None and width % heads:
            raise ValueError(
                f"{who}: width = {width} is not a multiple of heads = {heads}; give head_width, or heads that divide it"
            )
        head_width = check_size(who, "head_width", head_width, width // heads)
        value_width = check_size(who, "value_width", value_width, head_width)
        context_width = check_size(who, "context_width", context_width, width)
        if norm is not None:
            check_norm_maker(who, norm)
        self.num_heads, self.kv_heads, self.dropout = heads, kv_heads, check_dropout(dropout)
        self.scale = head_width**-0.5 if scale is None else check_scale(who, scale)
        self.query = Linear(width, heads * head_width, bias=bias)
        self.key = Linear(context_width, kv_heads * head_width, bias=bias)
        self.value = Linear(context_width, kv_heads * value_width, bias=bias)
        self.out = Linear(heads * value_width, width, bias=bias if out_bias is None else out_bias)
        self.positions = check_positions(who, positions)
        self.query_norm = None if norm is None else norm(head_width)
        self.key_norm = None if norm is None else norm(head_width)

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Mask | None = None,
        cache: Slot | None = None,
        first: int | Tensor = 0,
        **other: NoReturn,
    ) -> Tensor:
        """Return the output ``(B, N, width)`` of attention from ``x (B, N, width)``.

        Args:
            x: the tokens that attend, to themselves and to those in the cache unless there is a context.
            context: the tokens that are attended to in cross-attention, ``(B, M, context_width)``.
            mask: such as ``Causal()``; all keys unless given.
            cache: the layer's slot of a cache, such as ``KVCache()[0]``, to which the keys and values of ``x`` are
                appended. It keeps those of a context for later steps.
            first: the position of the first token of ``x``, a number or ``(B,)``, for position schemes.
            **other: refused, with what to write instead.

        """
        if other:
            reject_options("MultiHeadAttention", other, ("mask", "cache", "first"))
        self._check_inputs(x, context, cache)
        if context is None:
            projected = project(x, self.query, self.key, self.value)
            out: Tensor = self.out(self._attend_to_itself(projected, mask, cache, first))
        else:
            q, k, v = self._cross_operands(x, context, cache)
            out = self.out(_join_heads(self.attend(q, k, v, mask=mask, bias=None)))
        return out

    def add_to(
        self, x: Tensor, norm: nn.Module, *, mask: Mask | None, cache: Slot | None, first: int | Tensor
    ) -> Tensor:
        """Return ``x + self(norm(x), …)``, in fewer steps; hooks of this layer itself are not called.

        ``mask``, ``cache`` and ``first`` are those of ``forward``.
        """
        self._check_inputs(x, None, cache)
        projected = project(x, self.query, self.key, self.value, norm=norm)
        return add_projection(x, self._attend_to_itself(projected, mask, cache, first), self.out)

    def weights(self, x: Tensor, context: Tensor | None = None, *, mask: Mask | None = None) -> Weights:
        """Return the attention matrix ``(B, heads, N, M)`` by which ``forward`` multiplies the values.

        It is that before dropout. ``x``, ``context`` and ``mask`` are those of ``forward``.

        >>> MultiHeadAttention(32, 4).weights(torch.randn(3, 5, 32)).entropy().shape
        torch.Size([3, 4, 5])
        """
        q, k, _, bias = self._operands(x, context, None, 0)
        return weights(q, k, mask=mask, bias=bias, scale=self.scale)

    def heads(self, x: Tensor, context: Tensor | None = None, *, mask: Mask | None = None) -> HeadOutputs:
        """Return each head's output before W_O, and what it adds to the layer's output after it.

        The results are ``outputs (B, heads, N, value width)`` and ``contributions (B, heads, N, width)``; ``x``,
        ``context`` and ``mask`` are those of ``forward``.

        >>> layer = MultiHeadAttention(32, 4)
        >>> x = torch.randn(3, 5, 32)
        >>> parts = layer.heads(x)
        >>> parts.outputs.shape, parts.contributions.shape
        (torch.Size([3, 4, 5, 8]), torch.Size([3, 4, 5, 32]))
        >>> torch.allclose(parts.contributions.sum(1) + layer.out.bias, layer(x), atol=1e-5)
        True
        """
        q, k, v, bias = self._operands(x, context, None, 0)
        outputs = self.attend(q, k, v, mask=mask, bias=bias)
        W_O = self.out.weight.T.unflatten(0, (self.num_heads, -1))  # (heads, value width, width)
        return HeadOutputs(outputs, outputs @ W_O)

    def attend(self, q: Tensor, k: Any, v: Any, *, mask: Mask | None, bias: Bias | None) -> Tensor:
        """Return ``softmax(scale · q kᵀ + bias) v``, ``(B, heads, N, value width)``; a recorder replaces this method.

        ``q (B, heads, N, D)``, ``k (B, kv_heads, M, D)`` and ``v (B, kv_heads, M, value width)`` are projected already;
        ``mask`` and ``bias`` are those of ``limelight.attention``.
        """
        if isinstance(k, Int8Rows):
            return attention_int8(q, k, v, mask=mask, bias=bias, scale=self.scale)
        dropout = self.dropout if self.training else 0.0
        return self.compute_attention(q, k, v, mask=mask, bias=bias, scale=self.scale, dropout=dropout)

    def _operands(
        self, x: Tensor, context: Tensor | None, cache: Slot | None, first: int | Tensor
    ) -> tuple[Tensor, Any, Any, Bias | None]:
        """Return q, k, v by head, ``(B, H, N, D)``, and the bias of the position scheme."""
        self._check_inputs(x, context, cache)
        if context is not None:
            return *self._cross_operands(x, context, cache), None
        return self._place(project(x, self.query, self.key, self.value), cache, first)

    def _place(
        self, projected: Sequence[Tensor], cache: Slot | None, first: int | Tensor
    ) -> tuple[Tensor, Any, Any, Bias | None]:
        """Split projected tokens into heads, give them their positions and append them to the cache."""
        queries, new_keys, values = projected
        q = _apply_norm(self._split(queries, self.num_heads), self.query_norm)
        k, v = self._keys_values(new_keys, values)
        n = q.shape[2]
        keys = n if cache is None else cache.begin(n)
        q, k, bias = self.positions.place(q, k, first, keys=keys, scale=self.scale)
        if cache is not None:
            k, v = cache.extend(k, v)
        return q, k, v, bias

    def _attend_to_itself(
        self, projected: Sequence[Tensor], mask: Mask | None, cache: Slot | None, first: int | Tensor
    ) -> Tensor:
        """Return the outputs of all heads for projected tokens, ``(B, N, heads · value width)``."""
        y = self._attend_from_one_token(projected, cache, first) if mask is None and cache is not None else None
        if y is not None:
            return y
        q, k, v, bias = self._place(projected, cache, first)
        y = self.attend(q, k, v, mask=mask, bias=bias)
        if cache is not None and cache.wants_weights:
            cache.add_received(weights(q, k, mask=mask, bias=bias, scale=self.scale).received())
        return _join_heads(y)

    def _attend_from_one_token(self, projected: Sequence[Tensor], cache: Slot, first: int | Tensor) -> Tensor | None:
        """Do the same for one token with a cache that keeps all, in one call; None where more is to be done.

        Nothing may have taken the place of this class's own steps, as a recorder does.
        """
        kept = cache.rows()
        place = type(self.positions).place
        if kept is None or self.query_norm is not None or place not in (Positions.place, Rotary.place):
            return None
        own = vars(self)
        if "attend" in own or "compute_attention" in own or (self.training and self.dropout):
            return None
        if type(self).attend is not MultiHeadAttention.attend or type(self.scale) is not float:
            return None
        angles = self.positions.rotation(first, 1, projected[0]) if isinstance(self.positions, Rotary) else None
        y = attention_with_cache(projected, kept, cache.length, angles, self.scale)
        if y is not None:
            cache.advance(1)
        return y

    def _cross_operands(self, x: Tensor, context: Tensor, cache: Slot | None) -> tuple[Tensor, Tensor, Tensor]:
        q = _apply_norm(self._split(self.query(x), self.num_heads), self.query_norm)
        return q, *self._context_keys_values(context, cache)

    def _check_inputs(self, x: Any, context: Any, cache: Any) -> None:
        check_sequence("x", x, getattr(self.query, "in_features", None))
        if context is not None:
            check_sequence("context", context, getattr(self.key, "in_features", None))
        if cache is not None and not isinstance(cache, Slot):
            found = cache.__name__ if isinstance(cache, type) else type(cache).__name__
            raise TypeError(f"cache must be the layer's slot of a cache, such as KVCache()[0], not {found}")

    def _context_keys_values(self, context: Tensor, cache: Slot | None) -> tuple[Tensor, Tensor]:
        """Return the keys and values of a context, computed once for all steps of a generation."""
        if cache is not None and cache.context is not None:
            return cache.context
        k, v = self._keys_values(*project(context, self.key, self.value))
        if cache is not None:
            cache.context = k.detach(), v.detach()
        return k, v

    def _keys_values(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return projected keys and values by head, ``(B, Hkv, M, D)``."""
        return _apply_norm(self._split(keys, self.kv_heads), self.key_norm), self._split(values, self.kv_heads)

    @staticmethod
    def _split(x: Tensor, heads: int) -> Tensor:
        B, N, width = x.shape
        return x.view(B, N, heads, width // heads).transpose(1, 2)  # (B, H, N, D)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> MultiHeadAttention:
        """Make a layer with the parameters of ``module``, copied; the inverse of ``to_torch``.

        Raises ``ValueError`` for ``add_bias_kv``, ``add_zero_attn``, and keys and values of different widths.

        >>> theirs = nn.MultiheadAttention(32, 4, batch_first=True)
        >>> x = torch.randn(3, 5, 32)
        >>> torch.allclose(MultiHeadAttention.from_torch(theirs)(x), theirs(x, x, x)[0], atol=1e-5)
        True
        """
        if module.bias_k is not None or module.add_zero_attn:
            raise ValueError("from_torch: nn.MultiheadAttention with add_bias_kv or add_zero_attn cannot be converted")
        width, kdim, vdim = module.embed_dim, module.kdim, module.vdim
        if kdim != vdim:
            raise ValueError(
                f"from_torch: keys of width {kdim} and values of width {vdim} need two contexts; here there is one"
            )
        has_bias = module.in_proj_bias is not None
        ours = cls(width, module.num_heads, context_width=kdim, bias=has_bias, dropout=module.dropout)
        if module._qkv_same_embed_dim:
            projections: Any = module.in_proj_weight.chunk(3)
        else:
            projections = module.q_proj_weight, module.k_proj_weight, module.v_proj_weight
        biases = module.in_proj_bias.chunk(3) if has_bias else (None,) * 3
        with torch.no_grad():
            for linear, weight, bias in zip((ours.query, ours.key, ours.value), projections, biases, strict=True):
                linear.weight.copy_(weight)
                if bias is not None:
                    linear.bias.copy_(bias)
            ours.out.load_state_dict(module.out_proj.state_dict())
        return ours.to(module.out_proj.weight).train(module.training)

    def to_torch(self) -> nn.MultiheadAttention:
        """Make an ``nn.MultiheadAttention(batch_first=True)`` with the same parameters, copied.

        Raises ``ValueError`` for what that does not have: grouped heads, other widths or scales, norms, positions.
        """
        width, head_width = self.out.out_features, self.query.out_features // self.num_heads
        plain = self.kv_heads == self.num_heads and head_width * self.num_heads == width == self.value.out_features
        plain = plain and self.scale == head_width**-0.5 and (self.query.bias is None) == (self.out.bias is None)
        if not plain or self.query_norm is not None or type(self.positions) is not Positions:
            raise ValueError(
                "to_torch: nn.MultiheadAttention has no grouped heads, other widths, norms of q and k, positions, "
                "other scale, or bias in some projections only"
            )
        kdim = self.key.in_features
        has_bias = self.query.bias is not None
        theirs = nn.MultiheadAttention(
            width, self.num_heads, self.dropout, bias=has_bias, kdim=kdim, vdim=kdim, batch_first=True
        )
        ours = self.query, self.key, self.value
        with torch.no_grad():
            if theirs._qkv_same_embed_dim:
                theirs.in_proj_weight.copy_(torch.cat([x.weight for x in ours]))
            else:
                names = "q_proj_weight", "k_proj_weight", "v_proj_weight"
                for name, x in zip(names, ours, strict=True):
                    getattr(theirs, name).copy_(x.weight)
            if has_bias:
                theirs.in_proj_bias.copy_(torch.cat([x.bias for x in ours]))
            theirs.out_proj.load_state_dict(self.out.state_dict())
        return theirs.to(self.out.weight).train(self.training)


def _join_heads(y: Tensor) -> Tensor:
    """``(B, heads, N, width)`` to ``(B, N, heads · width)``."""
    return y.transpose(1, 2).flatten(2)


def _apply_norm(x: Tensor, norm: Callable[[Tensor], Tensor] | None) -> Tensor:
    return x if norm is None else norm(x)
