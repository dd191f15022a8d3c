"""Verdicts on claims: the least favourable of the findings of each, and a summary in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from limelight.experiments.claims import CLAIMS
from limelight.experiments.findings import CORRECTED, EXTRA, JUDGED, Finding, Result, plain


def verdicts(results: Iterable[Result]) -> list[dict[str, Any]]:
    """Return an entry for each claim: its verdict, its source, what was compared, and the findings."""
    by_claim: dict[int, list[Finding]] = {}
    for result in results:
        for finding in result.findings:
            by_claim.setdefault(finding.claim, []).append(finding)
    return [plain(_entry(claim, findings)) for claim, findings in sorted(by_claim.items())]


def _entry(claim: int, findings: list[Finding]) -> dict[str, Any]:
    compared = [f for f in findings if f.verdict != EXTRA]
    judged = [f.verdict for f in compared if f.verdict in JUDGED]
    one = len(compared) == 1
    return {
        "claim": claim,
        "text": CLAIMS[claim].text,
        "source": CLAIMS[claim].source,
        "verdict": max(judged, key=JUDGED.index) if judged else compared[0].verdict,
        "theirs": compared[0].theirs if one else {f.what: f.theirs for f in compared},
        "measured": compared[0].measured if one else {f.what: f.measured for f in compared},
        "findings": [asdict(f) for f in findings],
    }


def summary(entries: Sequence[dict[str, Any]]) -> str:
    """Say in a sentence how many claims have which verdict."""
    counts = [(sum(entry["verdict"] == verdict for entry in entries), verdict) for verdict in JUDGED]
    rest = len(entries) - sum(n for n, _ in counts)
    each = [f"{n} {verdict}" for n, verdict in counts] + ([f"{rest} not measured"] if rest else [])
    rule = "A claim has the least favourable verdict of what was measured for it."
    return f"{len(entries)} claims: {', '.join(each)}. {rule}"


def corrections(results: Iterable[Result]) -> list[tuple[int, str, Result]]:
    """Return each corrected claim, what is right (from its first such finding), and the experiment."""
    found: dict[int, tuple[int, str, Result]] = {}
    for result in results:
        for f in result.findings:
            if f.verdict == CORRECTED and f.claim not in found:
                right = f"{f.what}: texts {shown(f.theirs)}, measured {shown(f.measured)}; {f.note}."
                found[f.claim] = (f.claim, right, result)
    return [found[claim] for claim in sorted(found)]


def shown(x: Any) -> str:
    """Format a number, a list or a word for a table; None becomes a dash."""
    if x is None:
        return "–"
    if isinstance(x, dict):
        return ", ".join(f"{key}: {shown(value)}" for key, value in x.items())
    if isinstance(x, (list, tuple)):
        return ", ".join(shown(y) for y in x)
    return f"{x:.4g}" if isinstance(x, float) else str(x)
