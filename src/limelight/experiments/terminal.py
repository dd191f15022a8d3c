"""Experiments on a terminal."""

from __future__ import annotations

from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from limelight.experiments import EXPERIMENTS, run
from limelight.experiments.findings import Result
from limelight.experiments.report import shown, summary, verdicts, write, write_report
from limelight.viz.heatmaps import need_matplotlib
from limelight.viz.tables import messages_console, wide_console

_STYLES = {"reproduced": "green", "reproduced in direction": "yellow", "corrected": "red", "beside the claim": "dim"}


def list_experiments() -> None:
    """A line each."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, (_, claims, line) in EXPERIMENTS.items():
        table.add_row(name, line, f"claims {', '.join(map(str, claims))}")
    table.add_row("all", "every one of them, and a report", "")
    wide_console().print(table)


def run_and_show(name: str, folder: str | None, quick: bool, seed: int) -> None:
    """Tables with verdicts; figures and data where there is a folder."""
    console, messages = wide_console(), messages_console()
    if folder is not None:
        need_matplotlib()
    names = list(EXPERIMENTS) if name == "all" else [name]
    results = []
    for each in names:
        with messages.status(f"{each}: {EXPERIMENTS[each][2]}") if each in EXPERIMENTS else messages.status(each):
            results.append(run(each, quick=quick, seed=seed))
        console.print(_table(results[-1]))
    if name == "all":
        console.print(summary(verdicts(results)))
    if folder is None:
        return
    with messages.status("figures"):
        if name == "all":
            messages.print(f"{write_report(results, Path(folder))} has everything.")
        else:
            files = write(results[0], Path(folder))
            messages.print(f"{folder} has {', '.join(file.name for file in files)}.")


def _table(result: Result) -> Group:
    table = Table(title=result.title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("claim", "what", "texts", "measured", "verdict", "note"):
        table.add_column(name, justify="right" if name == "claim" else "left", overflow="fold")
    for f in result.findings:
        verdict = Text(f.verdict, _STYLES[f.verdict])
        table.add_row(str(f.claim), f.what, shown(f.theirs), shown(f.measured), verdict, f.note)
    return Group(table)
