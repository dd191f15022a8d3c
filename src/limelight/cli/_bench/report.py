"""Tables of results."""

from __future__ import annotations

from typing import Any

from rich.table import Table

Result = dict[str, Any]


def missed(r: Result) -> bool:
    """Return True if a result is below its ratio or its share of the machine's limit."""
    share = r["share to reach"]
    return bool(r["ratio"] < r["goal"] or (share is not None and r["share"] is not None and r["share"] < share))


def results_table(results: list[Result], threads: int) -> Table:
    """Return a table with one row a case."""
    mine = [r for r in results if r["threads"] == threads]
    first = ["limelight", "SDPA"]
    measured = dict.fromkeys(name for result in mine for name in result["milliseconds"])
    names = first + [name for name in measured if name not in first]
    out = Table(title=f"{threads} thread{'s' if threads > 1 else ''}: milliseconds, best of several")
    out.title_justify = "left"
    out.add_column("case")
    for name in (*names, "SDPA / limelight", "of the machine's limit"):
        out.add_column(name, justify="right")
    for r in mine:
        ms = r["milliseconds"]
        cells = [f"{ms[n]:.3f}" if n in ms else "" for n in names]
        out.add_row(r["case"], *cells, _ratio(r), _share(r))
    return out


def _ratio(r: Result) -> str:
    """Return the ratio to SDPA with the one to reach; ~ says that it was not steady, ✗ that it is missed."""
    return f"{'' if r['steady'] else '~'}{r['ratio']:.2f} ({r['goal']:g}){' ✗' if r['ratio'] < r['goal'] else ''}"


def _share(r: Result) -> str:
    if r["share"] is None:
        return ""
    wanted = r["share to reach"]
    goal = "" if wanted is None else f" ({wanted:.0%}){' ✗' if r['share'] < wanted else ''}"
    return f"{r['share']:.0%} of {'peak' if r['limit'] == 'arithmetic' else 'bandwidth'}{goal}"


SPARSE = "sparse: "
PER_PAIR = 1.4  # cost of a pair to stay below, in units of its cost under a window


def sparse_table(results: list[Result], threads: int) -> Table | None:
    """Return the cost of an allowed pair under sparse patterns, next to a window of the same density."""
    found = [r for r in results if r["threads"] == threads and r["case"].startswith(SPARSE)]
    per_pair = {r["case"]: r["milliseconds"]["limelight"] * 1e6 / r["pairs"] for r in found}
    window = next((x for case, x in per_pair.items() if case.startswith(f"{SPARSE}window")), None)
    if window is None or len(found) < 2:
        return None
    out = Table(title=f"{threads} thread{'s' if threads > 1 else ''}: nanoseconds for an allowed pair")
    out.title_justify = "left"
    for name in ("case", "limelight", f"times the window's ({PER_PAIR:g})"):
        out.add_column(name, justify="left" if name == "case" else "right")
    for case, x in per_pair.items():
        out.add_row(case, f"{x:.2f}", f"{x / window:.2f}{' ✗' if x > PER_PAIR * window else ''}")
    return out


def machine_lines(machine: dict[str, Any]) -> list[str]:
    """Return the machine in a few lines: CPU, instruction set, peak and bandwidth by size."""
    lines = [f"{machine['cpu']}, {machine['cores']} cores, {machine['isa']}; torch {machine['torch']}"]
    for threads, sizes in machine["read GB/s"].items():
        reads = ", ".join(f"{_size(int(size))} {speed:.0f}" for size, speed in sizes.items())
        lines.append(
            f"{threads} thread{'s' if threads != '1' else ''}: multiply-add peak {machine['peak GF/s'][threads]:.0f} "
            f"GF/s; reading (GB/s): {reads}"
        )
    return lines


def _size(size: int) -> str:
    return f"{size >> 20} MB" if size >= 1 << 20 else f"{size >> 10} KB"


def machines_table(machines: list[dict[str, Any]], threads: int) -> Table:
    """Return the ratios to SDPA of several machines side by side."""
    out = Table(title=f"SDPA / limelight, {threads} thread{'s' if threads > 1 else ''}")
    out.title_justify = "left"
    out.add_column("case")
    for machine in machines:
        out.add_column(f"{machine['cpu']} ({machine['isa']})", justify="right")
    found = [
        {result["case"]: result["ratio"] for result in machine["results"] if result["threads"] == threads}
        for machine in machines
    ]
    for case in dict.fromkeys(name for ratios in found for name in ratios):
        out.add_row(case, *(f"{ratios[case]:.2f}" if case in ratios else "" for ratios in found))
    return out
