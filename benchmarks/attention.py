"""How fast attention is: limelight, PyTorch and the peers that are installed, in one run on this machine.

    python benchmarks/attention.py                 # one thread and all, every case; writes benchmarks/attention.json
    python benchmarks/attention.py --quick         # fewer repetitions
    python benchmarks/attention.py --case decode   # only the cases whose name contains this
    python benchmarks/attention.py --case training # forward and backward

A figure is the best of several repetitions, taken in turns, so that a slow moment of the machine hits
every contestant. Ratios are what counts; times depend on the machine. Each case states the limit it is up
against: the machine's own multiply-add peak where the work is arithmetic, its read bandwidth where the work
is to read a cache, both measured here.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import limelight as ll
import peers
from limelight import backends

Call = Callable[[], object]


@dataclass
class Case:
    """One question: which inputs, what limelight is told, what SDPA is told."""

    name: str
    sizes: tuple[int, int, int, int, int, int]  # B, Hq, Hkv, N, M, D
    options: dict[str, Any] = field(default_factory=dict)
    sdpa: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    scores: int | None = None  # how many of the scores are needed; all unless given
    peers: bool = False  # whether the peers can compute it too
    goal: float = 1.0  # the ratio to SDPA to reach
    training: bool = False  # forward and backward
    learned: list[Tensor] = field(default_factory=list)  # what has gradients beside q, k and v
    limit: str = "arithmetic"  # or "reading", or "" where overhead is the cost

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        B, Hq, Hkv, N, M, D = self.sizes
        g = torch.Generator().manual_seed(0)
        shapes = (B, Hq, N, D), (B, Hkv, M, D), (B, Hkv, M, D)
        q, k, v = (torch.randn(s, generator=g).to(self.dtype) for s in shapes)
        return q, k, v

    def flops(self) -> float:
        B, Hq, _, N, M, D = self.sizes
        products = 7 if self.training else 2
        return products * 2.0 * D * (B * Hq * N * M if self.scores is None else B * Hq * self.scores)

    def bytes(self) -> float:
        B, _, Hkv, _, M, D = self.sizes
        return 2.0 * B * Hkv * M * D * self.dtype.itemsize


def forward_cases() -> list[Case]:
    """The cases of the forward pass, each with the ratio to SDPA that it is to reach."""

    def window(n: int) -> Case:
        band = ll.Window(128)
        allowed = band.dense(n)
        return Case(
            f"window 128, n={n}",
            (1, 8, 8, n, n, 64),
            {"mask": band},
            {"attn_mask": allowed},
            goal=20,
            scores=int(allowed.sum()),
        )

    n = 2048
    causal = n * (n + 1) // 2
    padded = torch.zeros(1, 1, 1, n, dtype=torch.bool)
    padded[..., : n // 2] = True
    square = (1, 8, 8, n, n, 64)
    return [
        Case("full, n=1024", (1, 8, 8, 1024, 1024, 64), goal=1.2, peers=True),
        Case("full, n=2048", square, goal=1.2),
        Case("full, width 128, n=1024", (1, 8, 8, 1024, 1024, 128), goal=1.0),
        Case("causal, n=2048", square, {"mask": ll.Causal()}, {"is_causal": True}, scores=causal, goal=1.4, peers=True),
        window(8192),
        window(16384),
        Case(
            "half padded, n=2048",
            square,
            {"mask": ll.Padding(n // 2)},
            {"attn_mask": padded},
            scores=n * n // 2,
            goal=2,
        ),
        Case("grouped 8/2, n=2048", (1, 8, 2, n, n, 64), {}, {"enable_gqa": True}, goal=1.2),
        Case("bfloat16, n=1024", (1, 8, 8, 1024, 1024, 64), dtype=torch.bfloat16, goal=1.2),
        Case("float16, n=1024", (1, 8, 8, 1024, 1024, 64), dtype=torch.float16, goal=1.8),
        Case("float64, n=1024", (1, 8, 8, 1024, 1024, 64), dtype=torch.float64, goal=1.8),
        Case("ALiBi, n=2048", square, {"bias": ll.ALiBi(8)}, {"attn_mask": ll.ALiBi(8).dense(n)[None]}, goal=1.35),
        Case("batch 8 × 12 heads, n=128", (8, 12, 12, 128, 128, 64), goal=1.25),
        Case("decode 32/8, 4096 keys", (1, 32, 8, 1, 4096, 128), {}, {"enable_gqa": True}, goal=3.5, limit="reading"),
        Case("decode 32/32, 4096 keys", (1, 32, 32, 1, 4096, 128), goal=1.6, limit="reading"),
        Case("tiny: 12 heads, 1 query, 16 keys", (1, 12, 12, 1, 16, 64), goal=1.0, limit=""),
    ]


def training_cases() -> list[Case]:
    """The cases of the forward and the backward pass together."""
    n, long = 2048, 8192
    square, far = (1, 8, 8, n, n, 64), (1, 8, 8, long, long, 64)
    causal = n * (n + 1) // 2

    def case(name: str, sizes: tuple[int, ...], ours: dict[str, Any], theirs: dict[str, Any], **more: Any) -> Case:
        return Case(f"training: {name}", sizes, ours, theirs, training=True, **more)  # type: ignore[arg-type]

    def sparse(name: str, mask: Any, goal: float) -> Case:
        allowed = mask.dense(long)
        return case(name, far, {"mask": mask}, {"attn_mask": allowed}, scores=int(allowed.sum()), goal=goal)

    table = torch.randn(8, 2 * n - 1, generator=torch.Generator().manual_seed(1)).requires_grad_()
    dense = ll.Relative(table).dense(n)[None].detach().requires_grad_()
    return [
        case(f"full, n={n}", square, {}, {}, goal=1.2),
        case(f"causal, n={n}", square, {"mask": ll.Causal()}, {"is_causal": True}, scores=causal, goal=1.35),
        sparse(f"causal window 256, n={long}", ll.Causal() & ll.Window(256), 10),
        sparse(f"documents of 512, n={long}", ll.Documents(torch.arange(long) // 512), 8),
        case(f"dropout 0.1, n={n}", square, {"dropout": 0.1}, {"dropout_p": 0.1}, goal=5),
        case(
            f"causal, dropout 0.1, n={n}",
            square,
            {"mask": ll.Causal(), "dropout": 0.1},
            {"is_causal": True, "dropout_p": 0.1},
            scores=causal,
            goal=5,
        ),
        case(f"ALiBi, n={n}", square, {"bias": ll.ALiBi(8)}, {"attn_mask": ll.ALiBi(8).dense(n)[None]}, goal=1.5),
        case(
            f"learned relative bias, n={n}",
            square,
            {"bias": ll.Relative(table)},
            {"attn_mask": dense},
            goal=2,
            learned=[table, dense],
        ),
    ]


def best(calls: dict[str, Call], seconds: float) -> dict[str, float]:
    """The best time of each, taken in turns until each has had its share of `seconds`."""
    times: dict[str, float] = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        times[name] = time.perf_counter() - start
    loops = {name: max(1, int(2e-3 / t)) for name, t in times.items()}
    end = time.perf_counter() + seconds * len(calls)
    turns = 0
    while turns < 5 or time.perf_counter() < end:
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(loops[name]):
                call()
            times[name] = min(times[name], (time.perf_counter() - start) / loops[name])
        turns += 1
    return times


def limits(threads: int, dtype: torch.dtype = torch.float32) -> tuple[float, float]:
    """The machine's multiply-add peak (flop/s) and read bandwidth (byte/s)."""
    return backends.peak_flops(threads, dtype == torch.float64), backends.read_bandwidth(threads)


def with_backward(call: Call, leaves: list[Tensor]) -> Call:
    """The call and its gradients; returns that of the queries, to compare."""
    dout = torch.randn(leaves[0].shape, generator=torch.Generator().manual_seed(2))
    return lambda: torch.autograd.grad(call(), leaves, dout, allow_unused=True)[0]  # type: ignore[arg-type]


def run(case: Case, threads: int, seconds: float, with_peers: bool) -> dict[str, Any]:
    """All contestants on one case, with the machine's limits measured around them."""
    torch.set_num_threads(threads)
    q, k, v = case.inputs()
    calls: dict[str, Call] = {
        "limelight": lambda: ll.attention(q, k, v, **case.options),
        "SDPA": lambda: scaled_dot_product_attention(q, k, v, **case.sdpa),
    }
    if case.training:
        leaves = [x.requires_grad_() for x in (q, k, v)] + case.learned
        calls = {name: with_backward(call, leaves) for name, call in calls.items()}
    if case.peers and with_peers:
        calls |= peers.available(q, k, v, causal="is_causal" in case.sdpa, threads=threads)
    peak, bandwidth = limits(threads, case.dtype)
    with torch.inference_mode(not case.training):
        error = None
        if not ({"dropout", "dropout_p"} & (case.options.keys() | case.sdpa.keys())):
            error = (calls["limelight"]() - calls["SDPA"]()).abs().max().item()  # type: ignore[operator]
        times = best(calls, seconds)
    again = limits(threads, case.dtype)
    peak, bandwidth = max(peak, again[0]), max(bandwidth, again[1])
    mine = times["limelight"]
    return {
        "case": case.name,
        "threads": threads,
        "dtype": str(case.dtype).removeprefix("torch."),
        "milliseconds": {name: t * 1e3 for name, t in times.items()},
        "ratio": times["SDPA"] / mine,
        "goal": case.goal,
        "limit": case.limit,
        "GF/s": case.flops() / mine / 1e9,
        "GB/s": case.bytes() / mine / 1e9,
        "peak GF/s": peak / 1e9,
        "read GB/s": bandwidth / 1e9,
        "difference from SDPA": error,
    }


def share(r: dict[str, Any], results: list[dict[str, Any]]) -> str:
    """How much of the machine's limit a result reaches; a limit is the best that the whole run saw of it."""
    alike = [
        o for o in results if o["threads"] == r["threads"] and (o["dtype"] == "float64") == (r["dtype"] == "float64")
    ]
    if r["limit"] == "arithmetic":
        return f"{r['GF/s'] / max(o['peak GF/s'] for o in alike):.0%} of peak"
    return f"{r['GB/s'] / max(o['read GB/s'] for o in alike):.0%} of bandwidth" if r["limit"] == "reading" else ""


def table(results: list[dict[str, Any]], threads: int) -> Table:
    """One row a case."""
    names = [n for n in dict.fromkeys(n for r in results for n in r["milliseconds"]) if n not in ("limelight", "SDPA")]
    out = Table(
        title=f"{threads} thread{'s' if threads > 1 else ''}: milliseconds, best of several", title_justify="left"
    )
    out.add_column("case")
    for name in ("limelight", "SDPA", *names, "SDPA / limelight", "to reach", "of the machine's limit"):
        out.add_column(name, justify="right")
    for r in results:
        if r["threads"] != threads:
            continue
        ms = r["milliseconds"]
        cells = [f"{ms[n]:.3f}" if n in ms else "" for n in ("limelight", "SDPA", *names)]
        mark = "" if r["ratio"] >= r["goal"] else " ✗"
        limit = share(r, results)
        out.add_row(r["case"], *cells, f"{r['ratio']:.2f}{mark}", f"{r['goal']:.2f}", limit)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--threads", type=int, nargs="*", help="1 and all unless given")
    parser.add_argument("--no-peers", action="store_true", help="only limelight and SDPA")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    everything = torch.get_num_threads()
    counts = args.threads or sorted({1, everything})
    cases = forward_cases() + training_cases()
    chosen = [c for c in cases if args.case in c.name]
    if not chosen:
        parser.error(f"no case contains {args.case!r}; there are: {', '.join(c.name for c in cases)}")
    jobs = [(c, t) for t in counts for c in chosen]
    seconds = 0.3 if args.quick else 2.0
    console = Console(width=160)
    progress = Console(stderr=True)
    results = [run(c, t, seconds, not args.no_peers) for c, t in track(jobs, "measuring", console=progress)]
    for threads in counts:
        console.print(table(results, threads))
        of = [r for r in results if r["threads"] == threads]
        peak, read = max(r["peak GF/s"] for r in of), max(r["read GB/s"] for r in of)
        console.print(f"multiply-add peak {peak:.0f} GF/s, read bandwidth {read:.1f} GB/s\n")
    machine = {"machine": platform.processor() or platform.machine(), "isa": backends.isa(), "torch": torch.__version__}
    args.out.write_text(json.dumps({**machine, "results": results}, indent=1))
    console.print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
