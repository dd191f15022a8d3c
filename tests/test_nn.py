"""Layers against torch's own, and against the equation."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import limelight as ll
from limelight.nn import Block, Decoder, Embedding, Encoder, FeedForward, MultiHeadAttention, Seq2Seq, TiedHead


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("context_width", [None, 13])
def test_multihead_attention_from_torch_and_back(bias: bool, context_width: int | None) -> None:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(20, 5, bias=bias, kdim=context_width, vdim=context_width, batch_first=True).eval()
    if bias:
        nn.init.normal_(theirs.in_proj_bias)
        nn.init.normal_(theirs.out_proj.bias)
    ours = MultiHeadAttention.from_torch(theirs)
    back = ours.to_torch()
    x, c = torch.randn(3, 7, 20), torch.randn(3, 11, context_width or 20)
    want, weights = theirs(x, c, c, average_attn_weights=False)
    torch.testing.assert_close(ours(x, c), want)
    torch.testing.assert_close(ours.weights(x, c).dense(), weights)
    assert torch.equal(back(x, c, c, need_weights=False)[0], theirs(x, c, c, need_weights=False)[0])
    lengths = torch.tensor([11, 4, 6])
    want, _ = theirs(x, c, c, key_padding_mask=torch.arange(11) >= lengths[:, None])
    torch.testing.assert_close(ours(x, c, mask=ll.Padding(lengths)), want)


def test_what_torch_cannot_express() -> None:
    with pytest.raises(ValueError, match="has no grouped heads, other widths, norms of q and k, positions"):
        MultiHeadAttention(20, 4, kv_heads=2).to_torch()
    with pytest.raises(ValueError, match="add_bias_kv or add_zero_attn cannot be converted"):
        MultiHeadAttention.from_torch(nn.MultiheadAttention(8, 2, add_zero_attn=True))
    with pytest.raises(ValueError, match="heads = 6 must be a multiple of kv_heads = 4"):
        MultiHeadAttention(24, 6, kv_heads=4)
    with pytest.raises(ValueError, match="width = 20 is not a multiple of heads = 3; give head_width"):
        MultiHeadAttention(20, 3)


def test_widths_groups_and_norms_by_the_equation() -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(
        20, 6, kv_heads=2, head_width=7, value_width=5, context_width=11, norm=nn.RMSNorm, scale=0.3, out_bias=False
    )
    nn.init.normal_(layer.query_norm.weight)  # type: ignore[union-attr, arg-type]
    x, c = torch.randn(2, 3, 20), torch.randn(2, 13, 11)
    q = F.rms_norm(layer.query(x).view(2, 3, 6, 7), (7,), layer.query_norm.weight)  # type: ignore[union-attr, arg-type]
    k = F.rms_norm(layer.key(c).view(2, 13, 2, 7), (7,)).repeat_interleave(3, 2)
    v = layer.value(c).view(2, 13, 2, 5).repeat_interleave(3, 2)
    weights = torch.softmax(0.3 * torch.einsum("bihd,bjhd->bhij", q, k), -1)
    want = torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2) @ layer.out.weight.T
    torch.testing.assert_close(layer(x, c), want)
    assert layer.out.bias is None


def test_dropout_of_the_weights_is_of_training_alone() -> None:
    layer, x = MultiHeadAttention(16, 2, dropout=0.5), torch.randn(1, 9, 16)
    torch.manual_seed(1)
    a = layer(x)
    assert not torch.allclose(a, layer(x))
    torch.manual_seed(1)
    assert torch.equal(layer(x), a)
    assert torch.equal(layer.eval()(x), layer(x))


@pytest.mark.parametrize(("order", "first"), [("pre", True), ("post", False)])
def test_blocks_are_those_of_torch(order: str, first: bool) -> None:
    """nn.TransformerEncoderLayer and nn.TransformerDecoderLayer, with the same parameters."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"dim_feedforward": 28, "dropout": 0.0, "batch_first": True, "norm_first": first}
    theirs = nn.TransformerDecoderLayer(20, 5, **options).eval()
    for p in theirs.parameters():
        nn.init.normal_(p, std=0.3)
    make = MultiHeadAttention.from_torch
    ours = Block(
        make(theirs.self_attn), FeedForward(20, 28, F.relu), cross=make(theirs.multihead_attn), order=order
    ).eval()
    pairs = (
        (ours.attention_norm, theirs.norm1),
        (ours.cross_norm, theirs.norm2),
        (ours.feed_forward_norm, theirs.norm3),
        (ours.feed_forward.up, theirs.linear1),
        (ours.feed_forward.down, theirs.linear2),
    )
    for a, b in pairs:
        assert a is not None
        a.load_state_dict(b.state_dict())
    x, c = torch.randn(2, 7, 20), torch.randn(2, 11, 20)
    forbidden = torch.ones(7, 7).triu(1).bool()
    want = theirs(x, c, tgt_mask=forbidden)
    torch.testing.assert_close(ours(x, c, mask=ll.Causal()), want, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="has cross-attention and needs a context"):
        ours(x)


def test_parallel_and_gated() -> None:
    x = torch.randn(2, 7, 20)
    block = Block(MultiHeadAttention(20, 5), FeedForward(20, 28, F.silu, gated=True, bias=False), order="parallel")
    f = block.feed_forward
    y = block.feed_forward_norm(x)
    assert f.gate is not None
    feed = (F.silu(y @ f.gate.weight.T) * (y @ f.up.weight.T)) @ f.down.weight.T
    torch.testing.assert_close(block(x), x + block.attention(block.attention_norm(x)) + feed)
    with pytest.raises(ValueError, match="order = 'middle'; there are pre, post, parallel"):
        Block(MultiHeadAttention(20, 5), FeedForward(20, 28), order="middle")


def seq2seq() -> Seq2Seq:
    torch.manual_seed(0)
    table = Embedding(31, 20)
    attention, feed = partial(MultiHeadAttention, 20, 5), partial(FeedForward, 20, 28)
    encoder = Encoder(Block(attention(), feed()) for _ in range(2))
    decoder = Decoder(Block(attention(), feed(), cross=attention()) for _ in range(2))
    return Seq2Seq(table, encoder, table, decoder, TiedHead(table.table))


def test_a_decoder_sees_nothing_that_comes_after() -> None:
    model = seq2seq().eval()
    source, target = torch.randint(0, 31, (1, 9)), torch.randint(0, 31, (1, 12))
    other = target.clone()
    other[:, 7:] = (other[:, 7:] + 1) % 31
    a, b = model(source, target), model(source, other)
    assert torch.equal(a[:, :7], b[:, :7])
    assert not torch.allclose(a[:, 7:], b[:, 7:])
    changed = source.clone()
    changed[:, 0] = (changed[:, 0] + 1) % 31
    assert not torch.allclose(model(changed, target)[:, :1], a[:, :1])


def test_everything_learns() -> None:
    model = seq2seq()
    source, target = torch.randint(0, 31, (2, 9)), torch.randint(0, 31, (2, 12))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    losses = []
    for _ in range(60):
        loss = F.cross_entropy(model(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


@pytest.mark.parametrize("order", ["pre", "post"])
def test_padding_is_not_computed_and_changes_nothing(order: str) -> None:
    """Packed or not, the real tokens and all gradients are the same."""
    torch.manual_seed(0)
    lengths = torch.tensor([13, 1, 7])
    real = torch.arange(13) < lengths[:, None]
    blocks = [Block(MultiHeadAttention(20, 5), FeedForward(20, 28), order=order) for _ in range(2)]
    encoder = Encoder(blocks, nn.LayerNorm(20))
    found = []
    for mask in (ll.Padding(lengths), ll.Dense(real[:, None, None])):  # a dense mask is not packed
        x = torch.randn(3, 13, 20, generator=torch.Generator().manual_seed(1)).requires_grad_()
        encoder.zero_grad()
        out = encoder(x, mask=mask)
        (out[real] ** 3).sum().backward()
        found.append([out[real], x.grad, *(p.grad.clone() for p in encoder.parameters() if p.grad is not None)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
    with pytest.raises(ValueError, match="Padding has 2 lengths and there are 3 batch elements"):
        encoder(x, mask=ll.Padding([3, 4]))


def test_nothing_is_stored_on_a_layer() -> None:
    layer, x = MultiHeadAttention(16, 2), torch.randn(1, 9, 16)

    def held() -> list[Tensor]:
        return [x for x in vars(layer).values() if isinstance(x, Tensor)]

    before = set(vars(layer))
    layer(x)
    assert set(vars(layer)) == before
    assert not held()
