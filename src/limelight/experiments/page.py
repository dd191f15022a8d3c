"""The page of the report: one HTML file with everything in it, for light and dark, for a phone and for print."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from limelight.experiments import CHAPTERS, EXPERIMENTS, lesson
from limelight.experiments.claims import CLAIMS
from limelight.experiments.findings import CORRECTED, DIRECTION, EXTRA, JUDGED, REPRODUCED, Finding, Result
from limelight.experiments.verdicts import corrections, shown, summary, verdicts

# The class of a verdict in the style sheet, and a sign that tells it without colour.
_SIGNS = {REPRODUCED: ("yes", "✓"), DIRECTION: ("partly", "≈"), CORRECTED: ("no", "✗"), EXTRA: ("extra", "·")}


def page(results: Sequence[Result], folder: Path) -> str:
    """Write the page, with the figures that ``folder`` holds inside it."""
    entries = verdicts(results)
    verdict = {entry["claim"]: entry["verdict"] for entry in entries}
    style = files("limelight.experiments").joinpath("data", "page.css").read_text(encoding="utf-8")
    by_chapter = {name: [result for result in results if EXPERIMENTS[result.name].chapter == name] for name in CHAPTERS}
    chapters = [(name, mine) for name, mine in by_chapter.items() if mine]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Claims about attention, checked</title><style>{style}</style></head><body>",
        _header(chapters),
        '<div class="columns">',
        _contents(chapters, verdict),
        "<main>",
        _opening(entries),
        _wrong(results),
    ]
    for chapter, mine in chapters:
        parts.append(f'<section><h2 id="{_anchor(chapter)}">{escape(chapter)}</h2>')
        parts += [_experiment(result, verdict, folder) for result in mine]
        parts.append("</section>")
    return "\n".join([*parts, "</main></div></body></html>\n"])


def _anchor(chapter: str) -> str:
    return chapter.lower().replace(" ", "-")


def _header(chapters: Sequence[tuple[str, Any]]) -> str:
    links = "".join(f'<a href="#{_anchor(c)}">{escape(c)}</a>' for c, _ in chapters)
    return f'<header><span class="mark">lime<i>light</i></span><nav aria-label="Chapters">{links}</nav></header>'


def _contents(chapters: Sequence[tuple[str, list[Result]]], verdict: dict[int, str]) -> str:
    parts = ['<aside aria-label="Contents">']
    for chapter, mine in chapters:
        rows = []
        for result in mine:
            signs = "".join(_sign(verdict[claim]) for claim in EXPERIMENTS[result.name].claims)
            rows.append(f'<li><a href="#{result.name}">{escape(lesson(result.name).title)}</a> {signs}</li>')
        parts.append(f"<h3>{escape(chapter)}</h3><ul>{''.join(rows)}</ul>")
    return "".join([*parts, "</aside>"])


def _opening(entries: Sequence[dict[str, Any]]) -> str:
    total = len(entries)
    counts = {v: sum(entry["verdict"] == v for entry in entries) for v in JUDGED}
    bars = "".join(
        f'<span class="{_SIGNS[v][0]}" style="flex:{n}"><b>{n}</b> {escape(v)}</span>' for v, n in counts.items() if n
    )
    return (
        '<div class="opening"><h1>What is said about attention, checked</h1>'
        f'<p class="lead">{total} claims of teaching texts and papers, each with an experiment that can fail.</p>'
        f'<div class="tally">{bars}</div><p class="soft">{escape(summary(entries))} Everything is seeded; costs '
        "are counted first, and times are ratios of processor time, measured in turns.</p></div>"
    )


def _wrong(results: Sequence[Result]) -> str:
    rows = [
        f'<li><a href="#{result.name}">{claim}</a> <q>{escape(CLAIMS[claim].text)}</q><br>{escape(right)}</li>'
        for claim, right, result in corrections(results)
    ]
    heading = "<summary>What is wrong in texts, and what is right</summary>"
    return f'<details class="wrong" open>{heading}<ul>{"".join(rows)}</ul></details>' if rows else ""


def _experiment(result: Result, verdict: dict[int, str], folder: Path) -> str:
    about, entry = lesson(result.name), EXPERIMENTS[result.name]
    claims = "".join(
        f'<li><span class="number">{claim}</span><div>{escape(CLAIMS[claim].text)} '
        f"<cite>{escape(CLAIMS[claim].source)}</cite></div>{_chip(verdict[claim])}</li>"
        for claim in entry.claims
    )
    return "\n".join(
        [
            f'<article id="{result.name}"><h3>{escape(about.title)}</h3>',
            f'<p class="question">{escape(entry.question)}</p>',
            f'<p class="equation">{escape(about.equation)}</p>',
            f'<h4>What is claimed</h4><ul class="claims">{claims}</ul>',
            f"<h4>What was done</h4><p>{escape(about.method)}</p>",
            _figure(result.name, about.title, folder),
            f'<p class="takeaway">{escape(result.takeaway)}</p>',
            f"<h4>Findings</h4>{_findings(result.findings)}",
            f"<h4>Try it</h4><pre><code>{escape(about.code)}</code></pre></article>",
        ]
    )


def _figure(name: str, title: str, folder: Path) -> str:
    # Two images and not one with two sources: a browser does not choose again when a dark page is printed.
    images = "".join(
        f'<img class="{kind}" alt="{escape(title)}" src="data:image/png;base64,'
        f'{base64.b64encode((folder / f"{name}{suffix}.png").read_bytes()).decode()}">'
        for kind, suffix in (("light", ""), ("dark", "-dark"))
    )
    return f"<figure>{images}</figure>"


def _sign(verdict: str) -> str:
    kind, sign = _SIGNS.get(verdict, ("missing", "?"))
    return f'<span class="sign {kind}" title="{escape(verdict)}">{sign}</span>'


def _chip(verdict: str) -> str:
    kind, sign = _SIGNS.get(verdict, ("missing", "?"))
    return f'<span class="chip {kind}">{sign} {escape(verdict)}</span>'


def _findings(findings: Sequence[Finding]) -> str:
    names = ("claim", "what", "texts", "found", "verdict", "note")
    head = "".join(f"<th>{name}</th>" for name in names)
    rows = []
    for f in findings:
        cells = (str(f.claim), escape(f.what), escape(shown(f.theirs)), escape(shown(f.measured)), _chip(f.verdict))
        row = "".join(f'<td data-name="{name}">{cell}</td>' for name, cell in zip(names, cells, strict=False))
        rows.append(f'<tr>{row}<td data-name="note" class="soft">{escape(f.note)}</td></tr>')
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
