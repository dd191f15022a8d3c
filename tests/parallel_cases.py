"""The computations of the processes in tests/test_parallel.py, each compared with one process that has everything.

``run(processes, names)`` starts them once for many cases, because importing torch takes seconds. A case is a function
of the rank; a failure on any rank comes back as text.
"""

from __future__ import annotations

import os
import socket
import tempfile
import traceback
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import limelight as ll
from conftest import gradient_bounds, problems
from limelight import parallel
from limelight.backends import native
from limelight.parallel import shards
from limelight.parallel.group import Exchange, Processes
from limelight.parallel.layouts import Contiguous, Layout, Zigzag

BOTH: tuple[Layout, ...] = (Contiguous(), Zigzag())


def run(processes: int, names: list[str], timeout: float = 120) -> dict[str, str]:
    """Run cases on so many processes, and return what went wrong in each."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        mp.spawn(_process, (processes, port, folder, names, timeout), nprocs=processes)
        texts = {name: [_read(Path(folder) / f"{name}.{r}") for r in range(processes)] for name in names}
    return {name: "\n".join(filter(None, found)) for name, found in texts.items() if any(found)}


def _read(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def _process(rank: int, size: int, port: int, folder: str, names: list[str], timeout: float) -> None:
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size, timeout=timedelta(seconds=timeout))
    for name in names:
        torch.manual_seed(len(name))
        try:
            globals()[name]()
            text = ""
        except BaseException:
            text = f"rank {rank}: {traceback.format_exc()}"
        (Path(folder) / f"{name}.{rank}").write_text(text)
    dist.destroy_process_group()


def close(got: Tensor, want: Tensor, what: str, tolerance: float, rounding: float = 0.0) -> None:
    """Compare with an error relative to the largest number, or that of roundings; −∞ and shapes must be the same."""
    assert got.shape == want.shape, f"{what}: {tuple(got.shape)} and {tuple(want.shape)}"
    got, want = got.detach().double(), want.detach().double()
    assert torch.equal(got.isfinite(), want.isfinite()), f"{what}: not finite in other places"
    error = (got - want).nan_to_num(posinf=0, neginf=0).abs()
    relative = tolerance * (want.nan_to_num(posinf=0, neginf=0).abs().max() if want.numel() else 0.0)
    bound = relative + max(tolerance * 1e-2, rounding)
    assert not error.numel() or error.max() <= bound, f"{what}: {error.max():.2e} > {bound:.2e}"


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


ROWS = {"entropy": True, "mass": ll.First(3) | ll.Window(2), "distance": True, "max": True, "top": 7}
OTHERS = {"received": True, "profile": 11, "pool": (7, 13), "similarity": True}
WHOLE = ("profile", "pool", "similarity")


def _matrices(layout: Layout, grad: bool, **options: Any) -> tuple[Any, Any, list[Tensor], list[Tensor]]:
    q, k = torch.randn(2, 6, 47, 13, dtype=torch.double), torch.randn(2, 3, 47, 13, dtype=torch.double)
    for x in (q, k):
        dist.broadcast(x, 0)
    one = [x.clone().requires_grad_(grad) for x in (q, k)]
    own = [parallel.shard(x, layout).clone().requires_grad_(grad) for x in (q, k)]
    return ll.weights(*one, **options), parallel.weights(*own, layout=layout, **options), one, own


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"mask": ll.Causal() & ll.Window(9), "sink": torch.arange(6) / 3.0, "bias": ll.ALiBi(6)},
    {"mask": ll.Padding([0, 29]), "temperature": 0.7},
    {"mask": ll.Dense(torch.arange(47 * 47).reshape(47, 47) % 5 > 1), "softcap": 3.0},
)


def statistics() -> None:
    """Every statistic, alone and together, with normalisers that are known or not."""
    for layout in BOTH:
        for options in OPTIONS:
            A, B, _, _ = _matrices(layout, False, **options)
            u, v = torch.randn(2, 6, 47, 5, dtype=torch.double), torch.randn(2, 3, 47, 5, dtype=torch.double)
            dist.broadcast(u, 0)
            dist.broadcast(v, 0)
            for asked in (ROWS, OTHERS, {**ROWS, **OTHERS}, {"entropy": True, **OTHERS}, {"pool": (5, 9, "max")}):
                for fresh in (True, False):
                    B = B.changed() if fresh else B
                    _compare_statistics(A.observe(**asked), B.observe(**asked), layout, f"{options} {list(asked)}")
            close(B @ parallel.shard(v, layout), parallel.shard(A @ v, layout), "A @ v", 1e-11)
            close(B.T @ parallel.shard(u, layout), parallel.shard(A.T @ u, layout), "A.T @ u", 1e-11)
            close(B.logsumexp(), parallel.shard(A.logsumexp(), layout, 2), "logsumexp", 1e-11)
            close(B[1, 2:5, 3:40:7, 1:], A[1, 2:5, 3:40:7, 1:], "a part", 1e-10)
            close(B[0, :, [5, 46, 0], [4, 2, 0]], A[0, :, [5, 46, 0], [4, 2, 0]], "pairs", 1e-10)
            window = {"queries": slice(11, 37), "keys": slice(5, 41)}
            close(B.pool(3, 4, **window), A.pool(3, 4, **window), "pool of a window", 1e-10)
            close(B.whole().received(), A.received(), "received, whole", 1e-10)
            assert ((B.cover(0.7) - parallel.shard(A.cover(0.7), layout, 2)).abs() <= 1).all()


def _compare_statistics(want: Any, got: Any, layout: Layout, what: str) -> None:
    for name in vars(want):
        x, y = getattr(want, name), getattr(got, name)
        if name == "top":
            assert torch.equal(y.indices, parallel.shard(x.indices, layout, 2)), f"{what}: keys of top"
            x, y = x.values, y.values
        close(y, x if name in WHOLE else parallel.shard(x, layout, 2), f"{what}: {name}", 1e-10)


def gradients_of_statistics() -> None:
    """The gradient of every statistic that has one, of its sum over all processes."""
    for layout in BOTH:
        for options in OPTIONS[1:3]:
            A, B, one, own = _matrices(layout, True, **options)
            for name, value in {**ROWS, **OTHERS}.items():
                x, y = getattr(A.observe(**{name: value}), name), getattr(B.observe(**{name: value}), name)
                x, y = (x.values, y.values) if name == "top" else (x, y)
                w = torch.sin(torch.arange(x.numel(), dtype=torch.double)).reshape(x.shape)
                wanted = torch.autograd.grad((x * w).sum(), one)
                w = w if name in WHOLE else parallel.shard(w, layout, 2)
                found = torch.autograd.grad((y * w).sum(), own)
                for a, b in zip(found, wanted, strict=True):
                    close(a, parallel.shard(b, layout), f"{options}: gradient of {name}", 1e-9)
            wanted = torch.autograd.grad(A[0, 1, 3:30, 2:].square().sum(), one)
            found = torch.autograd.grad(B[0, 1, 3:30, 2:].square().sum(), own)
            for a, b in zip(found, wanted, strict=True):
                close(a, parallel.shard(b, layout), "gradient of a part", 1e-9)


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
    _expect(lambda: parallel.attention(q, q, q[..., : 4 + rank]), "the width of v", "rank 0")
    typed = q.to(torch.float64 if rank else torch.float32)
    _expect(lambda: parallel.weights(typed, typed), "type of q", "rank 0")
    _expect(lambda: parallel.weights(q, q, mask=ll.Window(3 + rank)), "mask", "rank 0")
    wrong = q[..., :3] if rank == 1 else q
    _expect(lambda: parallel.attention(q, wrong, q), "width" if rank == 1 else "rank 1")
    part = q if rank else q[:, :, :2]
    _expect(lambda: parallel.attention(part, part, part, layout=Zigzag()), "Zigzag")
    A = parallel.weights(q, q)
    _expect(lambda: A.top(2 + rank), "statistics", "rank 0")


def _expect(call: Any, *words: str) -> None:
    with pytest.raises((ValueError, RuntimeError, TypeError)) as error:
        call()
    for word in words:
        assert word in str(error.value), f"{word!r} is not in {error.value}"


def balance() -> None:
    """Causal work under Zigzag is the same on every process within 10%."""
    N = 1003
    found = parallel.weights(
        *(parallel.shard(torch.randn(1, 1, N, 4), Zigzag()) for _ in "qk"), mask=ll.Causal(), layout=Zigzag()
    )._shards
    spans = found.lowered.spans
    assert spans is not None
    seen = (spans[0, :, 0, 1] - spans[0, :, 0, 0]).double()
    work = torch.stack([sum((seen[r.begin : r.end].sum() for r in runs), torch.zeros(())) for runs in found.query_runs])
    assert work.max() <= 1.1 * work.mean(), work


def no_messages_without_need() -> None:
    """Blocks that nobody sees are not sent: of packed documents on one process each, none is."""
    size, sent = dist.get_world_size(), []
    n = 16
    q = torch.randn(1, 2, n * size, 4)
    dist.broadcast(q, 0)
    ids = torch.arange(n * size) // n
    own = parallel.shard(q)
    real = Processes.exchange

    def counted(self: Any, send: Any, to: int, receive: Any, source: int) -> Any:
        sent.append(send is not None)
        return real(self, send, to, receive, source)

    Processes.exchange = counted  # type: ignore[method-assign]
    try:
        got = parallel.attention(own, own, own, mask=ll.Documents(ids))
        assert not any(sent)
        parallel.attention(own, own, own, mask=ll.Causal())
        assert sum(sent) == size - 1 - dist.get_rank()
    finally:
        Processes.exchange = real  # type: ignore[method-assign]
    close(got, parallel.shard(ll.attention(q, q, q, mask=ll.Documents(ids))), "documents", 1e-5)


class _Link(Processes):
    """Processes on a clock of their own: a kernel takes a unit a query–key pair, a message ``delay`` units of the link.

    Nothing here depends on how fast the machine is.
    """

    def __init__(self, delay: float) -> None:
        super().__init__()
        self.now = self._free = 0.0
        self._delay = delay
        self.starts: list[float] = []  # of ticks
        self.received = 0

    def exchange(self, send: Tensor | None, to: int, receive: Tensor | None, source: int) -> Exchange:
        self.starts.append(self.now)
        found = super().exchange(send, to, receive, source)
        if receive is not None:
            self.received += 1
            self._free = ready = max(self._free, self.now) + self._delay
            wait = found.receive

            def receive_at() -> Tensor | None:
                self.now = max(self.now, ready)
                return wait()

            found.receive = receive_at  # type: ignore[method-assign]
        return found

    def attend(self, x: Tensor, **options: Any) -> None:
        """Compute with blocks of 16 keys, and count the pairs that are allowed."""
        real = native.accumulate

        def counted(*args: Any, **kwargs: Any) -> Any:
            spans, sizes = args[3].spans, args[4]
            pairs = sizes.N * sizes.M if spans is None else float((spans[..., 1] - spans[..., 0]).sum())
            self.now += pairs
            return real(*args, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "accumulate", counted)
            patch.setattr(shards, "_BLOCK_BYTES", 1)
            patch.setattr(shards, "_SHORTEST", 16)
            patch.setattr(shards, "_TILE", 1)
            parallel.attention(x, x, x, group=self, **options)


def communication_is_hidden() -> None:
    """The time of the ring is the larger of computing and sending, and not their sum."""
    x = torch.randn(1, 1, 256, 4)
    free = _Link(0.0)
    free.attend(x)
    compute, blocks = free.now, free.received
    assert compute == 256 * 256 * dist.get_world_size()
    assert blocks == 16 * (dist.get_world_size() - 1)
    for share in (0.3, 1.0, 3.0):
        delay = share * compute / blocks
        link = _Link(delay)
        link.attend(x)
        larger = max(compute, blocks * delay)
        assert larger <= link.now <= 1.05 * larger + 2 * (delay + compute / blocks), (share, link.now / compute)


def ticks_are_balanced() -> None:
    """Under Zigzag every process is at the same tick at the same time, so that none waits for a block."""
    link = _Link(0.0)
    link.attend(
        parallel.shard(torch.randn(1, 1, 512 * dist.get_world_size(), 4), Zigzag()), mask=ll.Causal(), layout=Zigzag()
    )
    every = link.gather(torch.tensor([*link.starts, link.now], dtype=torch.double))
    apart = every.max(0).values - every.min(0).values
    assert apart.max() <= 3 * link.now / len(link.starts), apart / link.now


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
    _expect(lambda: parallel.attention(q, q, q, group=two), "2 dimensions")
    alone = parallel.attention(q, q, q, group=two["other"])
    close(alone, ll.attention(q, q, q), "a mesh of one", 1e-5)


def dies() -> None:
    """The last process dies in the middle of a call; the others get an error that names it, and do not hang."""
    q = torch.randn(1, 2, 64, 8)
    parallel.attention(q, q, q)
    if dist.get_rank() == dist.get_world_size() - 1:
        os._exit(0)
    _expect(lambda: parallel.attention(q, q, q), "did not answer")
