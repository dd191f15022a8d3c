"""Caches: what they give equals attention without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import limelight as ll
from limelight import models
from limelight.functional import attention_int8
from limelight.nn import Block, Decoder, Embedding, FeedForward, LanguageModel, MultiHeadAttention, TiedHead
from limelight.nn.positions import Rotary

KINDS: list[Any] = [ll.KVCache, ll.ByteCache, lambda: ll.WindowCache(5, 2), lambda: ll.HeavyHitterCache(8)]
BYTES = [(2, 6, 2, 1, 97, 29), (1, 4, 4, 3, 700, 64), (2, 8, 1, 40, 131, 17), (1, 8, 2, 1, 4099, 128)]


def model(mask: Any = None) -> Any:
    torch.manual_seed(0)
    positions = Rotary(6)

    def block() -> Block:
        attention = MultiHeadAttention(24, 4, kv_heads=2, positions=positions)
        return Block(attention, FeedForward(24, 40), norm=nn.RMSNorm)

    embedding = Embedding(53, 24)
    return LanguageModel(embedding, Decoder((block() for _ in range(3)), mask=mask), TiedHead(embedding.table)).eval()


def tokens(*shape: int) -> Tensor:
    return torch.randint(0, 53, shape, generator=torch.Generator().manual_seed(5))


def in_steps(m: Any, x: Tensor, sizes: list[int], cache: ll.KVCache) -> Tensor:
    return torch.cat([m(part, cache=cache) for part in x.split(sizes, 1)], 1)


@torch.no_grad()
def test_appends_are_amortised() -> None:
    """A token is copied a constant number of times: the buffer is new only when it has doubled."""
    cache = ll.KVCache()
    moves, before = 0, None
    for n in range(1, 2049):
        k, v = cache[0].extend(torch.full((2, 3, 1, 5), float(n)), torch.full((2, 3, 1, 7), -float(n)))
        moves += k.data_ptr() != before
        before = k.data_ptr()
    assert moves <= 7
    assert torch.equal(k[1, 2, :, 4], torch.arange(1.0, 2049.0))
    assert torch.equal(v[1, 2, :, 6], -torch.arange(1.0, 2049.0))


@torch.no_grad()
def test_capacity() -> None:
    m, x = model(), tokens(2, 12)
    cache = ll.KVCache(capacity=12)
    torch.testing.assert_close(in_steps(m, x, [7, 1, 4], cache), m(x))
    with pytest.raises(ValueError, match="the cache is full: 13 tokens, and its capacity is 12"):
        m(x[:, :1], cache=cache)
    with pytest.raises(ValueError, match="the cache holds 2 sequences and receives 1"):
        m(x[:1, :1], cache=cache)
    with pytest.raises(ValueError, match="KVCache: capacity = 0 must be at least 1"):
        ll.KVCache(capacity=0)


@torch.no_grad()
def test_reorder_and_truncate() -> None:
    m, x = model(), tokens(3, 20)
    cache = ll.KVCache()
    m(x[:, :11], cache=cache)
    cache.reorder(torch.tensor([2, 0, 0, 1]))
    y = x[[2, 0, 0, 1]]
    torch.testing.assert_close(m(y[:, 11:15], cache=cache), m(y[:, :15])[:, 11:])
    cache.truncate(6)
    assert cache.count == 6
    torch.testing.assert_close(m(y[:, 6:], cache=cache), m(y)[:, 6:])
    with pytest.raises(ValueError, match="truncate: count = 21 must be from 0 to 20"):
        cache.truncate(21)


@pytest.mark.parametrize(
    "kind", [ll.KVCache, ll.ByteCache, lambda: ll.WindowCache(5, 2), lambda: ll.HeavyHitterCache(8)]
)
@torch.no_grad()
def test_save_and_restore(kind: Any, tmp_path: Path) -> None:
    m, x = model(), tokens(2, 30)
    a, b = kind(), kind()
    in_steps(m, x[:, :23], [11] + [1] * 12, a)
    a.save(tmp_path / "cache.safetensors")
    b.restore(tmp_path / "cache.safetensors")
    assert torch.equal(in_steps(m, x[:, 23:], [1] * 7, a), in_steps(m, x[:, 23:], [1] * 7, b))
    with pytest.raises(ValueError, match=r"was saved by .*Cache.*, and this cache is WindowCache\(3, 1\)"):
        ll.WindowCache(3, 1).restore(tmp_path / "cache.safetensors")


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("sizes", [[1] * 60, [7, 1, 1, 9, 1, 40, 1], [50, *[1] * 10], [2, 58]])
@torch.no_grad()
def test_window(first: int, sizes: list[int]) -> None:
    """The same as the mask that it stands for, in memory that does not grow."""
    window, x = 9, tokens(2, 60)
    mask = ll.Causal() & (ll.Window(window - 1, 0) | ll.First(first))
    cache = ll.WindowCache(window, first)
    torch.testing.assert_close(in_steps(model(), x, sizes, cache), model(mask)(x))
    assert cache.count == 60
    for slot in cache.slots:
        assert slot.buffers["k"].shape[2] <= first + 2 * window
    with pytest.raises(ValueError, match="only a KVCache can be truncated"):
        cache.truncate(3)


@torch.no_grad()
def test_heavy_hitters_by_hand() -> None:
    """With one layer and head, the keys that stay are those with the largest sums of dense weights."""
    torch.manual_seed(1)
    layer = MultiHeadAttention(8, 1).eval()
    layer.key.weight.mul_(6)  # sharp enough that some keys stand out
    x = torch.randn(1, 40, 8)
    size, recent = 8, 3
    cache = ll.HeavyHitterCache(size, recent)
    held, received = [], torch.zeros(0)
    for n in range(40):
        got = layer(x[:, n : n + 1], cache=cache[0])
        held.append(n)
        q, k, v = layer.query(x[0, n]), layer.key(x[0, held]), layer.value(x[0, held])
        weights = torch.softmax(k @ q * layer.scale, 0)
        torch.testing.assert_close(got[0, 0], layer.out(weights @ v))
        received = torch.cat([received, torch.zeros(1)]) + weights
        if len(held) > size + size // 8:
            old = received[:-recent].topk(size - recent).indices.sort().values.tolist()
            keep = old + list(range(len(held) - recent, len(held)))
            held, received = [held[i] for i in keep], received[keep]
    assert cache[0].length <= size + size // 8
    assert held[0] < 20, "something old was worth keeping"


@torch.no_grad()
def test_heavy_hitters_that_all_fit() -> None:
    m, x = model(), tokens(2, 24)
    torch.testing.assert_close(in_steps(m, x, [10, *[1] * 14], ll.HeavyHitterCache(24)), m(x))
    cache = ll.HeavyHitterCache(10, 4)
    in_steps(m, x, [10, *[1] * 14], cache)
    assert all(slot.length <= 11 for slot in cache.slots)


@torch.no_grad()
def test_batches_of_different_lengths_need_a_cache_that_keeps_all() -> None:
    m, x = model(), tokens(2, 9)
    for cache in (ll.WindowCache(5), ll.HeavyHitterCache(5)):
        with pytest.raises(ValueError, match="sequences of different lengths need a KVCache"):
            models.generate(m, x, mask=ll.Padding([9, 4]), cache=cache)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "sizes", [(2, 6, 2, 1, 97, 29), (1, 4, 4, 3, 700, 64), (2, 8, 1, 40, 131, 17), (1, 8, 2, 1, 4099, 128)]
)
def test_bytes_are_read_as_they_are(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    """The kernels give what the numbers that the bytes stand for give."""
    B, H, Hkv, N, M, D = sizes
    q, k, v = (torch.randn(*s).to(dtype) for s in ((B, H, N, D), (B, Hkv, M, D), (B, Hkv, M, D + 3)))
    cache = ll.ByteCache()
    cache[0].extend(k[:, :, :10], v[:, :, :10])
    kept_k, kept_v = cache[0].extend(k[:, :, 10:], v[:, :, 10:])
    a, b = kept_k.dequantise(torch.float64), kept_v.dequantise(torch.float64)
    assert float((a - k.double()).abs().max() / k.double().abs().max()) < 1 / 250
    for mask, bias in ((None, None), (ll.Causal() & ll.Window(50), ll.ALiBi(H))):
        got = attention_int8(q, kept_k, kept_v, mask=mask, bias=bias)
        want = ll.attention(q.double(), a, b, mask=mask, bias=bias)
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), want, atol=2e-2 if dtype == torch.bfloat16 else 1e-5, rtol=1e-5)


def test_bytes_that_do_not_fit_are_refused() -> None:
    """Also where the kernels are called without the checks of a general call."""
    q, x = torch.randn(1, 6, 1, 7), torch.randn(1, 3, 11, 7)
    k, v = ll.ByteCache()[0].extend(x, x)
    want = ll.attention(q, k.dequantise(q.dtype), v.dequantise(q.dtype), scale=0.3)
    torch.testing.assert_close(attention_int8(q, k, v, scale=0.3), want)
    torch.testing.assert_close(attention_int8(q.mT.contiguous().mT, k, v, scale=0.3), want)
    with pytest.raises(ValueError, match="width: 5 and 7"):
        attention_int8(q[..., :5], k, v)
    with pytest.raises(ValueError, match="q has 5 heads and k 3"):
        attention_int8(q[:, :5], k, v)
    with pytest.raises(ValueError, match="scale"):
        attention_int8(q, k, v, scale=float("nan"))
    with pytest.raises(TypeError, match="q is "):
        attention_int8(q.long(), k, v)


@torch.no_grad()
def test_bytes_in_a_model() -> None:
    m, x = model(), tokens(2, 40)
    cache = ll.ByteCache()
    got, want = in_steps(m, x, [17, *[1] * 23], cache), m(x)
    assert float((got - want).abs().max() / want.abs().max()) < 0.03
    assert not torch.equal(got, want)
    full = ll.KVCache()
    in_steps(m, x, [17, *[1] * 23], full)

    def size(cache: ll.KVCache) -> int:
        return sum(x.numel() * x.itemsize for slot in cache.slots for x in slot.buffers.values())

    width = 6  # of a head here, to which a scale adds 4 bytes
    assert size(cache) / size(full) == pytest.approx((width + 4) / (4 * width))
