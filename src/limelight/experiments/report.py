"""The files that experiments leave: figures, tables, verdicts as JSON and markdown, and the page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from limelight.experiments import CHAPTERS, EXPERIMENTS, draw, lesson
from limelight.experiments.claims import CLAIMS
from limelight.experiments.findings import Result, plain
from limelight.experiments.page import page
from limelight.experiments.verdicts import corrections, shown, summary, verdicts


def write(result: Result, folder: Path) -> list[Path]:
    """Write the figure as PNG and SVG for light and dark, every table as CSV, and everything as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for dark, suffix in ((False, ""), (True, "-dark")):
        figure = draw(result, dark=dark)
        for kind in ("png", "svg"):
            files.append(folder / f"{result.name}{suffix}.{kind}")
            figure.savefig(files[-1], dpi=160)
    for table, rows in result.data.items():
        if rows:
            files.append(folder / f"{result.name}-{table.replace(' ', '-')}.csv")
            files[-1].write_text(result.csv(table), encoding="utf-8")
    files.append(folder / f"{result.name}.json")
    everything = asdict(EXPERIMENTS[result.name]) | asdict(lesson(result.name)) | asdict(result)
    files[-1].write_text(json.dumps(plain(everything), ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    return files


def write_report(results: Sequence[Result], folder: Path) -> Path:
    """Write the files of every result, ``verdicts.json``, ``verdicts.md`` and ``index.html``; return the last."""
    for result in results:
        write(result, folder)
    text = json.dumps(verdicts(results), ensure_ascii=False, indent=2)
    (folder / "verdicts.json").write_text(text + "\n", encoding="utf-8")
    (folder / "verdicts.md").write_text(markdown(results), encoding="utf-8")
    index = folder / "index.html"
    index.write_text(page(results, folder), encoding="utf-8")
    return index


def markdown(results: Sequence[Result]) -> str:
    """Write the summary, what is wrong in texts, and every chapter with its claims and findings."""
    entries = verdicts(results)
    verdict = {entry["claim"]: entry["verdict"] for entry in entries}
    lines = [summary(entries), "", "## What is wrong in texts, and what is right", ""]
    lines += [f"- Claim {claim}: *{CLAIMS[claim].text}* {right}" for claim, right, _ in corrections(results)]
    for chapter in CHAPTERS:
        mine = [result for result in results if EXPERIMENTS[result.name].chapter == chapter]
        if mine:
            lines += ["", f"## {chapter}"]
        for result in mine:
            lines += ["", f"### {lesson(result.name).title} (`{result.name}`)", ""]
            lines += [f"*{EXPERIMENTS[result.name].question}* `{lesson(result.name).equation}`", ""]
            for claim in EXPERIMENTS[result.name].claims:
                lines.append(f"- Claim {claim}: {CLAIMS[claim].text} ({CLAIMS[claim].source}): **{verdict[claim]}**")
            lines += ["", f"**{result.takeaway}**", ""]
            cells = ((f.claim, f.what, shown(f.theirs), shown(f.measured), f.verdict, f.note) for f in result.findings)
            lines += _table(("claim", "what", "texts", "found", "verdict", "note"), cells)
    return "\n".join(lines) + "\n"


def _table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Format a table in markdown, with the numbers of claims to the right."""
    lines = [names, ["--:", *("---" for _ in names[1:])], *rows]
    return ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines]
