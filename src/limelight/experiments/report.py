"""The report: every experiment with its table, figure, verdict and explanation, as files and as one page."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from limelight.experiments import draw
from limelight.experiments.claims import CLAIMS
from limelight.experiments.findings import BESIDE, CORRECTED, DIRECTION, REPRODUCED, Finding, Result, plain

_ORDER = (REPRODUCED, DIRECTION, CORRECTED)


def verdicts(results: Iterable[Result]) -> list[dict[str, Any]]:
    """One entry for each claim: the least favourable verdict of its findings, what they compared, and themselves."""
    by_claim: dict[int, list[Finding]] = {}
    for result in results:
        for finding in result.findings:
            by_claim.setdefault(finding.claim, []).append(finding)
    entries = []
    for claim, findings in sorted(by_claim.items()):
        said = [f for f in findings if f.verdict != BESIDE]
        one = len(said) == 1
        entries.append(
            {
                "claim": claim,
                "text": CLAIMS[claim],
                "verdict": max((f.verdict for f in said), key=_ORDER.index),
                "theirs": said[0].theirs if one else {f.what: f.theirs for f in said},
                "measured": said[0].measured if one else {f.what: f.measured for f in said},
                "findings": [asdict(f) for f in findings],
            }
        )
    return [plain(entry) for entry in entries]


def write(result: Result, folder: Path) -> list[Path]:
    """The figure as PNG and SVG, for light and for dark, every table as CSV, and everything as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for dark, suffix in ((False, ""), (True, "-dark")):
        figure = draw(result, dark=dark)
        for kind in ("png", "svg"):
            files.append(folder / f"{result.name}{suffix}.{kind}")
            figure.savefig(files[-1], dpi=150)
    for table in result.data:
        if result.data[table]:
            files.append(folder / f"{result.name}-{table.replace(' ', '-')}.csv")
            files[-1].write_text(result.csv(table), encoding="utf-8")
    files.append(folder / f"{result.name}.json")
    files[-1].write_text(result.json() + "\n", encoding="utf-8")
    return files


def write_report(results: Sequence[Result], folder: Path) -> Path:
    """All of that, ``verdicts.json`` and ``verdicts.md``, and ``index.html`` with everything in it."""
    for result in results:
        write(result, folder)
    found = verdicts(results)
    text = json.dumps(found, ensure_ascii=False, indent=2)
    (folder / "verdicts.json").write_text(text + "\n", encoding="utf-8")
    (folder / "verdicts.md").write_text(markdown(results), encoding="utf-8")
    page = folder / "index.html"
    page.write_text(_page(results, found, folder), encoding="utf-8")
    return page


def markdown(results: Sequence[Result]) -> str:
    """How many claims have which verdict, the claims with theirs, and every finding, in the order of the claims."""
    found = verdicts(results)
    lines = [summary(found), ""]
    lines += _rows(("claim", "what texts say", "verdict"), ((e["claim"], e["text"], e["verdict"]) for e in found))
    findings = sorted((f for result in results for f in result.findings), key=lambda f: f.claim)
    cells = ((f.claim, f.what, shown(f.theirs), shown(f.measured), f.verdict, f.note) for f in findings)
    return "\n".join([*lines, "", *_rows(("claim", "what", "texts", "measured", "verdict", "note"), cells)]) + "\n"


def _rows(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """A table in markdown, numbers of claims to the right."""
    lines = [names, ["--:", *("---" for _ in names[1:])], *rows]
    return ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines]


def summary(found: list[dict[str, Any]]) -> str:
    """How many claims have which verdict, in a sentence."""
    counts = [(sum(entry["verdict"] == verdict for entry in found), verdict) for verdict in _ORDER]
    each = ", ".join(f"{n} {verdict}" for n, verdict in counts)
    return f"{len(found)} claims: {each}. A claim has the least favourable verdict of what was measured for it."


_STYLE = """
:root { color-scheme: light dark; --back: #fff; --front: #1b1b22; --soft: #6b6b78; --line: #dcdce4; }
@media (prefers-color-scheme: dark) { :root { --back: #14141a; --front: #ececf2; --soft: #9a9aa8; --line: #33333e; } }
body { margin: 2rem auto; max-width: 62rem; padding: 0 1rem; background: var(--back); color: var(--front);
  font: 15px/1.5 system-ui, sans-serif; }
h2 { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1.5rem; }
p.about { color: var(--soft); white-space: pre-line; } img { max-width: 100%; }
table { border-collapse: collapse; width: 100%; font-size: 13px; } th, td { text-align: left; vertical-align: top;
  padding: .35rem .6rem .35rem 0; border-bottom: 1px solid var(--line); } td.note { color: var(--soft); }
b.claim { font-weight: normal; color: var(--soft); }
b.reproduced::before { content: "✓ "; } b.direction::before { content: "≈ "; } b.corrected::before { content: "✗ "; }
"""


def _page(results: Sequence[Result], found: list[dict[str, Any]], folder: Path) -> str:
    """With the figures that are in the folder inside it."""

    def picture(name: str) -> str:
        return "data:image/png;base64," + base64.b64encode((folder / f"{name}.png").read_bytes()).decode()

    links = " · ".join(f'<a href="#{r.name}">{html.escape(r.title)}</a>' for r in results)
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>limelight: claims about attention</title>",
        f"<style>{_STYLE}</style><h1>Claims about attention, checked</h1>",
        f"<p>{html.escape(summary(found))}</p>",
        f"<p>{links}</p>",
        _claims(results, found),
    ]
    for result in results:
        dark = f"<source media='(prefers-color-scheme: dark)' srcset='{picture(f'{result.name}-dark')}'>"
        parts += [
            f"<h2 id='{result.name}'>{html.escape(result.title)}</h2>",
            f"<p class='about'>{html.escape(result.explanation.strip())}</p>",
            f"<picture>{dark}<img alt='{html.escape(result.title)}' src='{picture(result.name)}'></picture>",
            _table(result.findings),
        ]
    return "\n".join([*parts, "</html>\n"])


def _claims(results: Sequence[Result], found: list[dict[str, Any]]) -> str:
    where = {f.claim: result.name for result in results for f in result.findings}
    rows = ["<tr><th>claim<th>what texts say<th>verdict</tr>"]
    for entry in found:
        link = f"<a href='#{where[entry['claim']]}'>{entry['claim']}</a>"
        rows.append(f"<tr><td>{link}<td>{html.escape(entry['text'])}<td>{_verdict(entry['verdict'])}</tr>")
    return f"<table>{''.join(rows)}</table>"


def _verdict(verdict: str) -> str:
    return f"<b class='{verdict.split()[-1]}'>{verdict}</b>"


def _table(findings: list[Finding]) -> str:
    rows = ["<tr><th>claim<th>what<th>texts<th>measured<th>verdict<th>note</tr>"]
    for f in findings:
        cells = (str(f.claim), f.what, shown(f.theirs), shown(f.measured))
        row = "".join(f"<td>{html.escape(cell)}" for cell in cells)
        rows.append(f"<tr>{row}<td>{_verdict(f.verdict)}<td class='note'>{html.escape(f.note)}</tr>")
    return f"<table>{''.join(rows)}</table>"


def shown(x: Any) -> str:
    """A number, a list of numbers or a word, for a table; a dash for nothing."""
    if x is None:
        return "–"
    if isinstance(x, dict):
        return ", ".join(f"{key} {shown(value)}" for key, value in x.items())
    if isinstance(x, (list, tuple)):
        return ", ".join(shown(y) for y in x)
    return f"{x:.4g}" if isinstance(x, float) else str(x)
