"""The machine that is measured: its CPU, its limits, and how much of it other processes use."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

from limelight import backends

BANDWIDTH_SIZES = (1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28)  # bytes


def cpu_name() -> str:
    """Return the CPU's name as the system gives it.

    >>> bool(cpu_name())
    True
    """
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        if found:
            return _with_family(found.group(1).strip())
    if platform.system() == "Darwin":
        asked = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True)
        if asked.stdout.strip():
            return asked.stdout.strip()
    return platform.processor() or platform.machine()


def _with_family(name: str) -> str:
    """Return a name that tells generations apart, which virtual machines leave out of a server's name."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    numbers = [re.search(rf"^{what}\s*:\s*(\d+)$", info, re.MULTILINE) for what in ("cpu family", "model")]
    general = re.sub(r"\s*@.*", "", name)  # without the frequency
    if general not in ("AMD EPYC", "AMD EPYC Processor", "Intel(R) Xeon(R) Processor") or None in numbers:
        return name
    family, model = (int(x.group(1)) for x in numbers if x is not None)
    return f"{general}, family {family} model {model}"


def file_name(cpu: str) -> str:
    """Return the name of the file with a CPU's results.

    >>> file_name("Intel(R) Xeon(R) Platinum 8580 CPU @ 2.0GHz")
    'intel-xeon-platinum-8580.json'
    """
    words = re.sub(r"\((r|tm)\)|\bcpu\b|@.*|\bprocessor\b|\bwith\b.*", " ", cpu.lower())
    return re.sub(r"[^a-z0-9]+", "-", words).strip("-") + ".json"


def describe(threads: list[int]) -> dict[str, Any]:
    """Return the machine's name, instruction set and limits: bandwidth by size, and the multiply-add peak."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "isa": backends.isa(),
        "torch": torch.__version__,
        "peak GF/s": {str(count): backends.peak_flops(count) / 1e9 for count in threads},
        "read GB/s": {
            str(count): {str(size): backends.read_bandwidth(count, size) / 1e9 for size in BANDWIDTH_SIZES}
            for count in threads
        },
    }


class Occupancy:
    """The share of the machine that other processes and virtual machines use from one moment to another."""

    def __init__(self) -> None:
        self._before = _cpu_seconds()

    def others(self) -> tuple[float, float]:
        """Return how many cores other processes, and other virtual machines (steal), have used on average since."""
        before, now = self._before, _cpu_seconds()
        elapsed = max(now["elapsed"] - before["elapsed"], 1e-3)
        spent = {name: now[name] - before[name] for name in now}
        return max(spent["busy"] - spent["own"], 0.0) / elapsed, max(spent["steal"], 0.0) / elapsed


def _cpu_seconds() -> dict[str, float]:
    """Return seconds of CPU time so far: of this process, of all, and taken by other virtual machines."""
    mine = os.times()
    own = mine.user + mine.system + mine.children_user + mine.children_system
    stat = Path("/proc/stat")
    if not stat.exists():
        return {"elapsed": time.monotonic(), "own": own, "busy": own, "steal": 0.0}
    ticks = [int(x) for x in stat.read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _, _, interrupt, soft, steal = (x / os.sysconf("SC_CLK_TCK") for x in ticks)
    return {"elapsed": time.monotonic(), "own": own, "busy": user + nice + system + interrupt + soft, "steal": steal}


def busy(seconds: float = 0.5) -> str | None:
    """Return a warning if other processes use more than a tenth of a core, None on a quiet machine."""
    now = Occupancy()
    time.sleep(seconds)
    others, steal = now.others()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if max(others, steal) > 0.1 or (not Path("/proc/stat").exists() and load > 1):
        return (
            f"the machine is busy: others use {others:.1f} of {os.cpu_count()} cores, {steal:.1f} are taken by other "
            f"virtual machines, and the load average is {load:.1f}; results are hints until it is quiet"
        )
    return None
