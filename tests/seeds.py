"""Runs the test suite under several seeds and tells which tests fail under which.

``python -m tests.seeds 10`` runs it under the seeds 1 to 10; what follows the number goes to pytest, as in
``python -m tests.seeds 40 tests/test_torch.py -k packed``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import defaultdict


def run(seed: int, arguments: list[str]) -> tuple[str, list[str]]:
    """Return the last line and the failed tests of a run of pytest under a seed."""
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=line", *arguments]
    environment = {**os.environ, "LIMELIGHT_TEST_SEED": str(seed)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        sys.exit(f"pytest ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return done.stdout.strip().splitlines()[-1], failed


def main() -> None:
    if len(sys.argv) < 2 or not sys.argv[1].isdecimal():
        sys.exit(__doc__)
    failures = defaultdict(list)
    for seed in range(1, int(sys.argv[1]) + 1):
        start = time.perf_counter()
        line, failed = run(seed, sys.argv[2:])
        print(f"seed {seed}: {line} ({time.perf_counter() - start:.0f} s)", flush=True)
        for test in failed:
            failures[test].append(seed)
    for test, seeds in sorted(failures.items()):
        print(f"{test} failed under {', '.join(map(str, seeds))}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
