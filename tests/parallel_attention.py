"""Attention over several processes, compared with one process that has everything: cases of tests/test_parallel.py."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import limelight as ll
from conftest import gradient_bounds, problems
from limelight import parallel
from limelight.parallel.layouts import Contiguous, Layout, Zigzag
from processes import close, expect_error

BOTH: tuple[Layout, ...] = (Contiguous(), Zigzag())
TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-4, torch.bfloat16: 4e-2, torch.float16: 6e-3}


def uneven(x: Tensor, sizes: list[int], dim: int = 2) -> Tensor:
    """The part of a tensor that this process has, cut into parts of these sizes."""
    return x.split(sizes, dim)[dist.get_rank()]


def attention_of_random_problems() -> None:
    """Output and gradients of q, k, v under every mask, bias and option, with shards of random sizes."""
    dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

    @settings(max_examples=25, derandomize=True, database=None, deadline=None, suppress_health_check=checks)
    @given(problem=problems(dtypes), data=st.data())
    def check(problem: dict[str, Any], data: st.DataObject) -> None:
        options = dict(problem)
        q, k, v = (options.pop(name) for name in "qkv")
        cut = _random_sizes(data, q.shape[-2]), _random_sizes(data, k.shape[-2])
        _compare(q, k, v, options, lambda x, which: uneven(x, cut[which], -2), {})

    check()


def _random_sizes(data: st.DataObject, length: int) -> list[int]:
    size = dist.get_world_size()
    bounds = sorted(data.draw(st.lists(st.integers(0, length), min_size=size - 1, max_size=size - 1)))
    ends = [0, *bounds, length]
    return [b - a for a, b in pairwise(ends)]


def _compare(q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], cut: Any, more: dict[str, Any]) -> None:
    whole = [x.clone().requires_grad_() for x in (q, k, v)]
    own = [cut(x, which).clone().requires_grad_() for x, which in zip((q, k, v), (0, 1, 1), strict=True)]
    torch.manual_seed(3)
    want = ll.attention(*whole, **options)
    g = torch.linspace(-1, 1, want.numel()).reshape(want.shape).to(want.dtype)
    torch.manual_seed(3)
    got = parallel.attention(*own, **options, **more)
    tolerance = TOLERANCE[q.dtype]
    close(got, cut(want, 0), "output", tolerance)
    want.backward(g)
    got.backward(cut(g, 0))
    some = q.numel() and k.numel()
    bounds = gradient_bounds({"q": q, "k": k, "v": v, **options}, g) if some else dict.fromkeys("qkv", 0.0)
    for name, x, y, which in zip("qkv", own, whole, (0, 1, 1), strict=True):
        # Rows with one key have a gradient of 0, of which roundings may leave something.
        close(x.grad, cut(y.grad, which), f"gradient of {name}", 4 * tolerance, 2 * bounds[name])


def attention_with_everything() -> None:
    """Gradients of tables, slopes, sink, temperature and dense bias add up over processes; dropout is the same."""
    N, H = 53, 6
    q, k, v = torch.randn(2, H, N, 11), torch.randn(2, 3, N, 11), torch.randn(2, 3, N, 7)
    learned = [torch.rand(H) / 10, torch.randn(H, 11), torch.randn(H), torch.tensor(1.3), torch.randn(1, 1, N, N)]
    for x in (q, k, v, *learned):
        dist.broadcast(x, 0)

    def options(tensors: list[Tensor]) -> dict[str, Any]:
        slopes, table, sink, temperature, dense = tensors
        bias = ll.ALiBi(slopes) + ll.Relative(table) + ll.DenseBias(dense)
        return {"bias": bias, "sink": sink, "temperature": temperature, "softcap": 4.0, "dropout": 0.3}

    for layout in BOTH:
        for mask in (None, ll.Causal() & ll.Documents(torch.arange(N) // 9), ~ll.Window(20)):
            one, many = ([x.clone().requires_grad_() for x in learned] for _ in range(2))
            torch.manual_seed(5)
            want = ll.attention(q, k, v, mask=mask, **options(one))
            want.square().sum().backward()
            own = (parallel.shard(x, layout) for x in (q, k, v))
            torch.manual_seed(5 + 7 * dist.get_rank())  # the seed of rank 0 counts
            got = parallel.attention(*own, mask=mask, layout=layout, **options(many))
            close(got, parallel.shard(want, layout), f"{mask!r}", 1e-4)
            got.square().sum().backward()
            for x, y in zip(many, one, strict=True):
                assert x.grad is not None
                dist.all_reduce(x.grad)
                close(x.grad, y.grad, f"{mask!r}: {tuple(x.shape)}", 4e-4)


def shards_of_any_size() -> None:
    """Empty shards, shards of one token, other numbers of queries than keys, and no keys at all."""
    size = dist.get_world_size()
    for n, m in (([0] * (size - 1) + [5], [1] * size), ([1] * size, [0] * (size - 1) + [7]), ([3] * size, [0] * size)):
        q, k, v = torch.randn(1, 2, sum(n), 4), torch.randn(1, 2, sum(m), 4), torch.randn(1, 2, sum(m), 3)
        for x in (q, k, v):
            dist.broadcast(x, 0)
        for mask in (None, ll.Causal(), ll.Window(1)):
            _compare(q, k, v, {"mask": mask}, lambda x, which, cut=(n, m): uneven(x, cut[which], -2), {})
            A = parallel.weights(uneven(q, n), uneven(k, m), mask=mask)
            B = ll.weights(q, k, mask=mask)
            close(A.entropy(), uneven(B.entropy(), n), "entropy", 1e-5)
            close(A.received(), uneven(B.received(), m), "received", 1e-5)
            close(A.dense(), B.dense(), "dense", 1e-5)


def decoding() -> None:
    """Steps of generation with a cache that is spread out."""
    for layout in BOTH:
        k, v = torch.randn(2, 2, 37, 8), torch.randn(2, 2, 37, 5)
        steps = [torch.randn(2, 4, n, 8) for n in (1, 3, 1, 1)]
        new = [(torch.randn(2, 2, x.shape[2], 8), torch.randn(2, 2, x.shape[2], 5)) for x in steps]
        for x in (k, v, *steps, *(y for pair in new for y in pair)):
            dist.broadcast(x, 0)
        cache = parallel.SpreadCache(parallel.shard(k, layout), parallel.shard(v, layout), layout=layout)
        for q, (more_k, more_v) in zip(steps, new, strict=True):
            k, v = torch.cat([k, more_k], 2), torch.cat([v, more_v], 2)
            cache.extend(more_k, more_v)
            options = {"mask": ll.Causal() & ll.Window(30), "bias": ll.ALiBi(4), "sink": torch.ones(4)}
            close(cache.attend(q, **options), ll.attention(q, k, v, **options), "a step", 1e-5)
        assert cache.count == 43
        sizes = torch.tensor(cache.own)
        dist.all_reduce(sizes)
        assert int(sizes) == 43


def models() -> None:
    """Outputs, gradients and head reports of models on shards of a text."""
    for name, layout in (("decoder", Zigzag()), ("encoder", Contiguous())):
        torch.manual_seed(1)
        model = _model(name == "decoder")
        ids = torch.randint(0, 31, (2, 43), generator=torch.Generator().manual_seed(2))
        mask = ll.Window(17) if name == "decoder" else ll.Padding([43, 30])
        with ll.watch(model) as record:
            want = model(ids, mask=mask)
        want.square().mean().backward()
        gradients = [p.grad.clone() for p in model.parameters()]
        tokens = [[f"t{i}" if i % 7 else "." for i in row] for row in ids.tolist()]
        report = record.heads(tokens)
        model.zero_grad()
        many = parallel.sequence(model, layout=layout)
        own = parallel.shard(ids, layout, 1)
        with ll.watch(model) as record:
            got = many(own, mask=mask)
        real = slice(None) if name == "decoder" else slice(0, 1)  # what is computed for padding has no meaning
        close(got[real], parallel.shard(want, layout, 1)[real], name, 1e-4)
        loss = parallel.total(many(own, mask=mask).square().sum()) / want.numel()
        loss.backward()
        if name == "decoder":
            close(loss, want.square().mean(), "loss", 1e-5)
            for p, g in zip(model.parameters(), gradients, strict=True):
                close(p.grad, g, f"gradient {tuple(p.shape)}", 1e-3)
        many.close()
        for a, b in zip(record.heads(tokens), report, strict=True):
            assert a.keys() == b.keys()
            for key, value in b.items():
                same = abs(a[key] - value) < 1e-4 if isinstance(value, float) else a[key] == value
                assert same, f"{name}: {key} of {b['module']} is {a[key]} and should be {value}"


def _model(decoder: bool) -> torch.nn.Module:
    nn, positions = ll.nn, ll.positions

    def layer(p: Any) -> Any:
        return nn.Block(nn.MultiHeadAttention(24, 4, kv_heads=2, positions=p), nn.FeedForward(24, 48))

    blocks = [layer(positions.Rotary(6)), layer(positions.T5(4) if not decoder else positions.ALiBi(4))]
    stack = nn.Decoder(blocks) if decoder else nn.Encoder(blocks)
    return nn.LanguageModel(nn.Embedding(31, 24, positions=positions.Learned(64, 24)), stack, torch.nn.Linear(24, 31))


def disagreement() -> None:
    """Shapes that differ are found by every process, and named with their ranks."""
    rank = dist.get_rank()
    q = torch.randn(1, 2, 5, 8)
    expect_error(lambda: parallel.attention(q, q, q[..., : 4 + rank]), "the width of v", "rank 0")
    typed = q.to(torch.float64 if rank else torch.float32)
    expect_error(lambda: parallel.weights(typed, typed), "type of q", "rank 0")
    expect_error(lambda: parallel.weights(q, q, mask=ll.Window(3 + rank)), "mask", "rank 0")
    wrong = q[..., :3] if rank == 1 else q
    expect_error(lambda: parallel.attention(q, wrong, q), "width" if rank == 1 else "rank 1")
    part = q if rank else q[:, :, :2]
    expect_error(lambda: parallel.attention(part, part, part, layout=Zigzag()), "Zigzag")
    A = parallel.weights(q, q)
    expect_error(lambda: A.top(2 + rank), "statistics", "rank 0")


def device_mesh() -> None:
    """A one-dimensional mesh is a group, and so is one axis of a larger one, whose other processes are not asked."""
    from torch.distributed.device_mesh import init_device_mesh

    size = dist.get_world_size()
    q = torch.randn(1, 2, 19, 4)
    dist.broadcast(q, 0)
    mesh = init_device_mesh("cpu", (size,))
    got = parallel.attention(*(parallel.shard(q, group=mesh) for _ in "qkv"), mask=ll.Causal(), group=mesh)
    close(got, parallel.shard(ll.attention(q, q, q, mask=ll.Causal())), "a mesh", 1e-5)
    two = init_device_mesh("cpu", (size, 1), mesh_dim_names=("text", "other"))
    expect_error(lambda: parallel.attention(q, q, q, group=two), "2 dimensions")
    alone = parallel.attention(q, q, q, group=two["other"])
    close(alone, ll.attention(q, q, q), "a mesh of one", 1e-5)


def dies() -> None:
    """The last process dies in the middle of a call; the others get an error that names it, and do not hang."""
    q = torch.randn(1, 2, 64, 8)
    parallel.attention(q, q, q)
    if dist.get_rank() == dist.get_world_size() - 1:
        os._exit(0)
    expect_error(lambda: parallel.attention(q, q, q), "did not answer")
