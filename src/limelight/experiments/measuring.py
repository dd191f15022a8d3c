"""Time, and memory, which only a process of its own can tell."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any


def seconds(f: Callable[[], Any], times: int = 5) -> float:
    """The best of several."""
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        f()
        found.append(time.perf_counter() - begin)
    return min(found)


_PROGRAM = """
import pickle, sys
from pathlib import Path
import torch
f, options, lengths, heads, width = pickle.load(sys.stdin.buffer)
def kibibytes(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])
f(*torch.randn(3, 1, 1, 8, 8), **options)
held = []
for n in lengths:
    q, k, v = torch.randn(3, 1, heads, n, width)
    before = kibibytes("VmRSS")
    held += [q, k, v, f(q, k, v, **options)]
    print(1024 * max(kibibytes("VmHWM") - before, 1))
"""


def peak_bytes(f: Callable[..., Any], lengths: Sequence[int], heads: int, width: int, **options: Any) -> list[int]:
    """What f(q, k, v, **options) needs beyond them for each of the rising lengths: its result and what is passing.

    All are measured in one new process, which keeps what it made, so that every peak is above the one before.
    """
    if not sys.platform.startswith("linux"):
        raise OSError("the peak of memory is read from /proc, which only Linux has")
    task = pickle.dumps((f, options, tuple(lengths), heads, width))
    done = subprocess.run([sys.executable, "-c", _PROGRAM], input=task, capture_output=True, check=True)
    return [int(line) for line in done.stdout.split()]
