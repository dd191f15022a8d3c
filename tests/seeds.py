"""Runs the test suite under several seeds and tells which tests fail under which.

``python -m tests.seeds 10`` runs it under the seeds 1 to 10; what follows the number goes to pytest, as in
``python -m tests.seeds 40 tests/test_torch.py -k packed``. The first run notes which tests draw random numbers, and the
others leave out the rest, which would repeat what they have done (tests/drawing.py).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path


def run(seed: int, arguments: list[str], drawing: Path) -> tuple[str, list[str]]:
    """Return the last line and the failed tests of a run of pytest under a seed.

    ``drawing`` names the tests that draw; if there is no such file, all tests run and it is written.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=line", "-p", "tests.drawing", *arguments]
    environment = {**os.environ, "LIMELIGHT_TEST_SEED": str(seed), "LIMELIGHT_TEST_DRAWING": str(drawing)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        sys.exit(f"pytest ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return done.stdout.strip().splitlines()[-1], failed


def main() -> None:
    if len(sys.argv) < 2 or not sys.argv[1].isdecimal():
        sys.exit(__doc__)
    failures = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1, int(sys.argv[1]) + 1):
            start = time.perf_counter()
            line, failed = run(seed, sys.argv[2:], Path(folder) / "drawing.txt")
            print(f"seed {seed}: {line} ({time.perf_counter() - start:.0f} s)", flush=True)
            for test in failed:
                print(f"  {test}", flush=True)
                failures[test].append(seed)
    for test, seeds in sorted(failures.items()):
        print(f"{test} failed under {', '.join(map(str, seeds))}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
