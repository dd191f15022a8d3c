"""Time, and memory, which only a process of its own can tell or limit."""

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


_BEGIN = """
import pickle, resource, sys
from pathlib import Path
import torch
f, options, lengths, heads, width, limit = pickle.load(sys.stdin.buffer)
def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])
f(*torch.randn(3, 1, 1, 64, 16), **options)
"""
_PEAKS = """
held = []
for n in lengths:
    q, k, v = torch.randn(3, 1, heads, n, width)
    before = memory("VmRSS")
    held += [q, k, v, f(q, k, v, **options)]
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


def _in_a_process(program: str, task: tuple[Any, ...]) -> list[int]:
    if not sys.platform.startswith("linux"):
        raise OSError("memory is read from /proc, which only Linux has")
    command = [sys.executable, "-c", _BEGIN + program]
    done = subprocess.run(command, input=pickle.dumps(task), capture_output=True, check=True)
    return [int(line) for line in done.stdout.split()]


def peak_bytes(f: Callable[..., Any], lengths: Sequence[int], heads: int, width: int, **options: Any) -> list[int]:
    """What f(q, k, v, **options) needs beyond them for each of the rising lengths: its result and what is passing.

    All are measured in one new process, which keeps what it made, so that every peak is above the one before.
    """
    return _in_a_process(_PEAKS, (f, options, tuple(lengths), heads, width, 0))


def longest(f: Callable[..., Any], lengths: Sequence[int], heads: int, width: int, limit: int) -> int:
    """The longest of the rising lengths that f(q, k, v) reaches within ``limit`` more bytes of memory."""
    return max(_in_a_process(_LIMITED, (f, {}, tuple(lengths), heads, width, limit)), default=0)
