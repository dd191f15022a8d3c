"""The speed of attention: ``limelight bench``, with the results kept in benchmarks/results by CPU.

    python benchmarks/attention.py                 # one thread and all, every case
    python benchmarks/attention.py --quick         # fewer repetitions
    python benchmarks/attention.py --case decode   # only the cases whose name contains this
    python benchmarks/attention.py --case training # forward and backward

The options are those of ``limelight bench``. A run of every case writes benchmarks/results/CPU.json unless --out names
another file, and one of some cases renews these in it; ``python benchmarks/machines.py`` shows the machines side by
side.
"""

from __future__ import annotations

import sys
from pathlib import Path

from limelight.cli._bench.machine import cpu_name, file_name
from limelight.cli.bench import command

RESULTS = Path(__file__).parent / "results"

if __name__ == "__main__":
    args = sys.argv[1:]
    given = {arg.split("=")[0] for arg in args}
    file = RESULTS / file_name(cpu_name())
    if not given & {"--out", "--help"} and ("--case" not in given or file.is_file()):
        args += ["--out", str(file)]
    command(args)
