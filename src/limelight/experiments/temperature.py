"""Temperature, from one-hot to uniform: claim 12."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from limelight import weights
from limelight.experiments.findings import Finding, Result, holds, mean_and_spread, ordered, plus_minus, rounded
from limelight.experiments.lesson import Lesson

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Temperature",
    equation="A = softmax(q kᵀ / (√d τ))",
    method=(
        "The entropy of the weights, as a share of that of equal weights, is measured for twelve temperatures, five "
        "numbers of keys and seven spreads of the scores, which the texts leave open. A text's word fits a setting "
        "if the share lies in the range that deserves the word. The share of settings that fit is part of the "
        "verdict; the numbers shown are those of the setting that fits best."
    ),
    code="""\
import torch, limelight as ll
q, k = 1.5 * torch.randn(1, 100, 64), torch.randn(1, 50, 64)
largest = torch.tensor(50.0).log()
for t in (0.1, 0.5, 1.0, 2.0, 5.0):
    A = ll.weights(q, k, temperature=t)
    print(t, A.entropy().mean() / largest, A.top(1).values.mean())
""",
)
GRID = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 2.5, 3.0, 5.0, 10.0)
KEYS, SPREADS, WIDTH = (4, 10, 20, 50, 200), (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0), 64
# A word of the texts, its temperatures, and the range of entropy (as a share of the largest) that fits the word.
BANDS: dict[str, tuple[tuple[float, ...], tuple[float, float]]] = {
    "almost one-hot": ((0.1, 0.2, 0.3, 0.5), (0.0, 0.2)),
    "sharp": ((0.5, 0.7), (0.0, 0.7)),
    "softer": ((1.5, 2.0), (0.7, 1.0)),
    "nearly uniform": ((2.5, 3.0, 5.0, 10.0), (0.95, 1.0)),
}
MOST = 0.5  # a word counts as reproduced if it fits this share of the settings


def run(quick: bool = False, seed: int = 0) -> Result:
    """Measure entropy and largest weight at every temperature, over many settings."""
    draws = 3 if quick else 8
    every = {(keys, spread): [_at(t, keys, spread, seed, draws) for t in GRID] for keys in KEYS for spread in SPREADS}
    rows = max(every.values(), key=_share_that_fits)
    findings = [_finding(word, rows, list(every.values())) for word in BANDS]
    rising = ordered([row["share"] for row in rows], rising=True)
    ends = rounded([row["share"] for row in rows if row["temperature"] in (0.1, 1.0, 10.0)])
    findings.append(Finding(12, "hotter is softer: share at τ = 0.1, 1 and 10", "rises", ends, holds(rising)))
    settings = [
        {"keys": keys, "spread of scores": spread, "share of words that fit": _share_that_fits(tried)}
        for (keys, spread), tried in every.items()
    ]
    all_fit = sum(row["share of words that fit"] == 1 for row in settings)
    takeaway = (
        f"Hotter is softer, always; which temperature is “sharp” depends on the spread of the scores: {all_fit} of "
        f"{len(settings)} settings fit all of the texts' words."
    )
    return Result("temperature", takeaway, findings, {"temperature": rows, "settings": settings})


def _finding(word: str, best: list[dict[str, Any]], settings: list[list[dict[str, Any]]]) -> Finding:
    temperatures, (low, high) = BANDS[word]
    fitting = sum(all(_fits(rows, word)) for rows in settings) / len(settings)
    mine = [row for row in best if row["temperature"] in temperatures]
    return Finding(
        claim=12,
        what=f"{word}: entropy as a share of the largest, τ = {', '.join(f'{t:g}' for t in temperatures)}",
        theirs=f"{low:g} to {high:g}",
        measured=rounded([row["share"] for row in mine]),
        verdict=holds(fitting >= MOST, in_part=fitting > 0),
        note=(
            f"{fitting:.0%} of {len(settings)} settings fit at all of these τ; shown: {mine[0]['keys']} keys, spread "
            f"{mine[0]['spread of scores']:g}, which fits best, {plus_minus([row['share spread'] for row in mine])} "
            "between seeds; what counts is the spread of the scores over τ"
        ),
    )


def _fits(rows: list[dict[str, Any]], word: str) -> list[bool]:
    """Return, for each temperature of a word, whether the weights fit the word."""
    temperatures, (low, high) = BANDS[word]
    return [low <= row["share"] <= high for row in rows if row["temperature"] in temperatures]


def _share_that_fits(rows: list[dict[str, Any]]) -> float:
    """Return the share of temperatures that fit their word, a mean over words."""
    words = [_fits(rows, word) for word in BANDS]
    return sum(sum(fits) / len(fits) for fits in words) / len(words)


def _at(t: float, keys: int, spread: float, seed: int, draws: int) -> dict[str, Any]:
    g = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(draws, n, WIDTH, generator=g) for n in (200, keys))
    seen = weights(spread * q, k, temperature=t).observe(entropy=True, top=1)
    assert seen.top is not None
    assert seen.entropy is not None
    row: dict[str, Any] = {"temperature": t, "keys": keys, "spread of scores": spread}
    shares = seen.entropy.mean(-1) / math.log(keys)
    for name, numbers in (("largest", seen.top.values[..., 0].mean(-1)), ("share", shares)):
        row[name], row[f"{name} spread"] = mean_and_spread(numbers.tolist())
    return row


def draw(result: Result) -> Figure:
    """Draw entropy and largest weight against the temperature, with the texts' words."""
    from limelight.experiments.figures import GREY, legend_below, new_figure, series

    figure, axis = new_figure(height=3.6)
    rows = result.data["temperature"]
    t = [row["temperature"] for row in rows]
    for n, (name, label) in enumerate((("largest", "largest weight"), ("share", "entropy / largest possible"))):
        series(axis, t, [row[name] for row in rows], n, label, spread=[row[f"{name} spread"] for row in rows])
    for edge in (0.5, 1.0, 2.0):
        axis.axvline(edge, color=GREY, alpha=0.6, linewidth=0.8)
    for middle, name in zip((0.22, 0.71, 1.41, 4.5), BANDS, strict=True):
        axis.text(middle, 1.06, name.replace(" ", "\n"), ha="center", fontsize=9, style="italic")
    axis.set(xscale="log", xlabel="temperature τ", ylabel="share", ylim=(0, 1.25))
    axis.set_title(f"The texts' words, and the weights ({rows[0]['keys']} keys)")
    axis.set_xticks([0.1, 0.5, 1, 2, 5, 10], ["0.1", "0.5", "1", "2", "5", "10"])
    legend_below(figure, axis, 2)
    return figure
