"""Sparse patterns at 32,768 tokens: time and memory against full causal attention, and the mass that they keep.

    python benchmarks/long_texts.py            # 32,768 tokens
    python benchmarks/long_texts.py --quick    # 4,096 tokens

Times are of one thread, the least of three, in one run; memory is what a call needs beyond its inputs. The mass is that
of the small model of ``limelight experiment long-patterns`` on Python's own help texts, exactly by ``A.mass(pattern)``.
"""

from __future__ import annotations

import argparse
import time

import torch

from limelight import Causal, attention
from limelight.experiments import long_patterns
from limelight.experiments.measuring import peak_bytes

HEADS, WIDTH = 2, 64


def seconds(mask: object, n: int, rounds: int = 3) -> float:
    """Return the least time of a call, in seconds of the processor."""
    q, k, v = torch.randn(3, 1, HEADS, n, WIDTH)
    best = float("inf")
    for _ in range(rounds):
        begin = time.process_time()
        attention(q, k, v, mask=mask)
        best = min(best, time.process_time() - begin)
    return best


def main() -> None:
    """Print a line for each pattern."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    n = 4096 if options.quick else 32768
    shares = {row["pattern"]: row["kept"] for row in long_patterns.run(quick=options.quick).data["kept"]}
    masks = {"full": Causal()} | {name: Causal() & mask for name, mask in long_patterns.patterns(n).items()}
    full = seconds(masks["full"], n)
    print(f"{n} tokens, {HEADS} heads of width {WIDTH}, causal, one thread")
    print(f"{'pattern':22}{'ms':>10}{'full / it':>12}{'MiB':>8}{'mass kept':>12}")
    for name, mask in masks.items():
        took = full if name == "full" else seconds(mask, n)
        memory = peak_bytes(attention, (n,), HEADS, WIDTH, mask=mask)[0]
        kept = shares.get(name, 1.0)
        print(f"{name:22}{1000 * took:10.1f}{full / took:12.1f}{memory / 2**20:8.1f}{kept:12.3f}")
    print(f"{'heavy hitters':22}{'':30}{shares['heavy hitters']:12.3f}   (chosen after the fact, by A.received())")


if __name__ == "__main__":
    main()
