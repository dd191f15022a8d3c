"""Experiments on a terminal."""

from __future__ import annotations

from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from limelight.experiments import CHAPTERS, EXPERIMENTS, lesson, run
from limelight.experiments.claims import CLAIMS
from limelight.experiments.findings import BUSY, CORRECTED, DIRECTION, EXTRA, MISSING, REPRODUCED, Result
from limelight.experiments.report import write, write_report
from limelight.experiments.verdicts import corrections, shown, summary, verdicts
from limelight.viz.heatmaps import need_matplotlib
from limelight.viz.tables import messages_console, wide_console

_STYLES = {REPRODUCED: "green", DIRECTION: "yellow", CORRECTED: "red", EXTRA: "dim", BUSY: "dim", MISSING: "dim"}


def list_experiments() -> None:
    """Print the chapters, and a line for each experiment with its question and its claims."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for chapter in CHAPTERS:
        table.add_row(Text(chapter, "bold"))
        for name, experiment in EXPERIMENTS.items():
            if experiment.chapter == chapter:
                table.add_row(f"  {name}", experiment.question, f"claim {', '.join(map(str, experiment.claims))}")
    table.add_row("all", "Every one of them, and a report.", "")
    wide_console().print(table)


def run_and_show(name: str, folder: str | None, quick: bool, seed: int) -> None:
    """Run one experiment or all, print what was found, and write files where a folder is given."""
    console, messages = wide_console(), messages_console()
    if folder is not None:
        need_matplotlib()
    results = []
    for n, each in enumerate(EXPERIMENTS if name == "all" else [name]):
        where = f"{n + 1} of {len(EXPERIMENTS)}, " if name == "all" else ""
        question = f"{where}{each}: {EXPERIMENTS[each].question}"
        if not messages.is_terminal:
            messages.print(question)
        with messages.status(question):
            results.append(run(each, quick=quick, seed=seed))
        console.print(_shown(results[-1]))
    if name == "all":
        _print_summary(console, results)
    if folder is None:
        return
    with messages.status("figures"):
        if name == "all":
            messages.print(f"{write_report(results, Path(folder))} has everything.")
        else:
            files = write(results[0], Path(folder))
            messages.print(f"{folder} has {', '.join(file.name for file in files)}.")


def _shown(result: Result) -> Group:
    """Lay out an experiment: question, equation, claims, findings and take-away."""
    about, experiment = lesson(result.name), EXPERIMENTS[result.name]
    lines = [Text(about.title, "bold"), Text(experiment.question), Text(f"  {about.equation}", "cyan")]
    for claim in experiment.claims:
        lines.append(Text(f"claim {claim}: {CLAIMS[claim].text} ({CLAIMS[claim].source})", "dim"))
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("claim", "what", "texts", "found", "verdict", "note"):
        table.add_column(name, justify="right" if name == "claim" else "left", overflow="fold")
    for f in result.findings:
        verdict = Text(f.verdict, _STYLES[f.verdict])
        table.add_row(str(f.claim), f.what, shown(f.theirs), shown(f.measured), verdict, f.note)
    return Group(*lines, table, Text(result.takeaway, "bold"), Text())


def _print_summary(console: Console, results: list[Result]) -> None:
    console.print(Text("What is wrong in texts, and what is right", "bold"))
    for claim, right, _ in corrections(results):
        console.print(f"  {claim}. {CLAIMS[claim].text}\n     {right}")
    console.print(summary(verdicts(results)))
