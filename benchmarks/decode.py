"""Decoding over many shapes: the worst ratio to SDPA, and the worst share of the machine's limit.

    python benchmarks/decode.py              # 1 to 8 rows a key head, widths 64 to 256, 16 to 65,536 keys, four types
    python benchmarks/decode.py --quick      # fewer keys and shorter repetitions
    python benchmarks/decode.py --all        # a line for every shape
    python benchmarks/decode.py --cold       # caches of 1 MB and more, with other memory read before every call

A step reads its cache once: the limit is the larger of the time of reading this memory and that of its multiply-adds,
both measured in turns with each shape, for caches of 1 MB and more. Bytes are compared with SDPA on the float32
cache that they stand for. The last line is one call for sequences of different lengths against one call for each.

In repeated calls, K and V of a few megabytes stay in the processor's caches. In a model, weights are read between two
steps of a layer, and K and V come from memory: ``--cold`` measures that.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

import limelight as ll
from limelight import backends
from limelight.cli._bench.measuring import Call, best
from limelight.functional import attention_int8

ROWS, WIDTHS, KEYS = (1, 2, 4, 8), (64, 128, 256), (16, 128, 1024, 8192, 65536)
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "bytes": torch.int8}
KEY_HEADS = 4
LIMITED = 1 << 20  # bytes of a cache from which the machine's limit counts
OTHER = 160 << 20  # bytes that are read before a call to empty the processor's caches


@dataclass
class Shape:
    """One decoding step: ``rows`` query heads for each of KEY_HEADS key heads."""

    kind: str
    rows: int
    width: int
    keys: int

    @property
    def bytes(self) -> int:
        """Size of K and V."""
        return 2 * KEY_HEADS * self.keys * self.width * TYPES[self.kind].itemsize

    @property
    def flops(self) -> float:
        """Floating-point operations of the two products."""
        return 4.0 * KEY_HEADS * self.rows * self.keys * self.width

    def calls(self) -> dict[str, Call]:
        """Return both contestants, reading the cache once, and as many multiply-adds as the two products have."""
        dtype = torch.float32 if self.kind == "bytes" else TYPES[self.kind]
        q = torch.randn(1, KEY_HEADS * self.rows, 1, self.width).to(dtype)
        k, v = (torch.randn(1, KEY_HEADS, self.keys, self.width).to(dtype) for _ in range(2))
        calls: dict[str, Call] = {
            "SDPA": lambda: scaled_dot_product_attention(q, k, v, enable_gqa=self.rows > 1),
            "multiply-adds": lambda: backends.multiply_adds(1, self.flops),
        }
        if self.kind != "bytes":
            reading = lambda: backends.read_once(1, k, v)  # noqa: E731
            return calls | {"limelight": lambda: ll.attention(q, k, v), "reading": reading}
        kept_k, kept_v = ll.ByteCache()[0].extend(k, v)
        kept = [x.values.contiguous() for x in (kept_k, kept_v)]  # the cache has room for more keys between them
        reading = lambda: backends.read_once(1, *kept)  # noqa: E731
        return calls | {"limelight": lambda: attention_int8(q, kept_k, kept_v), "reading": reading}


@dataclass
class Result:
    """The ratio of a shape to SDPA and, for large caches, its share of the machine's limit."""

    shape: Shape
    ratio: float
    share: float | None

    def __str__(self) -> str:
        share = "" if self.share is None else f"{self.share:.0%}"
        s = self.shape
        return f"| {s.kind} | {s.rows} | {s.width} | {s.keys} | {self.ratio:.2f} | {share} |"


def shapes(quick: bool) -> Iterator[Shape]:
    """Yield every shape."""
    for kind in TYPES:
        for width in WIDTHS:
            for rows in ROWS:
                for keys in KEYS[::2] if quick else KEYS:
                    yield Shape(kind, rows, width, keys)


def best_when_cold(calls: dict[str, Call], turns: int) -> dict[str, float]:
    """Return the best time of each, taken in turns, right after other memory was read."""
    other = torch.zeros(OTHER, dtype=torch.int8)
    times = dict.fromkeys(calls, float("inf"))
    for _ in range(turns):
        for name, call in calls.items():
            backends.read_once(1, other)
            start = time.perf_counter()
            call()
            times[name] = min(times[name], time.perf_counter() - start)
    return times


def measure(shape: Shape, seconds: float, cold: bool) -> Result:
    """Measure both contestants and reading in turns, so that the cache lies in the same memory for all."""
    calls = shape.calls()
    times = best_when_cold(calls, turns=8) if cold else best(calls, seconds)
    share = None
    if shape.bytes >= LIMITED:
        share = max(times["multiply-adds"], times["reading"]) / times["limelight"]
    return Result(shape, times["SDPA"] / times["limelight"], share)


def ragged(seconds: float) -> float:
    """Return the time of one padded call for eight sequences over that of a call for each."""
    lengths = [337, 4099, 1021, 2503, 64, 3001, 769, 1531]
    q = torch.randn(len(lengths), 8, 1, 64)
    k, v = (torch.randn(len(lengths), 8, max(lengths), 64) for _ in range(2))
    mask = ll.Padding(torch.tensor(lengths))

    def each() -> None:
        for i, n in enumerate(lengths):
            ll.attention(q[i : i + 1], k[i : i + 1, :, :n], v[i : i + 1, :, :n])

    times = best({"one": lambda: ll.attention(q, k, v, mask=mask), "each": each}, seconds)
    return times["one"] / times["each"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer keys, shorter repetitions")
    parser.add_argument("--all", action="store_true", help="a line for every shape")
    parser.add_argument("--cold", action="store_true", help="read other memory before every call")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seconds = 0.02 if arguments.quick else 0.1
    head = "| type | rows | width | keys | SDPA / limelight | of the limit |\n|---|--:|--:|--:|--:|--:|"
    with torch.inference_mode():
        wanted = [x for x in shapes(arguments.quick) if x.bytes >= LIMITED or not arguments.cold]
        found = [measure(shape, seconds, arguments.cold) for shape in wanted]
        together = ragged(10 * seconds)
    print(f"{len(found)} shapes, one thread, {backends.isa()}\n\nworst ratio to SDPA of each type\n\n{head}")
    for kind in TYPES:
        print(min((x for x in found if x.shape.kind == kind), key=lambda x: x.ratio))
    print(f"\nsmallest share of the limit of each type, caches of 1 MB and more\n\n{head}")
    for kind in TYPES:
        print(min((x for x in found if x.shape.kind == kind and x.share), key=lambda x: x.share or 0.0))
    slower = sum(x.ratio < 1 for x in found)
    below = sum(x.share is not None and x.share < 0.85 for x in found)
    large = sum(x.share is not None for x in found)
    print(f"\n{slower} of {len(found)} slower than SDPA; {below} of {large} below 85% of the limit")
    print(f"eight ragged sequences in one call: {together:.2f} of the time of eight calls")
    if arguments.all:
        print("", head, *found, sep="\n")


if __name__ == "__main__":
    main()
