"""Two processes against one: attention, its gradient and its statistics on a long text, and what many would take.

    python benchmarks/parallel.py                 # n = 16,384, 8 heads of 64: 1, 2 and 4 processes of one thread
    python benchmarks/parallel.py --quick         # n = 4,096
    python benchmarks/parallel.py --predict       # 8, 64 and 512 machines, from what this one measures

Only ratios between the runs of one call count, on a quiet machine; 4 processes on 2 cores show no more than that they
work.
"""

from __future__ import annotations

import argparse
import json
import resource
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import limelight as ll
from limelight import parallel
from limelight.parallel.layouts import Contiguous, Zigzag

HEADS, WIDTH = 8, 64
SIX = {"entropy": True, "received": True, "distance": True, "top": 5, "profile": 64, "pool": (64, 64)}


def cases(n: int, many: bool) -> dict[str, Callable[[], Any]]:
    """The calls to time, on one process's part of the text."""

    def operands(layout: Any, grad: bool = False) -> list[torch.Tensor]:
        sizes = layout.cut(n, dist.get_world_size() if many else 1)[dist.get_rank() if many else 0]
        own = sum(run.length for run in sizes)
        return [torch.randn(1, HEADS, own, WIDTH).requires_grad_(grad) for _ in range(3)]

    def attend(layout: Any, mask: Any = None, grad: bool = False) -> Callable[[], Any]:
        q, k, v = operands(layout, grad)

        def call() -> None:
            y = parallel.attention(q, k, v, mask=mask, layout=layout) if many else ll.attention(q, k, v, mask=mask)
            if grad:
                y.backward(torch.ones_like(y))

        return call

    def observe() -> Callable[[], Any]:
        q, k, _ = operands(Contiguous())
        return lambda: (parallel.weights(q, k) if many else ll.weights(q, k)).observe(**SIX)

    return {
        "forward": attend(Contiguous()),
        "causal": attend(Zigzag(), ll.Causal()),
        "forward and backward": attend(Contiguous(), grad=True),
        "observe six": observe(),
    }


def _process(rank: int, size: int, port: int, n: int, name: str, repeats: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if size > 1:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    small = cases(256, size > 1)
    small[name]()  # loads what is loaded at first use
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    call = cases(n, size > 1)[name]
    call()
    times = []
    for _ in range(repeats):
        if size > 1:
            dist.barrier()
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    (Path(folder) / f"{rank}.json").write_text(json.dumps({"seconds": min(times), "kilobytes": memory}))
    if size > 1:
        dist.destroy_process_group()


def measure(size: int, n: int, name: str, repeats: int) -> dict[str, float]:
    """Time one case on so many processes: the slowest one's best time, and the largest growth of memory."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_process, (size, port, n, name, repeats, folder), nprocs=size)
        found = [json.loads((Path(folder) / f"{r}.json").read_text()) for r in range(size)]
    return {key: max(x[key] for x in found) for key in ("seconds", "kilobytes")}


def _exchange_time(rank: int, port: int, megabytes: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    x = torch.zeros(megabytes << 20, dtype=torch.uint8)
    times = []
    for _ in range(5):
        dist.barrier()
        begin = time.perf_counter()
        dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
        dist.barrier()
        times.append(time.perf_counter() - begin)
    if rank == 0:
        (Path(folder) / "bandwidth").write_text(str((megabytes << 20) / min(times)))
    dist.destroy_process_group()


def bandwidth() -> float:
    """Bytes a second from one process to another."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_exchange_time, (port, 64, folder), nprocs=2)
        return float((Path(folder) / "bandwidth").read_text())


def predict(networks: dict[str, float]) -> None:
    """Print what a forward pass of one layer would take on many machines, from the measured speed of this one.

    A machine computes n²/P of the products and receives (P − 1)/P of all keys and values; blocks travel while the last
    ones are computed with, so the time is the larger of the two.
    """
    n = 4096
    q, k, v = (torch.randn(1, HEADS, n, WIDTH) for _ in range(3))
    ll.attention(q, k, v)
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        ll.attention(q, k, v)
        times.append(time.perf_counter() - begin)
    flops = 4 * n * n * HEADS * WIDTH / min(times)
    print(f"this machine: {flops / 1e9:.0f} Gflop/s with {torch.get_num_threads()} threads")
    print("tokens     machines  compute (s)  " + "  ".join(f"send over {name} (s)" for name in networks) + "  bound")
    for tokens in (2**20, 2**24):
        for machines in (8, 64, 512):
            compute = 4 * tokens**2 * HEADS * WIDTH / machines / flops / 2  # causal, balanced by Zigzag
            sent = 2 * tokens * HEADS * WIDTH * 4 * (machines - 1) / machines
            sends = [sent / speed for speed in networks.values()]
            bound = "computing" if compute > max(sends) else "sending over the slowest"
            columns = "  ".join(f"{x:20,.1f}" for x in sends)
            print(f"{tokens:>10,} {machines:>8}  {compute:11,.1f}  {columns}  {bound}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--case", help="only this one")
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2, 4])
    options = parser.parse_args()
    if options.predict:
        local = bandwidth()
        print(f"gloo on this machine: {local / 1e9:.2f} GB/s from process to process")
        predict({"this machine's gloo": local, "10 Gbit/s": 1.25e9, "1 Gbit/s": 1.25e8})
        return
    n, repeats = (4096, 3) if options.quick else (16384, 1)
    names = ["forward", "causal", "forward and backward", "observe six"]
    print(f"n = {n:,}, {HEADS} heads of {WIDTH}, float32, one thread a process")
    for name in names if options.case is None else [options.case]:
        found = {size: measure(size, n, name, repeats) for size in options.processes}
        one = found.get(1)
        for size, x in found.items():
            ratio = "" if one is None else f"{one['seconds'] / x['seconds']:5.2f} times as fast as one"
            memory = "" if one is None else f"{x['kilobytes'] / max(one['kilobytes'], 1):5.2f} of its memory"
            print(
                f"{name:22} {size} processes {x['seconds']:8.3f} s  {x['kilobytes'] / 1024:7.1f} MB  {ratio}  {memory}"
            )


if __name__ == "__main__":
    main()
