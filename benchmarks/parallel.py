"""Two processes against one: attention, its gradient and its statistics on a long text, and what many would take.

    python benchmarks/parallel.py                 # n = 16,384, 8 heads of 64: 1, 2 and 4 processes of one thread
    python benchmarks/parallel.py --quick         # n = 4,096
    python benchmarks/parallel.py --case overlap  # a slow link: computing, sending, and both at once
    python benchmarks/parallel.py --case survey   # documents a second
    python benchmarks/parallel.py --predict       # 8, 64 and 512 machines, from what this one measures

The numbers of processes take turns, so that a noisy moment does not fall on one of them alone, and the best of several
turns counts. On a machine that others use as well, the seconds of CPU time say more than those of the clock. 4
processes on 2 cores show no more than that they work.
"""

from __future__ import annotations

import argparse
import json
import resource
import socket
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import limelight as ll
from limelight import parallel
from limelight.parallel.group import Exchange, Processes
from limelight.parallel.layouts import Contiguous, Zigzag

HEADS, WIDTH = 8, 64
SIX = {"entropy": True, "received": True, "distance": True, "top": 5, "profile": 64, "pool": (64, 64)}
CASES = ["forward", "causal", "forward and backward", "observe six"]


def cases(n: int, many: bool) -> dict[str, Callable[[], Callable[[], Any]]]:
    """The calls to time, on one process's part of the text; each is made when it is asked for."""

    def operands(layout: Any, grad: bool = False) -> list[torch.Tensor]:
        sizes = layout.cut(n, dist.get_world_size() if many else 1)[dist.get_rank() if many else 0]
        own = sum(run.length for run in sizes)
        return [torch.randn(1, HEADS, own, WIDTH).requires_grad_(grad) for _ in range(3)]

    def attend(layout: Any, mask: Any = None, grad: bool = False) -> Callable[[], Any]:
        q, k, v = operands(layout, grad)

        def call() -> None:
            y = parallel.attention(q, k, v, mask=mask, layout=layout) if many else ll.attention(q, k, v, mask=mask)
            if grad:
                torch.autograd.grad(y, (q, k, v), torch.ones_like(y))

        return call

    def observe() -> Callable[[], Any]:
        q, k, _ = operands(Contiguous())
        return lambda: (parallel.weights(q, k) if many else ll.weights(q, k)).observe(**SIX)

    return {
        "forward": lambda: attend(Contiguous()),
        "causal": lambda: attend(Zigzag(), ll.Causal()),
        "forward and backward": lambda: attend(Contiguous(), grad=True),
        "observe six": observe,
    }


def _process(rank: int, size: int, port: int, n: int, name: str, pipes: list[Connection]) -> None:
    """Compute a case as often as the pipe asks for it, and answer with seconds, CPU seconds and memory."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if size > 1:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    cases(256, size > 1)[name]()()  # loads what is loaded at first use
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    call = cases(n, size > 1)[name]()
    pipe = pipes[rank]
    while pipe.recv():
        if size > 1:
            dist.barrier()
        begin, cpu = time.perf_counter(), time.process_time()
        call()
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        pipe.send({"seconds": seconds, "cpu": cpu, "kilobytes": memory})
    if size > 1:
        dist.destroy_process_group()


class Team:
    """So many processes that compute a case when they are asked to."""

    def __init__(self, size: int, n: int, name: str) -> None:
        pairs = [mp.get_context("spawn").Pipe() for _ in range(size)]
        self._pipes = [mine for mine, _ in pairs]
        arguments = (size, free_port(), n, name, [theirs for _, theirs in pairs])
        self._processes = mp.start_processes(_process, arguments, nprocs=size, join=False)
        self.best = {"seconds": float("inf"), "cpu": float("inf"), "kilobytes": 0.0}

    def turn(self) -> None:
        """Compute it once; the slowest process counts."""
        for pipe in self._pipes:
            pipe.send(True)
        found = [pipe.recv() for pipe in self._pipes]
        for key in ("seconds", "cpu"):
            self.best[key] = min(self.best[key], max(x[key] for x in found))
        self.best["kilobytes"] = max(x["kilobytes"] for x in found)

    def stop(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.send(False)
        while not self._processes.join():
            pass


def free_port() -> int:
    """A port that no other process has."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def compare(name: str, n: int, sizes: list[int], turns: int) -> None:
    """Print a line for each number of processes."""
    teams = {size: Team(size, n, name) for size in sizes}
    for _ in range(turns):
        for team in teams.values():
            team.turn()
    for team in teams.values():
        team.stop()
    first = teams[sizes[0]].best
    print(f"{name:22} processes  seconds   CPU seconds of one    memory of one")
    for size, team in teams.items():
        x = team.best
        ratios = [first[key] / x[key] for key in ("seconds", "cpu")] + [x["kilobytes"] / max(first["kilobytes"], 1)]
        print(
            f"{'':22} {size:9}  {x['seconds']:7.3f} ({ratios[0]:4.2f} times as fast)  {x['cpu']:7.3f} "
            f"({ratios[1]:4.2f})  {x['kilobytes'] / 1024:7.1f} MB ({ratios[2]:4.2f})"
        )


class SlowLink(Processes):
    """Processes whose messages take a time of their own, one after the other, in which nothing is computed."""

    def __init__(self, delay: float) -> None:
        super().__init__()
        self._delay, self._free, self.messages = delay, 0.0, 0

    def exchange(self, send: Any, to: int, receive: Any, source: int) -> Exchange:
        found = super().exchange(send, to, receive, source)
        if receive is None:
            return found
        self.messages += 1
        self._free = ready = max(self._free, time.perf_counter()) + self._delay
        waited = found.receive

        def wait() -> Any:
            time.sleep(max(0.0, ready - time.perf_counter()))
            return waited()

        found.receive = wait  # type: ignore[method-assign]
        return found


def _overlap(rank: int, port: int, n: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    q, k, v = (torch.randn(1, HEADS, n // 2, WIDTH) for _ in range(3))

    def seconds(link: SlowLink) -> float:
        times = []
        for _ in range(3):
            link.messages = 0
            dist.barrier()
            begin = time.perf_counter()
            parallel.attention(q, k, v, group=link)
            times.append(time.perf_counter() - begin)
        return min(times)

    free = SlowLink(0.0)
    compute = seconds(free)
    if rank == 0:
        print(f"overlap, n = {n:,}: computing takes {compute:.3f} s, {free.messages} blocks come")
    for share in (0.5, 1.0, 2.0):
        shared = torch.tensor([compute])
        dist.broadcast(shared, 0)
        delay = share * float(shared) / free.messages
        both = seconds(SlowLink(delay))
        if rank == 0:
            sending = delay * free.messages
            print(
                f"  sending takes {sending:.3f} s: both {both:.3f} s, {both / max(compute, sending):.2f} of the larger"
            )
    dist.destroy_process_group()


def survey(documents: int) -> None:
    """Print documents a second of a survey with the shipped translator, over 1 and 2 processes."""
    texts = [" ".join(f"word {(7 * i + j) % 97} is here." for j in range(24)) for i in range(documents)]
    for size in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "texts.txt").write_text("\n".join(texts))
            mp.start_processes(_survey, (size, free_port(), folder), nprocs=size)
            found = [json.loads((Path(folder) / f"{r}.json").read_text()) for r in range(size)]
        slowest = {key: max(x[key] for x in found) for key in ("seconds", "cpu")}
        if size == 1:
            one = slowest
        print(
            f"survey of {documents} documents, {size} processes: {slowest['seconds']:.2f} s "
            f"({one['seconds'] / slowest['seconds']:.2f} times as fast), CPU {slowest['cpu']:.2f} s "
            f"({one['cpu'] / slowest['cpu']:.2f})"
        )


def _survey(rank: int, size: int, port: int, folder: str) -> None:
    from limelight.parallel.survey import Corpus
    from limelight.parallel.survey import survey as measure
    from limelight.translate import shipped

    torch.set_num_threads(1)
    if size > 1:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
        dist.barrier()
    begin, cpu = time.perf_counter(), time.process_time()
    measure(shipped(), Corpus([Path(folder) / "texts.txt"]), Path(folder) / "out")
    found = {"seconds": time.perf_counter() - begin, "cpu": time.process_time() - cpu}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))
    if size > 1:
        dist.destroy_process_group()


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
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_exchange_time, (free_port(), 64, folder), nprocs=2)
        return float((Path(folder) / "bandwidth").read_text())


def predict(networks: dict[str, float], cores: int = 64) -> None:
    """Print what a causal layer would take on many machines of so many cores, from the measured speed of one core.

    A machine computes 1/P of the products under Zigzag and receives (P − 1)/P of all keys and values; blocks travel
    while others are computed with, so the time is the larger of the two.
    """
    n = 4096
    torch.set_num_threads(1)
    q, k, v = (torch.randn(1, HEADS, n, WIDTH) for _ in range(3))
    ll.attention(q, k, v)
    times = []
    for _ in range(3):
        begin = time.process_time()
        ll.attention(q, k, v)
        times.append(time.process_time() - begin)
    flops = 4 * n * n * HEADS * WIDTH / min(times)
    print(f"a core: {flops / 1e9:.0f} Gflop/s of CPU time; a machine is taken to have {cores} cores")
    print("| tokens | machines | computing (s) |" + "".join(f" sending over {name} (s) |" for name in networks))
    print("|--:|--:|--:|" + "--:|" * len(networks))
    for tokens in (2**20, 2**24):
        for machines in (8, 64, 512):
            compute = 4 * tokens**2 * HEADS * WIDTH / 2 / machines / (flops * cores)
            sent = 2 * tokens * HEADS * WIDTH * 4 * (machines - 1) / machines
            columns = "".join(f" {sent / speed:,.1f} |" for speed in networks.values())
            print(f"| {tokens:,} | {machines} | {compute:,.1f} |{columns}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--case", choices=[*CASES, "overlap", "survey"], help="only this one")
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    n = 4096 if options.quick else 16384
    if options.predict:
        local = bandwidth()
        print(f"gloo on this machine: {local / 1e9:.2f} GB/s from process to process")
        predict({"this machine's gloo": local, "10 Gbit/s": 1.25e9, "1 Gbit/s": 1.25e8})
        return
    print(f"n = {n:,}, {HEADS} heads of {WIDTH}, float32, one thread a process; the best of {options.turns} turns")
    for name in [*CASES, "overlap", "survey"] if options.case is None else [options.case]:
        if name == "overlap":
            mp.start_processes(_overlap, (free_port(), n), nprocs=2)
        elif name == "survey":
            survey(64)
        else:
            compare(name, n, options.processes, options.turns)


if __name__ == "__main__":
    main()
