"""Runs experiments while both cores are busy, and holds their verdicts against each other.

``python -m tests.busy_verdicts 10 --quick cost streaming`` runs the named experiments ten times (all that measure a
time or memory unless named) beside as many busy processes as there are cores, and fails when a finding gets one verdict
in one run and another in the next. “Not measured: the machine was busy” agrees with every verdict. The verdicts are
printed at the end, to be compared with those of a quiet machine.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from limelight import experiments
from limelight.experiments.findings import BUSY, Result

MEASURED = ("patterns", "cost", "streaming", "chunks", "cache", "crossover", "head-cost", "long-patterns")
Seen = dict[tuple[str, int, str], set[str]]


def _spin() -> None:
    import torch

    torch.set_num_threads(1)
    x = torch.randn(512, 512)
    while True:  # arithmetic and memory traffic, as another program has
        (x @ x).add_(1.0)


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Keep this many processes busy within the block."""
    running = [multiprocessing.get_context("spawn").Process(target=_spin, daemon=True) for _ in range(processes)]
    for process in running:
        process.start()
    try:
        yield
    finally:
        for process in running:
            process.terminate()
            process.join()


def collect(result: Result, seen: Seen) -> list[str]:
    """Add the verdicts of a run, and return what disagrees with an earlier one."""
    wrong = []
    for place, f in enumerate(result.findings):  # the words of a finding may hold measured numbers
        key = (result.name, place, f"claim {f.claim}")
        if f.verdict != BUSY:
            seen[key].add(f.verdict)
        if len(seen[key]) > 1:
            wrong.append(f"{result.name}, claim {f.claim}, {f.what}: {' / '.join(sorted(seen[key]))} ({f.measured})")
    return wrong


def main(arguments: list[str] | None = None) -> int:
    """Run, report each round, and return 1 if a verdict changed."""
    parser = argparse.ArgumentParser(description="Verdicts of experiments on a busy machine.")
    parser.add_argument("rounds", type=int)
    parser.add_argument("names", nargs="*", default=list(MEASURED))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args(arguments)
    seen: Seen = defaultdict(set)
    changed: set[str] = set()
    with load(options.processes):
        for n in range(options.rounds):
            for name in options.names:
                result = experiments.run(name, quick=options.quick)
                wrong = collect(result, seen)
                changed |= set(wrong)
                busy = sum(f.verdict == BUSY for f in result.findings)
                print(f"round {n + 1}, {name}: {len(result.findings)} findings, {busy} not measured", flush=True)
                for line in wrong:
                    print(f"  changed: {line}", flush=True)
    for (name, _, claim), found in seen.items():
        print(f"{name}, {claim}: {' / '.join(sorted(found)) or BUSY}")
    print(f"{len(seen)} findings, {len(changed)} changes of verdict in {options.rounds} rounds")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
