"""The result of a survey as one HTML page that needs no other file."""

from __future__ import annotations

from html import escape
from typing import Any

_SHOWN = ("entropy", "first", "self", "previous", "next", "near", "separators", "distance", "duplicate", "induction")
_STYLE = """
.limelight.survey { min-height: 100vh; padding: 0 0 40px; }
.survey .body { padding: 14px 20px; max-width: 1240px; display: grid; gap: 10px;
grid-template-columns: minmax(0, 1fr); }
.survey .body > h2 { font-size: 11px; font-weight: 600; letter-spacing: .05em; text-transform: uppercase;
color: var(--soft); margin: 14px 0 0; } .survey .facts { font-size: 15px; }
.survey table { border-collapse: collapse; } .survey th { color: var(--soft); font-weight: 500; text-align: right; }
.survey :is(td, th) { padding: 2px 8px; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
.survey :is(td, th).prose { text-align: left; white-space: normal; min-width: 11em; }
.survey td mark { background: var(--accent-soft); color: var(--accent); }
.survey svg { display: block; max-width: 100%; } .survey .range { color: var(--soft); font-size: 11px; }
.survey details.head { border: 1px solid var(--line); border-radius: 8px; background: var(--panel); padding: 6px 12px; }
.survey .head > summary { border: 0; padding: 0; display: grid; gap: 2px 12px; color: var(--ink); align-items: center;
grid-template-columns: minmax(12em, 22em) 10em 11em minmax(0, 240px); }
.survey .head .tag { justify-self: start; }
.survey .scroll { overflow-x: auto; } .survey .matrices { display: flex; flex-wrap: wrap; gap: 14px; }
.survey figure { margin: 0; } .survey figcaption { color: var(--soft); font-size: 11px; margin-bottom: 3px; }
.survey .matrix { display: grid; grid-template-columns: repeat(var(--heads), 13px); gap: 1px; }
.survey .matrix i { height: 13px; border-radius: 2px;
background: color-mix(in srgb, var(--accent) var(--share), var(--masked)); }
@media (max-width: 700px) { .survey .body { padding: 12px; }
.survey .head > summary { grid-template-columns: 1fr auto; } }
"""


def page(result: dict[str, Any], style: str) -> str:
    """Return the page; ``style`` is the style sheet of the explorer."""
    skipped = result["skipped"]
    facts = (
        f"{result['documents']:,} documents, {result['tokens']:,} tokens"
        + (f", {result['tokens_cut_off']:,} tokens cut off" if result["tokens_cut_off"] else "")
        + (f", {skipped['count']:,} documents skipped" if skipped["count"] else "")
    )
    heads = "\n".join(_head(head) for head in result["heads"])
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Survey of {escape(result["model"])}</title><style>{style}{_STYLE}</style></head>
<body style="margin:0"><div class="limelight survey">
<header class="top"><span class="mark">lime<i>light</i></span>
<span class="model">survey of <b>{escape(result["model"])}</b></span></header>
<div class="body"><p class="facts">{escape(result["model"])}: {facts}</p>
<p class="soft">{escape(result["how"])} The label is the one that most documents give the head.</p>
{_skipped(skipped["documents"])}<h2>Similarity of heads</h2>{_similarities(result["similarity"])}
<h2>Heads</h2>{heads}</div></div>
<script>if (matchMedia("(prefers-color-scheme: dark)").matches)
document.querySelector(".limelight").dataset.theme = "dark";</script></body></html>
"""


def _skipped(documents: list[dict[str, str]]) -> str:
    """The first documents that were skipped, and why."""
    lines = "".join(
        f"<tr><td class='prose'>{escape(x['document'])}</td><td class='prose soft'>{escape(x['reason'])}</td></tr>"
        for x in documents[:100]
    )
    return f"<h2>Skipped documents</h2><div class='scroll'><table>{lines}</table></div>" if lines else ""


def _similarities(similarity: dict[str, list[list[float]]]) -> str:
    """The mean cosine of every two heads of a layer, as squares that are darker the more alike the heads are."""
    figures = []
    for module, rows in similarity.items():
        cells = "".join(
            f'<i style="--share:{100 * max(cosine, 0.0):.0f}%" title="heads {i} and {j}: {cosine:.3f}"></i>'
            for i, row in enumerate(rows)
            for j, cosine in enumerate(row)
        )
        figures.append(
            f'<figure><figcaption>{escape(module)}</figcaption><div class="matrix" style="--heads:{len(rows)}">'
            f"{cells}</div></figure>"
        )
    return f'<div class="matrices">{"".join(figures)}</div>'


def _head(head: dict[str, Any]) -> str:
    name = f"{head['module']}, head {head['head']}"
    held = f"{head['held']:.0%} of documents"
    return (
        f'<details class="head"><summary><b>{escape(name)}</b><span class="tag">{escape(head["label"])}</span>'
        f'<span class="soft">{held}</span><span>{_profile(head["profile"])}</span></summary>'
        f'<div class="scroll">{_measures(head["measures"])}</div>{_labels(head["labels"])}'
        f'<div class="scroll">{_examples(head["examples"])}</div></details>'
    )


def _measures(measures: dict[str, Any]) -> str:
    names = [name for name in _SHOWN if name in measures]
    lines = [f"<tr><th></th>{''.join(f'<th>{name}</th>' for name in names)}</tr>"]
    for over in ("documents", "tokens"):
        cells = "".join(_cell(measures[name][over]) for name in names)
        lines.append(f"<tr><th>over {over}</th>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _cell(numbers: dict[str, Any]) -> str:
    if not numbers["count"]:
        return "<td></td>"
    return (
        f"<td>{_number(numbers['mean'])} ± {_number(numbers['spread'])}<br>"
        f'<span class="range">{" … ".join(_number(numbers[q]) for q in ("q05", "q50", "q95"))}</span></td>'
    )


def _number(x: float) -> str:
    return f"{x:.3f}" if abs(x) < 10 else f"{x:.1f}"


def _labels(labels: dict[str, int]) -> str:
    shown = ((escape(name), count) for name, count in labels.items())
    chips = "".join(f'<span class="chip">{name} <small>{count:,}</small></span>' for name, count in shown)
    return f'<div class="chips" style="margin:8px 0">{chips}</div>'


def _profile(profile: dict[str, Any] | None) -> str:
    """A line of the mean weight by distance."""
    if profile is None:
        return ""
    means = [x or 0.0 for x in profile["mean_weight"]]
    top, n = max(means) or 1.0, len(means)
    points = " ".join(f"{240 * i / (n - 1):.1f},{22 - 20 * x / top:.1f}" for i, x in enumerate(means))
    middle = 240 * -profile["from"] / (n - 1)
    return (
        '<svg width="240" height="24" viewBox="0 0 240 24" role="img" aria-label="mean weight by distance">'
        f'<line x1="{middle}" x2="{middle}" y1="0" y2="24" stroke="var(--line)"/>'
        f'<polyline points="{points}" fill="none" stroke="var(--accent)"/></svg>'
    )


def _examples(examples: list[dict[str, Any]]) -> str:
    lines = [
        f"<tr><td>{x['weight']:.3f}</td><td class='prose'>{_context(x['query_text'])}</td>"
        f"<td class='prose'>{_context(x['key_text'])}</td><td class='prose soft'>{escape(x['document'])}</td></tr>"
        for x in examples
    ]
    titles = "".join(f"<th class='prose'>{title}</th>" for title in ("query", "key", "document"))
    head = f"<tr><th>weight</th>{titles}</tr>"
    return f"<table>{head}{''.join(lines)}</table>" if lines else ""


def _context(text: list[str]) -> str:
    before, token, after = (escape(x) for x in text)
    return f"{before} <mark>{token}</mark> {after}"
