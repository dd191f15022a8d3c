"""Attention and statistics of the weights under sparse patterns: time of an allowed pair against a window, and memory.

    python benchmarks/sparse_statistics.py            # 8,192 tokens, one thread
    python benchmarks/sparse_statistics.py --only times

Every pattern allows about 5% of the pairs. Times are of the processor, the least of three, without what is kept of a
call before; memory is what a call needs beyond its inputs, in a process of its own.
"""

from __future__ import annotations

import argparse
import importlib
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import limelight as ll
from limelight.core.masks import Mask
from limelight.experiments.measuring import peak_bytes

WIDTH = 64
ASKED: dict[str, dict[str, object]] = {
    "entropy": {"entropy": True},
    "max": {"max": True},
    "top": {"top": 8},
    "received": {"received": True},
    "mass": {"mass": ll.First(4)},
    "similarity": {"similarity": True},
    "distance": {"distance": True},
    "profile": {"profile": 128},
    "cover": {"cover": 0.9},
    "pool": {"pool": (64, 64)},
}
DIFFERENTIATED = ("entropy", "max", "top", "received", "mass", "distance", "profile", "pool")
OTHERS = ("attention", "attention, dropout", "dropout, with gradient", "attention, n × n bias")
CASES = (*ASKED, *(f"gradient of {name}" for name in DIFFERENTIATED), *OTHERS)


def patterns(n: int) -> dict[str, Mask]:
    """Return patterns that allow about 5% of n × n pairs."""
    return {
        "window": ll.Window(n // 40),
        "strided": ll.Strided(20),
        "dilated": ll.Dilated(n // 40, 4),
        "causal, window and stride": ll.Causal() & (ll.Window(5 * n // 128) | ll.Strided(50)),
        "scattered global": ll.Window(n // 80) | ll.Global(range(3, n, 76)),
    }


def compute(q: Tensor, k: Tensor, v: Tensor, mask: Mask, case: str, bias: Tensor | None = None) -> object:
    """Compute one of the cases anew; ``bias`` is the tensor of the last."""
    if case in ASKED:
        return ll.weights(q, k, mask=mask).observe(**ASKED[case])
    name = case.removeprefix("gradient of ")
    if name in ASKED:
        leaves = [x.detach().requires_grad_() for x in (q, k)]
        result = getattr(ll.weights(*leaves, mask=mask).observe(**ASKED[name]), name)
        return torch.autograd.grad((result.values if name == "top" else result).sum(), leaves)
    if case == "dropout, with gradient":
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        return torch.autograd.grad(ll.attention(*leaves, mask=mask, dropout=0.1).sum(), leaves)
    options = {"bias": ll.DenseBias(bias)} if bias is not None else {}
    return ll.attention(q, k, v, mask=mask, dropout=0.1 if case == "attention, dropout" else 0.0, **options)


def seconds(f: Callable[[], object], rounds: int = 3) -> float:
    """Return the least time of a call, in seconds of the processor."""
    best = float("inf")
    for _ in range(rounds):
        begin = time.process_time()
        f()
        best = min(best, time.process_time() - begin)
    return best


def print_times(n: int, heads: int, cases: Sequence[str], bias_of: Callable[[str], Tensor | None]) -> None:
    """Print the time of an allowed pair, a line for each case."""
    q, k, v = torch.randn(3, 1, heads, n, WIDTH)
    masks = patterns(n)
    pairs = {name: heads * int(mask.dense(n).sum()) for name, mask in masks.items()}
    print("nanoseconds of the processor for an allowed pair, and times the window's")
    print("| | " + " | ".join(masks) + " |\n|---|" + "--:|" * len(masks))
    for case in cases:
        cells, window, bias = [], 0.0, bias_of(case)
        for name, mask in masks.items():
            each = 1e9 * seconds(partial(compute, q, k, v, mask, case, bias)) / pairs[name]
            window = window or each
            cells.append(f"{each:.2f} ({each / window:.2f})")
        print(f"| {case} | " + " | ".join(cells) + " |", flush=True)


def print_memory(n: int, heads: int, cases: Sequence[str], bias_of: Callable[[str], Tensor | None]) -> None:
    """Print the memory of a call beyond its inputs, a line for each case."""
    # The process that measures memory imports this file, which is not in a package.
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    importable = importlib.import_module(Path(__file__).stem).compute
    masks = patterns(n)
    print("MiB beyond the inputs")
    print("| | " + " | ".join(masks) + " |\n|---|" + "--:|" * len(masks))
    for case in cases:
        options = {"case": case, "bias": bias_of(case)}
        peaks = [peak_bytes(importable, (n,), heads, WIDTH, mask=mask, **options)[0] for mask in masks.values()]
        print(f"| {case} | " + " | ".join(f"{x / 2**20:.0f}" for x in peaks) + " |", flush=True)


def main() -> None:
    """Print a line for each case and a column for each pattern."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--only", choices=("times", "memory"))
    parser.add_argument("--case", choices=CASES, action="append", help="all of them unless given, once or more")
    options = parser.parse_args()
    torch.set_num_threads(1)
    n, heads = options.tokens, options.heads
    print(f"{n} tokens, {heads} heads of width {WIDTH}, one thread")

    def bias_of(case: str) -> Tensor | None:
        return torch.randn(n, n) if case == OTHERS[-1] else None

    for what, show in (("times", print_times), ("memory", print_memory)):
        if options.only in (None, what):
            show(n, heads, options.case or CASES, bias_of)


if __name__ == "__main__":
    main()
