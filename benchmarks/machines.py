"""Shows the results of all machines in benchmarks/results side by side.

python benchmarks/machines.py
"""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from limelight.cli._bench.report import machines_table

if __name__ == "__main__":
    files = sorted((Path(__file__).parent / "results").glob("[!m]*.json"))  # models-*.json are of models.py
    machines = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    console = Console(width=160)
    for threads in sorted({r["threads"] for m in machines for r in m["results"]}):
        console.print(machines_table(machines, threads))
