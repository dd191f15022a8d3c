"""Statistics of the weights under sparse patterns: time of an allowed pair against a window, and memory.

    python benchmarks/sparse_statistics.py            # 8,192 tokens, one thread

Every pattern allows about 5% of the pairs. Times are of the processor, the least of three, without what is kept of a
call before; memory is what a call needs beyond its inputs, in a process of its own.
"""

from __future__ import annotations

import argparse
import importlib
import os
import time
from collections.abc import Callable
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


def patterns(n: int) -> dict[str, Mask]:
    """Return patterns that allow about 5% of n × n pairs."""
    return {
        "window": ll.Window(n // 40),
        "strided": ll.Strided(20),
        "dilated": ll.Dilated(n // 40, 4),
        "causal, window and stride": ll.Causal() & (ll.Window(5 * n // 128) | ll.Strided(50)),
        "scattered global": ll.Window(n // 80) | ll.Global(range(3, n, 76)),
    }


def ask(q: Tensor, k: Tensor, v: Tensor, mask: Mask, asked: dict[str, object]) -> object:
    """Ask new weights for a statistic."""
    return ll.weights(q, k, mask=mask).observe(**asked)


def seconds(f: Callable[[], object], rounds: int = 3) -> float:
    """Return the least time of a call, in seconds of the processor."""
    best = float("inf")
    for _ in range(rounds):
        begin = time.process_time()
        f()
        best = min(best, time.process_time() - begin)
    return best


def main() -> None:
    """Print a line for each statistic and pattern."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    n, heads = options.tokens, options.heads
    q, k, v = torch.randn(3, 1, heads, n, WIDTH)
    # The process that measures memory imports this file, which is not in a package.
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    importable = importlib.import_module(Path(__file__).stem).ask
    masks = patterns(n)
    pairs = {name: heads * int(mask.dense(n).sum()) for name, mask in masks.items()}
    print(
        f"{n} tokens, {heads} heads of width {WIDTH}, one thread; nanoseconds for an allowed pair (times the window's)"
    )
    print(f"{'statistic':12}" + "".join(f"{name:>28}" for name in masks))
    for statistic, asked in ASKED.items():
        line = f"{statistic:12}"
        window = 0.0
        for name, mask in masks.items():
            each = 1e9 * seconds(partial(ask, q, k, v, mask, asked)) / pairs[name]
            window = window or each
            mib = peak_bytes(importable, (n,), heads, WIDTH, mask=mask, asked=asked)[0] / 2**20
            line += f"{f'{each:.2f} ({each / window:.2f}) {mib:4.0f} MiB':>28}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
