"""Attention on several threads: how problems are cut into tasks, and what it costs beside PyTorch's own threads.

    python benchmarks/threads.py --cut         # the tasks of typical problems, as a table for docs/kernels.md
    python benchmarks/threads.py --threads 2   # attention alone and between two matrix products, as in a model

PyTorch's threads go on spinning for a while after a matrix product, so attention that follows one shares the cores with
them. Attention is timed by itself in both places, best of all repetitions. Products also drive keys and values out of
the processor's caches, which no kernel can help. So there are products in both places: where attention is alone, the
calling thread computes them, and a small call of attention has brought back the threads that attention uses. The last
column shows what the caches do: attention again and again, with nothing between.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor

import limelight as ll
from limelight import backends
from limelight.backends import native
from limelight.core.problem import AttentionSpec, Problem

Sizes = tuple[int, int, int, int, int, int]  # B, Hq, Hkv, N, M, D
THREADS = (2, 8, 32, 128)
CUTS: dict[str, Sizes] = {
    "16 tokens": (1, 8, 8, 16, 16, 64),
    "512 tokens": (1, 8, 8, 512, 512, 64),
    "4096 tokens": (1, 8, 8, 4096, 4096, 64),
    "batch of 16 × 128 tokens": (16, 12, 12, 128, 128, 64),
    "decode 32/8, 1024 keys": (1, 32, 8, 1, 1024, 128),
    "decode 32/8, 16384 keys": (1, 32, 8, 1, 16384, 128),
    "decode 8/1, 65536 keys": (1, 8, 1, 1, 65536, 256),
    "decode 9/3, 4096 keys": (1, 9, 3, 1, 4096, 64),
    "decode 32/8, 8 sequences, 4096 keys": (8, 32, 8, 1, 4096, 128),
}
BETWEEN: dict[str, Sizes] = {
    "256 tokens": (1, 8, 8, 256, 256, 64),
    "1024 tokens": (1, 8, 8, 1024, 1024, 64),
    "decode 32/8, 1024 keys": (1, 32, 8, 1, 1024, 128),
    "decode 32/8, 4096 keys": (1, 32, 8, 1, 4096, 128),
    "decode 32/8, 16384 keys": (1, 32, 8, 1, 16384, 128),
}


def inputs(sizes: Sizes) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v."""
    B, Hq, Hkv, N, M, D = sizes
    return torch.randn(B, Hq, N, D), torch.randn(B, Hkv, M, D), torch.randn(B, Hkv, M, D)


def cut_table() -> list[str]:
    """Return the tasks of typical problems, and how many each of so many threads gets."""
    lines = [
        f"| {backends.isa()} | tasks | rows | keys | {' | '.join(f'{n} threads' for n in THREADS)} |",
        "|---|--:|--:|--:|" + "--:|" * len(THREADS),
    ]
    for name, sizes in CUTS.items():
        q, k, v = inputs(sizes)
        cut = native.cut(Problem(q, k, AttentionSpec()), v)
        each = (f"{cut.tasks // n} to {-(-cut.tasks // n)}" if cut.tasks % n else f"{cut.tasks // n}" for n in THREADS)
        lines.append(f"| {name} | {cut.tasks} | {cut.rows} | {cut.keys} | {' | '.join(each)} |")
    return lines


def seconds(sizes: Sizes, repetitions: int, products: int) -> float:
    """Return the best time of attention after two matrix products on so many threads, or after none."""
    threads = torch.get_num_threads()
    q, k, v = inputs(sizes)
    small = inputs((1, 8, 8, 64, 64, 64))
    x, w = torch.randn(max(64, sizes[3]), 1024), torch.randn(1024, 1024)
    out = torch.empty_like(x)
    best = float("inf")
    for _ in range(repetitions):
        if products:
            torch.set_num_threads(products)
            torch.mm(x, w, out=out)
            torch.mm(x, w, out=out)
            torch.set_num_threads(threads)
        if products < threads:
            ll.attention(*small)
        start = time.perf_counter()
        ll.attention(q, k, v)
        best = min(best, time.perf_counter() - start)
    return best


def between_table(threads: int, repetitions: int) -> list[str]:
    """Return attention's time alone and between matrix products."""
    lines = [
        "| attention, milliseconds | alone | between matrix products | ratio | again and again |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, sizes in BETWEEN.items():
        alone = between = again = float("inf")
        for _ in range(5):  # in turns
            alone = min(alone, seconds(sizes, repetitions, 1))
            between = min(between, seconds(sizes, repetitions, threads))
            again = min(again, seconds(sizes, repetitions, 0))
        lines.append(
            f"| {name} | {alone * 1e3:.3f} | {between * 1e3:.3f} | {between / alone:.2f} | {again * 1e3:.3f} |"
        )
    return lines


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--cut", action="store_true", help="only the tasks of typical problems")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repetitions", type=int, default=40)
    args = parser.parse_args()
    if args.cut:
        print("\n".join(cut_table()))
        return
    torch.set_num_threads(args.threads)
    with torch.inference_mode():
        print("\n".join(between_table(args.threads, args.repetitions)))


if __name__ == "__main__":
    main()
