"""Measurements: ratios of times that a busy machine does not disturb, memory, and counted operations.

Times are the processor's, on one thread, of two functions in turns, so that a load from outside slows both alike; their
ratio is taken round by round until it is steady. Where it does not get steady there is no verdict.
"""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from limelight.experiments.findings import BUSY, CORRECTED, DIRECTION, REPRODUCED

SHORTEST = 0.004  # seconds of one measurement, at least; faster calls are repeated within it


@dataclass(frozen=True)
class Ratio:
    """``time of f / time of g``: the median over the rounds, and the quartiles around it."""

    median: float
    low: float
    high: float
    rounds: int
    steady: bool

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"

    @property
    def power(self) -> float:
        """The power of n by which time grows, where f has twice the n of g."""
        return math.log2(self.median)


def time_ratio(
    f: Callable[[], Any], g: Callable[[], Any], *, least: int = 7, most: int = 40, spread: float = 0.15
) -> Ratio:
    """Measure f and g in turns until the quartiles of their ratio are within ``spread`` of its median."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        calls = [(h, _repetitions(h)) for h in (f, g)]
        ratios: list[float] = []
        while len(ratios) < most:
            a, b = (_processor_seconds(h, times) / times for h, times in calls)
            ratios.append(a / b)
            if len(ratios) >= least and _summary(ratios, spread).steady:
                break
        return _summary(ratios, spread)
    finally:
        torch.set_num_threads(threads)


def _repetitions(f: Callable[[], Any]) -> int:
    f()  # warm-up, which is not measured
    return max(1, math.ceil(SHORTEST / max(_processor_seconds(f, 1), 1e-7)))


def _processor_seconds(f: Callable[[], Any], times: int) -> float:
    begin = time.process_time()
    for _ in range(times):
        f()
    return max(time.process_time() - begin, 1e-9)


def _summary(ratios: Sequence[float], spread: float) -> Ratio:
    x = torch.tensor(ratios, dtype=torch.float64)
    low, median, high = x.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)).tolist()
    return Ratio(median, low, high, len(ratios), steady=(high - low) <= spread * median)


def judge_ratio(ratio: Ratio, low: float, high: float, *, same_way: bool) -> str:
    """Judge a ratio: reproduced if its quartiles meet the range, in direction if ``same_way``; none if unsteady."""
    if not ratio.steady:
        return BUSY
    if ratio.low <= high and ratio.high >= low:
        return REPRODUCED
    return DIRECTION if same_way else CORRECTED


def operations(f: Callable[[], Any]) -> int:
    """Count the floating-point operations of all matrix products of f, forward and backward."""
    with FlopCounterMode(display=False) as counter:
        f()
    return int(counter.get_total_flops())


_BEGIN = """
import pickle, resource, sys
from contextlib import suppress
from pathlib import Path
import torch
f, options, lengths, heads, width, limit = pickle.load(sys.stdin.buffer)
def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])
f(*torch.randn(3, 1, heads, lengths[0], width), **options)
"""
_PEAKS = """
held = []
for round, n in enumerate((lengths[0], *lengths)):  # what only the first round loads is not measured
    q, k, v = torch.randn(3, 1, heads, n, width)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory("VmRSS")
    held += [q, k, v, f(q, k, v, **options)]
    if round > 0:
        print(max(memory("VmHWM") - before, 1))
"""
_LIMITED = """
resource.setrlimit(resource.RLIMIT_DATA, (memory("VmData") + limit,) * 2)
for n in lengths:
    try:
        f(*torch.randn(3, 1, heads, n, width), **options)
    except (RuntimeError, MemoryError):
        break
    print(n)
"""


def _in_new_process(program: str, task: tuple[Any, ...]) -> list[int]:
    if not sys.platform.startswith("linux"):
        raise OSError("memory is read from /proc, which only Linux has")
    command = [sys.executable, "-c", _BEGIN + program]
    # Freed memory goes back to the system at once; otherwise later calls would reuse it, and the peak would not show.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    done = subprocess.run(command, input=pickle.dumps(task), capture_output=True, check=True, env=environment)
    return [int(line) for line in done.stdout.split()]


def peak_bytes(f: Callable[..., Any], lengths: Sequence[int], heads: int, width: int, **options: Any) -> list[int]:
    """Measure the memory that f(q, k, v, **options) needs beyond its inputs, for each of the rising lengths.

    All lengths are measured in one new process, which keeps its results.
    """
    return _in_new_process(_PEAKS, (f, options, tuple(lengths), heads, width, 0))


def longest(f: Callable[..., Any], lengths: Sequence[int], heads: int, width: int, limit: int) -> int:
    """Find the longest of the rising lengths that f(q, k, v) reaches within ``limit`` more bytes of memory."""
    return max(_in_new_process(_LIMITED, (f, {}, tuple(lengths), heads, width, limit)), default=0)
