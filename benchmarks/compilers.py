"""The kernels as two compilers make them, on the cases of ``limelight bench``, in turns on one thread.

    python -m benchmarks.compilers g++ clang++
    python -m benchmarks.compilers g++ clang++ --case decode --seconds 0.3

Each compiler builds the package in a temporary folder (about two minutes), and each turn is a process of its own. A
row has the best time of the first compiler in milliseconds, and those of the others divided by it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from tests.build import build

TURNS = 3


def measure(part: str, seconds: float) -> dict[str, float]:
    """Return the best seconds of each case whose name contains ``part``."""
    from limelight.cli._bench.cases import all_cases
    from limelight.cli._bench.measuring import best, contestants

    torch.set_num_threads(1)
    found = {}
    for case in all_cases():
        if part in case.name:
            with torch.inference_mode(not case.training):
                ours = contestants(case, 1, False)[0]["limelight"]
                found[case.name] = best({"limelight": ours}, seconds)["limelight"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("compilers", nargs="*", help="the first is what the others are compared with")
    parser.add_argument("--case", default="", help="part of the names of cases")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each case in a turn")
    parser.add_argument("--measure", action="store_true", help="measure the package on PYTHONPATH, and print JSON")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.case, options.seconds)))
        return
    if len(options.compilers) < 2:
        parser.error("give two compilers or more, such as g++ clang++")
    times: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        packages = {name: build(Path(folder) / name, compiler=name) for name in options.compilers}
        command = [sys.executable, "-m", "benchmarks.compilers", "--measure", "--case", options.case]
        command += ["--seconds", str(options.seconds)]
        for _ in range(TURNS):
            for name, package in packages.items():
                environment = {**os.environ, "PYTHONPATH": str(package)}
                done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
                for case, seconds in json.loads(done.stdout).items():
                    known = times.setdefault(case, {})
                    known[name] = min(seconds, known.get(name, seconds))
    first, *others = options.compilers
    print(f"| case | {first}, ms | {' | '.join(f'{name} / {first}' for name in others)} |")
    print("|---|--:|" + "--:|" * len(others))
    for case, of_case in times.items():
        ratios = (f"{of_case[name] / of_case[first]:.2f}" for name in others)
        print(f"| {case} | {of_case[first] * 1e3:.3f} | {' | '.join(ratios)} |")


if __name__ == "__main__":
    main()
