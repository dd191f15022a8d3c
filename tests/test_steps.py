"""Steps of generation in few calls: fused norms, sums and caches, against float64 and against every part by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import limelight as ll
from conftest import assert_sums_close
from limelight.backends import Norm, attention_with_cache, linears_of_few_rows, native
from limelight.core.masks import Causal
from limelight.lens import Off
from limelight.nn import Block, Decoder, FeedForward, MultiHeadAttention
from limelight.nn.linear import Linear, add_projection, project
from limelight.nn.norm import RMSNorm
from limelight.nn.positions import ALiBi, Rotary

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
WIDTH, HEADS, KV_HEADS, HEAD = 37, 6, 3, 14


def norm_in_float64(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    wide = x.double()
    y = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    return y if weight is None else y * weight.double()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_norm_layer_and_residual_in_one_call(rows: int, weighted: bool, dtype: torch.dtype, isa: str) -> None:
    x, w, b = (torch.randn(*shape).to(dtype) for shape in ((rows, 131), (71, 131), (71,)))
    residual = torch.randn(rows, 71).to(dtype)
    weight = torch.rand(131).to(dtype) if weighted else None
    outs = linears_of_few_rows(x, [(w, b)], norm=Norm(weight, 1e-2), residual=residual)
    if outs is None:  # torch is faster for so many rows of this type
        assert (dtype, rows) == (torch.bfloat16, 8)
        return
    normed = norm_in_float64(x, weight, 1e-2).to(dtype)
    want = normed.double() @ w.double().T + b.double() + residual.double()
    assert_sums_close(outs[0], want, terms=131, size=64.0)


def stack(hooked: bool, positions: Callable[[], Any] = lambda: Rotary(10), activation: Any = None) -> Decoder:
    """Two pre-norm blocks; hooks on every part keep the steps apart, and change nothing."""

    def block() -> Block:
        attention = MultiHeadAttention(WIDTH, HEADS, kv_heads=KV_HEADS, head_width=HEAD, positions=positions())
        feed_forward = FeedForward(WIDTH, 53, activation or nn.functional.silu, gated=activation is None)
        return Block(attention, feed_forward, norm=lambda width: RMSNorm(width, eps=1e-5))

    torch.manual_seed(3)
    made = Decoder([block(), block()], RMSNorm(WIDTH, eps=1e-5)).eval()
    for part in made.modules() if hooked else ():
        part.register_forward_hook(lambda module, inputs, out: None)
    return made


def steps(model: nn.Module, x: Tensor, cache: ll.KVCache, prompt: int = 5) -> Tensor:
    """The outputs of a prompt and of single tokens after it."""
    first = [model(x[:, :prompt], cache=cache)]
    return torch.cat(first + [model(x[:, n : n + 1], cache=cache, first=n) for n in range(prompt, x.shape[1])], 1)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("capacity", [None, 11])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"activation": nn.functional.gelu},
        {"positions": lambda: None},
        {"positions": lambda: Rotary(14, interleaved=True)},
        {"positions": lambda: ALiBi(HEADS)},
    ],
    ids=["gated", "plain", "no positions", "interleaved", "ALiBi"],
)
def test_steps_of_blocks(options: Any, capacity: int | None, dtype: torch.dtype, isa: str) -> None:
    x = torch.randn(2, 11, WIDTH).to(dtype)
    with torch.no_grad():
        want = stack(True, **options).double()(x.double(), first=0)
        model = stack(False, **options).to(dtype)
        assert_sums_close(steps(model, x, ll.KVCache(capacity)), want, terms=200)
        apart = steps(stack(True, **options).to(dtype), x, ll.KVCache(capacity))
        assert_sums_close(apart, want, terms=200)
    with torch.inference_mode():
        assert_sums_close(steps(model, x, ll.KVCache(capacity)), want, terms=200)


def test_one_token_of_a_layer_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    real = native.kernels.attention_with_cache
    monkeypatch.setattr(native.kernels, "attention_with_cache", lambda *args: (calls.append(real(*args)), calls[-1])[1])
    model, x = stack(False), torch.randn(1, 9, WIDTH)
    with torch.no_grad():
        steps(model, x, ll.KVCache())
        assert calls.count(True) == 2 * 4
        calls.clear()
        steps(model, x, ll.WindowCache(4))  # drops tokens
        steps(model, x, ll.ByteCache())
        model(x[:, :1], cache=ll.KVCache(), mask=Causal())
        assert True not in calls


def test_a_full_cache_still_says_so() -> None:
    model, x = stack(False), torch.randn(1, 6, WIDTH)
    with torch.no_grad(), pytest.raises(ValueError, match="the cache is full: 6 tokens, and its capacity is 5"):
        steps(model, x, ll.KVCache(5), prompt=4)


def test_recorders_and_edits_see_every_step() -> None:
    """A recording replaces a step of the layer, which may not be passed by."""
    model, x = stack(False), torch.randn(1, 7, WIDTH)
    with torch.no_grad():
        want = steps(model, x, ll.KVCache())
        with ll.watch(model) as record:
            got = steps(model, x, ll.KVCache())
        with ll.edit(model, {1: Off([2])}):
            edited = steps(model, x, ll.KVCache())
    torch.testing.assert_close(got, want)
    assert len(record.log) == 2 * 3  # two layers, a prompt and two tokens
    assert not torch.allclose(edited[:, 5:], want[:, 5:])


def test_gradients_are_recorded_in_single_steps() -> None:
    model = stack(False)
    x = torch.randn(1, 1, WIDTH, requires_grad=True)
    model(x).sum().backward()
    assert x.grad is not None
    assert all(p.grad is not None for p in model.parameters())
    layer = Linear(5, 7)
    assert add_projection(torch.randn(1, 7), torch.randn(1, 5), layer).requires_grad
    assert project(torch.randn(1, 5), layer, norm=RMSNorm(5, eps=1e-5))[0].requires_grad


@pytest.mark.parametrize("part", ["attention_norm", "attention", "attention.out", "feed_forward", "feed_forward.down"])
def test_hooks_of_every_part_are_called(part: str) -> None:
    model, seen = stack(False), []
    hook = model.blocks[1].get_submodule(part).register_forward_hook(lambda module, inputs, out: seen.append(out.shape))
    with torch.no_grad():
        model(torch.randn(1, 1, WIDTH))
        assert seen == [(1, 1, WIDTH)]
        hook.remove()
        model(torch.randn(1, 1, WIDTH))
        every = nn.modules.module.register_module_forward_hook(lambda module, inputs, out: seen.append(type(module)))
        model(torch.randn(1, 1, WIDTH))
        every.remove()
    assert seen.count(Linear) == 2 * 7
    assert seen.count(RMSNorm) == 2 * 2 + 1


def test_a_forward_that_was_replaced_is_called() -> None:
    model = stack(False)
    model.blocks[0].feed_forward.forward = lambda x: torch.zeros_like(x)  # type: ignore[method-assign]
    model.blocks[1].feed_forward.down.forward = lambda y: torch.zeros(1, 1, WIDTH)  # type: ignore[union-attr]
    x = torch.randn(1, 1, WIDTH)
    with torch.no_grad():
        want = x
        for block in model.blocks:
            want = want + block.attention(block.attention_norm(want))
        torch.testing.assert_close(model(x), model.norm(want))


def projected(B: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(B, 1, HEADS * HEAD), torch.randn(B, 1, KV_HEADS * HEAD), torch.randn(B, 1, KV_HEADS * HEAD)


def test_a_cache_that_does_not_fit_is_left_alone() -> None:
    q, k, v = projected()
    keys, values = torch.zeros(2, KV_HEADS, 7, HEAD), torch.zeros(2, KV_HEADS, 7, HEAD)
    angles = Rotary(10).rotation(3, 1, q)
    refused: list[tuple[Any, Any, int, Any]] = [
        ((q, k, v), (keys, values), 7, None),  # no room
        ((q, k, v), (keys[:1], values[:1]), 3, None),
        ((q, k, v), (keys, values[..., :5]), 3, None),
        ((q, k, v), (keys.double(), values.double()), 3, None),
        ((q, k[:1], v), (keys, values), 3, None),
        ((q[..., :-1].contiguous(), k, v), (keys, values), 3, None),
        ((q, k, torch._neg_view(v)), (keys, values), 3, None),
        ((q.requires_grad_(), k, v), (keys, values), 3, None),
        ((q.detach(), k, v), (keys, values), 3, angles._replace(width=16)),
        ((q.detach(), k, v), (keys, values), 3, angles._replace(cos=angles.cos.double())),
        ((q.detach(), k, v), (keys.transpose(2, 3).contiguous().transpose(2, 3), values), 3, angles),
    ]
    for case in refused:
        assert attention_with_cache(*case, 0.5) is None
    assert not keys.any()
    assert not values.any()
    out = attention_with_cache((q.detach(), k, v), (keys, values), 3, angles, 0.5)
    assert out is not None
    assert out.shape == q.shape
    assert torch.equal(values[:, :, 3], v.view(2, KV_HEADS, HEAD))


def test_layers_that_the_kernels_cannot_read() -> None:
    x, w = torch.randn(2, 5), torch.randn(3, 5)
    want = x @ w.T
    sparse = w.to_sparse()
    with torch.no_grad():
        torch.testing.assert_close(native.linear(x, torch._neg_view(-w)), want)
        torch.testing.assert_close(native.linear(torch._neg_view(-x), w), want)
        assert linears_of_few_rows(x, [(sparse, None)]) is None
        assert linears_of_few_rows(x, [(w.to("meta"), None)]) is None
        assert linears_of_few_rows(x, [(w, torch.randn(2))]) is None
        assert linears_of_few_rows(x, [(w, None)], residual=torch.randn(2, 2)) is None
        assert linears_of_few_rows(x, [(w, None)], norm=Norm(torch.randn(4), 1e-5)) is None
        assert linears_of_few_rows(x[:, :0], [(w[:, :0], None)]) is None
