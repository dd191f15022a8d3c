"""The result of a survey as data: JSON, CSV and parquet."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from limelight.lens import strict_json
from limelight.lens.heads_table import MEASURES
from limelight.parallel.survey.measure import RADIUS, Findings

_HOW = (
    "Means and spreads (standard deviations) are exact sums in float64, document by document. Quantiles are read from "
    "histograms with fixed bins, within 0.001 for shares and 1% for entropies and distances."
)


def as_dict(found: Findings, model: str) -> dict[str, Any]:
    """Return everything as plain data."""
    return {
        "model": model,
        "documents": found.documents,
        "tokens": found.tokens,
        "tokens_cut_off": found.cut_tokens,
        "skipped": {"count": len(found.skipped), "documents": found.skipped},
        "how": _HOW,
        "heads": [_head(found, at) for at in range(len(found.heads))],
        "similarity": {name: (x / max(found.documents, 1)).tolist() for name, x in found.similarity.items()},
    }


def _head(found: Findings, at: int) -> dict[str, Any]:
    labels = found.labels[at]
    label = min(labels, key=lambda name: (-labels[name], name))
    measures = {}
    for name in MEASURES:
        documents = found.by_document.summary(at, name)
        if documents["count"]:
            measures[name] = {"documents": documents, "tokens": found.by_token.summary(at, name)}
    counts = found.profile_count[at]
    profile = None
    if counts.any():
        means = [float(x / n) if n else None for x, n in zip(found.profile[at], counts, strict=True)]
        profile = {"from": -RADIUS, "mean_weight": means}
    return {
        **found.heads[at],
        "label": label,
        "held": labels[label] / found.documents,
        "labels": dict(sorted(labels.items(), key=lambda x: (-x[1], x[0]))),
        "measures": measures,
        "profile": profile,
        "examples": found.examples[at],
    }


def rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one flat row for each head, measure, and documents or tokens."""
    flat = []
    for head in result["heads"]:
        place = {key: head[key] for key in ("module", "stack", "kind", "layer", "head", "label", "held")}
        for measure, kinds in head["measures"].items():
            flat += [
                {**place, "measure": measure, "over": over, **numbers}
                for over, numbers in kinds.items()
                if numbers["count"]
            ]
    return flat


def write(result: dict[str, Any], folder: Path) -> list[Path]:
    """Write ``survey.json``, ``survey.csv`` and, where pyarrow is installed, ``survey.parquet``; return the files."""
    files = [folder / "survey.json", folder / "survey.csv"]
    files[0].write_text(strict_json.dumps(result), encoding="utf-8")
    table = rows(result)
    with files[1].open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(table[0]) if table else ["module"])
        writer.writeheader()
        writer.writerows(table)
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return files
    files.append(folder / "survey.parquet")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), files[-1])
    return files
