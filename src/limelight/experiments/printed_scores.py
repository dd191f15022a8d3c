"""Printed scores against the weights printed with them: claim 38."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from limelight import weights
from limelight.experiments.findings import EXTRA, Finding, Result, holds, rounded
from limelight.experiments.lesson import Lesson

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Printed scores",
    equation="softmax(s · [0.8, 0.3, 0.1, 0.2]) = [0.45, 0.25, 0.15, 0.15] for which s?",
    method=(
        "A text prints two rows of scores and the weights that they are said to give. The softmax of the scores is "
        "computed as they are, divided by √d for common widths, and multiplied by every factor from 0 to 10. A row "
        "is met if every weight is within 0.005, half a unit of the last printed digit."
    ),
    code="""\
import torch
scores = torch.tensor([0.8, 0.3, 0.1, 0.2])
for factor in (0.125, 1.0, 1.5, 2.0):
    print(factor, (factor * scores).softmax(-1))
print(torch.tensor([0.45, 0.25, 0.15, 0.15]).log())   # scores that would give it, up to a constant
""",
)
SCORES = ((0.8, 0.3, 0.1, 0.2), (0.2, 0.9, 0.7, 0.1))
PRINTED = ((0.45, 0.25, 0.15, 0.15), (0.15, 0.40, 0.35, 0.10))
FACTORS = [n / 100 for n in range(1001)]  # what the scores are multiplied by
HALF_UNIT = 0.005


def run(quick: bool = False, seed: int = 0) -> Result:
    """Search for a factor that turns the printed scores into the printed weights."""
    rows: list[dict[str, Any]] = []
    findings = []
    for n, (scores, printed) in enumerate(zip(SCORES, PRINTED, strict=True)):
        tried = {factor: _softmax(scores, factor) for factor in FACTORS}
        off = {
            factor: max(abs(a - b) for a, b in zip(weights, printed, strict=True)) for factor, weights in tried.items()
        }
        best = min(off, key=lambda factor: off[factor])
        rows += [{"row": n, "factor": factor, "largest difference": most} for factor, most in off.items()]
        findings += [
            Finding(
                claim=38,
                what=f"softmax of {', '.join(map(str, scores))}",
                theirs=list(printed),
                measured=rounded(tried[1.0]),
                verdict=holds(off[1.0] <= HALF_UNIT),
                note=f"as they are; divided by √d the weights are flatter still: {rounded(tried[0.13])} at d = 64",
            ),
            Finding(
                claim=38,
                what="some factor gives them: least difference that any factor from 0 to 10 leaves",
                theirs=f"at most {HALF_UNIT}",
                measured=round(off[best], 3),
                verdict=holds(off[best] <= HALF_UNIT),
                note=(
                    f"at {best:g}, with {rounded(tried[best])}: a softmax keeps the differences of the scores, and "
                    "equal weights need equal scores"
                ),
            ),
        ]
    needed = torch.tensor(PRINTED[0]).log()
    findings.append(
        Finding(
            claim=38,
            what="scores that would give the first row, with 0.8 for the first",
            theirs=None,
            measured=rounded((needed - needed[0] + 0.8).tolist()),
            verdict=EXTRA,
            note="the logarithms of the weights, up to a constant",
        )
    )
    met = sum(f.verdict == "reproduced" for f in findings)
    takeaway = (
        f"The printed scores give {rounded(_softmax(SCORES[0], 1.0))}, not {list(PRINTED[0])}; of the two rows and all "
        f"factors, {met or 'none'} fits: weights in texts are often drawn, not computed."
    )
    return Result("printed-scores", takeaway, findings, {"factors": rows})


def _softmax(scores: tuple[float, ...], factor: float) -> list[float]:
    k = torch.tensor(scores, dtype=torch.float64)[None, :, None]
    found: list[float] = weights(torch.ones(1, 1, 1, dtype=torch.float64), k, scale=factor).dense()[0, 0].tolist()
    return found


def draw(result: Result) -> Figure:
    """Draw how far the weights stay from the printed ones, by factor."""
    from limelight.experiments.figures import COLOURS, LINES, chance_line, new_figure

    figure, axis = new_figure(height=2.9)
    for n in range(len(SCORES)):
        mine = [row for row in result.data["factors"] if row["row"] == n and row["factor"] <= 6]
        x, y = [row["factor"] for row in mine], [row["largest difference"] for row in mine]
        axis.plot(x, y, linestyle=LINES[n], color=COLOURS[n], label=f"row {n + 1}")
    chance_line(axis, HALF_UNIT, "met, within rounding")
    axis.set(xlabel="factor of the scores", ylabel="largest difference", title="No factor turns scores into weights")
    axis.set_ylim(0)
    axis.legend()
    return figure
