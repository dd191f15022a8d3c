"""The row of "sat" in real models: claim 39."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limelight.experiments.findings import EXTRA, MISSING, Finding, Result, holds, rounded
from limelight.experiments.lesson import Lesson
from limelight.experiments.real_models import HOW_TO_GET, RealModel, real_models

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="The row of “sat”",
    equation="row of sat = softmax(q_sat kᵀ / √d), over The, cat, sat, on, the, mat",
    method=(
        "MiniLM and the translator read “The cat sat on the mat.” The row of “sat” is taken from every head, on "
        "words alone (what begins and ends a text gets its share taken out, and the rest is divided by its sum), and "
        "averaged. A head's row is like the printed one if cat comes first and sat second, as printed."
    ),
    code="""\
from limelight.experiments.real_models import real_models
for model in real_models():
    A = model.matrices("The cat sat on the mat.")      # (layers, heads, n, n)
    row = A[:, :, model.places("The cat sat on the mat.")[2][0]]
    best = row.flatten(0, 1).max(0)
    print(model.name, model.tokens("The cat sat on the mat."))
    print(row.mean((0, 1)), best.values)
""",
)
TEXT, WORDS, SAT = "The cat sat on the mat.", ("The", "cat", "sat", "on", "the", "mat"), 2
PRINTED = (0.05, 0.35, 0.30, 0.05, 0.05, 0.20)


def run(quick: bool = False, seed: int = 0) -> Result:
    """Compare the printed row with those of real heads."""
    found = real_models()
    findings, rows = [], []
    for model in found:
        heads = _rows_of_sat(model)
        mean = heads.mean(0)
        rows.append({"model": model.name} | dict(zip(WORDS_KEYS, mean.tolist(), strict=True)))
        findings += _judge(model.name, heads, mean)
    if all(model.name != "MiniLM" for model in found):
        findings.append(Finding(39, "the row of sat in MiniLM", list(PRINTED), None, MISSING, HOW_TO_GET))
    rows.append({"model": "texts"} | dict(zip(WORDS_KEYS, PRINTED, strict=True)))
    first = rows[0]
    first_two = sorted(WORDS_KEYS, key=lambda word: -first[word])[:2]
    shares = " and ".join(f"“{word.split()[-1]}” ({first[word]:.2f})" for word in first_two)
    takeaway = (
        f"On the mean over its heads, {first['model']}'s “sat” looks most at {shares}, and at nothing as clearly as "
        "printed: the printed row is what single heads do, not what a model does."
    )
    return Result("word-rows", takeaway, findings, {"rows": rows})


WORDS_KEYS = tuple(f"{n + 1} {word}" for n, word in enumerate(WORDS))  # “the” comes twice


def _rows_of_sat(model: RealModel) -> Tensor:
    """Return the rows of sat over the six words, ``(all heads, 6)``, each with sum 1."""
    places = model.places(TEXT)
    A = model.matrices(TEXT).flatten(0, 1)  # (heads, n, n)
    row = A[:, places[SAT]].mean(1)
    words = torch.stack([row[:, place].sum(-1) for place in places], -1)
    return words / words.sum(-1, keepdim=True)


def _judge(name: str, heads: Tensor, mean: Tensor) -> list[Finding]:
    order = mean.argsort(descending=True).tolist()
    alike = ((heads.argsort(-1, descending=True)[:, :2] == torch.tensor([1, 2])).all(-1)).float().mean()
    on_cat = heads[:, 1]
    return [
        Finding(
            claim=39,
            what=f"{name}: the row of sat over The, cat, sat, on, the, mat; mean over {len(heads)} heads",
            theirs=list(PRINTED),
            measured=rounded(mean.tolist()),
            verdict=holds(order[:2] == [1, 2] and float(mean[1]) > 0.3, in_part={1, 2} == set(order[:2])),
            note=(
                f"most at {WORDS[order[0]]}, then {WORDS[order[1]]}; {float(alike):.0%} of heads have the printed order"
            ),
        ),
        Finding(
            claim=39,
            what=f"{name}: the head that looks most from sat to cat",
            theirs=None,
            measured=round(float(on_cat.max()), 2),
            verdict=EXTRA,
            note=f"{int((on_cat > 0.35).sum())} of {len(heads)} heads give cat more than the printed 0.35",
        ),
    ]


def draw(result: Result) -> Figure:
    """Draw the mean row of sat of each model next to the printed one."""
    from limelight.experiments.figures import COLOURS, GREY, bars, legend_below, new_figure

    figure, axis = new_figure(height=3.0)
    rows: list[dict[str, Any]] = result.data["rows"][::-1]
    heights = {row["model"]: [row[word] for word in WORDS_KEYS] for row in rows}
    bars(axis, WORDS, heights, colours=(GREY, *COLOURS))
    axis.set(ylabel="share of the row of “sat”", title="Printed, and in real models (mean over heads)")
    legend_below(figure, axis, 3)
    return figure
