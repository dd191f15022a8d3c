"""The report: every experiment with its table, figure, verdict and explanation, as files and as one page."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limelight.experiments.findings import CORRECTED, DIRECTION, REPRODUCED, Finding, Result, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ORDER = (REPRODUCED, DIRECTION, CORRECTED)


def verdicts(results: Iterable[Result]) -> list[dict[str, Any]]:
    """One entry for each claim: the least favourable verdict of its findings, and what they compared."""
    by_claim: dict[int, list[Finding]] = {}
    for result in results:
        for finding in result.findings:
            by_claim.setdefault(finding.claim, []).append(finding)
    entries = []
    for claim, findings in sorted(by_claim.items()):
        verdict = max((f.verdict for f in findings), key=_ORDER.index)
        one = len(findings) == 1
        entries.append(
            {
                "claim": claim,
                "verdict": verdict,
                "theirs": findings[0].theirs if one else {f.what: f.theirs for f in findings},
                "measured": findings[0].measured if one else {f.what: f.measured for f in findings},
                "notes": [f.note for f in findings if f.note],
            }
        )
    return [plain(entry) for entry in entries]


def write(result: Result, figure: Figure, folder: Path) -> list[Path]:
    """The figure as PNG and SVG, every table as CSV, and everything as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{result.name}.{kind}" for kind in ("png", "svg")]
    for file in files:
        figure.savefig(file, dpi=150)
    for table in result.data:
        if result.data[table]:
            files.append(folder / f"{result.name}-{table.replace(' ', '-')}.csv")
            files[-1].write_text(result.csv(table), encoding="utf-8")
    files.append(folder / f"{result.name}.json")
    files[-1].write_text(result.json() + "\n", encoding="utf-8")
    return files


def write_report(results: Sequence[tuple[Result, Figure]], folder: Path) -> Path:
    """All of that, ``verdicts.json``, and ``index.html`` with everything in it."""
    for result, figure in results:
        write(result, figure, folder)
    found = verdicts(result for result, _ in results)
    text = json.dumps(found, ensure_ascii=False, indent=2)
    (folder / "verdicts.json").write_text(text + "\n", encoding="utf-8")
    page = folder / "index.html"
    page.write_text(_page(results, found), encoding="utf-8")
    return page


_STYLE = """
:root { color-scheme: light dark; --back: #fff; --front: #1b1b22; --soft: #6b6b78; --line: #dcdce4; }
@media (prefers-color-scheme: dark) { :root { --back: #14141a; --front: #ececf2; --soft: #9a9aa8; --line: #33333e; } }
body { margin: 2rem auto; max-width: 62rem; padding: 0 1rem; background: var(--back); color: var(--front);
  font: 15px/1.5 system-ui, sans-serif; }
h2 { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1.5rem; }
p.about { color: var(--soft); white-space: pre-line; } img { max-width: 100%; }
table { border-collapse: collapse; width: 100%; font-size: 13px; } th, td { text-align: left; vertical-align: top;
  padding: .35rem .6rem .35rem 0; border-bottom: 1px solid var(--line); } td.note { color: var(--soft); }
b.reproduced::before { content: "✓ "; } b.direction::before { content: "≈ "; } b.corrected::before { content: "✗ "; }
"""


def _page(results: Sequence[tuple[Result, Figure]], found: list[dict[str, Any]]) -> str:
    counts = {verdict: sum(entry["verdict"] == verdict for entry in found) for verdict in _ORDER}
    summary = ", ".join(f"{n} {verdict}" for verdict, n in counts.items())
    links = " · ".join(f'<a href="#{r.name}">{html.escape(r.title)}</a>' for r, _ in results)
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>limelight: claims about attention</title>",
        f"<style>{_STYLE}</style><h1>Claims about attention, checked</h1>",
        f"<p>{len(found)} claims: {summary}. A claim has the least favourable verdict of what was measured for it.</p>",
        f"<p>{links}</p>",
    ]
    for result, figure in results:
        buffer = BytesIO()
        figure.savefig(buffer, format="png", dpi=150)
        picture = base64.b64encode(buffer.getvalue()).decode()
        parts += [
            f"<h2 id='{result.name}'>{html.escape(result.title)}</h2>",
            f"<p class='about'>{html.escape(result.explanation.strip())}</p>",
            f"<img alt='{html.escape(result.title)}' src='data:image/png;base64,{picture}'>",
            _table(result.findings),
        ]
    return "\n".join([*parts, "</html>\n"])


def _table(findings: list[Finding]) -> str:
    rows = ["<tr><th>claim<th>what<th>texts<th>measured<th>verdict<th></tr>"]
    for f in findings:
        cells = (str(f.claim), f.what, shown(f.theirs), shown(f.measured))
        kind = f.verdict.split()[-1]
        row = "".join(f"<td>{html.escape(cell)}" for cell in cells)
        rows.append(f"<tr>{row}<td><b class='{kind}'>{f.verdict}</b><td class='note'>{html.escape(f.note)}</tr>")
    return f"<table>{''.join(rows)}</table>"


def shown(x: Any) -> str:
    """A number, a list of numbers or a word, for a table."""
    if isinstance(x, dict):
        return ", ".join(f"{key} {shown(value)}" for key, value in x.items())
    if isinstance(x, (list, tuple)):
        return ", ".join(shown(y) for y in x)
    return f"{x:.4g}" if isinstance(x, float) else str(x)
