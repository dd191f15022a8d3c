"""Temperature: claim 12.

Texts say of softmax(scores / (√d τ)): almost one-hot for τ from 0.1 to 0.5, sharp from 0.5 to 1, normal at 1, softer
from 1 to 2, nearly uniform above 2. Measured by the entropy as a share of that of equal weights, for many numbers of
keys and spreads of the scores, which the texts do not give: the setting in which most of this is so is the one that
is shown.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from limelight.experiments.findings import Finding, Result, holds, mean_and_spread, ordered, plus_minus
from limelight.functional import weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Temperature"
GRID = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 2.5, 3.0, 5.0, 10.0)
KEYS, SPREADS, WIDTH = (4, 10, 20, 50, 200), (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0), 64
# What the texts call it, the temperatures, and the share of the largest entropy that would deserve the name.
BANDS: dict[str, tuple[tuple[float, ...], tuple[float, float]]] = {
    "almost one-hot": ((0.1, 0.2, 0.3, 0.5), (0.0, 0.2)),
    "sharp": ((0.5, 0.7), (0.0, 0.7)),
    "softer": ((1.5, 2.0), (0.7, 1.0)),
    "nearly uniform": ((2.5, 3.0, 5.0, 10.0), (0.95, 1.0)),
}


def run(quick: bool = False, seed: int = 0) -> Result:
    """The entropy and the largest weight at every temperature, in the setting that suits the texts best."""
    draws = 3 if quick else 8
    every = {(m, s): [_at(t, m, s, seed, draws) for t in GRID] for m in KEYS for s in SPREADS}
    (keys, spread), rows = max(every.items(), key=lambda item: _fit(item[1]))
    by = {row["temperature"]: row for row in rows}
    findings = []
    for name, (temperatures, (low, high)) in BANDS.items():
        shares = [by[t]["share"] for t in temperatures]
        right = [low <= x <= high for x in shares]
        where = f"{', '.join(f'{t:g}' for t in temperatures)}"
        error = plus_minus([by[t]["share spread"] for t in temperatures])
        note = f"{error} between seeds; {keys} keys and scores with a spread of {spread:g}, which suits the texts best"
        if not all(right):
            note += "; what counts is the spread of the scores over τ, and no spread suits all of the texts' words"
        findings.append(
            Finding(
                *(12, f"{name}: entropy as a share of the largest, τ = {where}", f"{low:g} to {high:g}"),
                *([round(x, 2) for x in shares], holds(all(right), in_part=any(right)), note),
            )
        )
    rising = ordered([row["share"] for row in rows], rising=True)
    ends = [rows[0]["share"], by[1.0]["share"], rows[-1]["share"]]
    findings.append(
        Finding(12, "hotter is softer: τ = 0.1, 1 (normal) and 10", "rises", [round(x, 2) for x in ends], holds(rising))
    )
    settings = [{"keys": m, "spread of scores": s, "share of words that fit": _fit(x)} for (m, s), x in every.items()]
    data = {"temperature": rows, "settings": settings}
    return Result("temperature", TITLE, findings, data, __doc__ or "")


def _fit(rows: list[dict[str, Any]]) -> float:
    """How many of the temperatures deserve the names that texts give them, each band counting the same."""
    by = {row["temperature"]: row["share"] for row in rows}
    bands = [[low <= by[t] <= high for t in temperatures] for temperatures, (low, high) in BANDS.values()]
    return float(sum(sum(band) / len(band) for band in bands) / len(bands))


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
    """Both against the temperature, with the bands that the texts name."""
    from limelight.experiments.figures import COLOURS, GREY, new_figure

    figure, axis = new_figure(width=7.0, height=3.8)
    rows = result.data["temperature"]
    t = [row["temperature"] for row in rows]
    for name, style, colour, label in (
        ("largest", "-o", COLOURS[0], "largest weight"),
        ("share", "--s", COLOURS[1], "entropy / largest possible"),
    ):
        spreads = [row[f"{name} spread"] for row in rows]
        axis.errorbar(t, [row[name] for row in rows], spreads, fmt=style, color=colour, label=label)
    for edge in (0.5, 1.0, 2.0):
        axis.axvline(edge, color=GREY, alpha=0.6, linewidth=0.8)
    for middle, name in zip((0.22, 0.71, 1.41, 4.5), BANDS, strict=True):
        axis.text(middle, 1.1, name, ha="center", fontsize=9, style="italic")
    axis.set(xscale="log", xlabel="temperature τ", ylabel="share", ylim=(0, 1.2))
    axis.set_title(f"What texts call it, and what it is ({rows[0]['keys']} keys)")
    axis.set_xticks([0.1, 0.5, 1, 2, 5, 10], ["0.1", "0.5", "1", "2", "5", "10"])
    axis.legend(loc="center right")
    return figure
