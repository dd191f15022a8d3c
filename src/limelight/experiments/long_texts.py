"""Attention in longer and longer texts, with and without a factor of log n: claim 50."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from limelight import weights
from limelight.experiments.findings import EXTRA, Finding, Result, holds, mean_and_spread, rounded
from limelight.experiments.lesson import Lesson

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Longer texts",
    equation="A = softmax(log(n) / log(n₀) · q kᵀ / √d)",
    method=(
        "Among n random keys one matches the query, with a logit of 6 where the others have a spread of 1. Its "
        "weight and the entropy of the row are measured from 16 to 16,384 keys, with plain logits and with logits "
        "multiplied by log n / log 64, which leaves them as they are at n₀ = 64."
    ),
    code="""\
import math, torch, limelight as ll
for n in (64, 1024, 16384):
    q, k = torch.randn(1, 1, 64), torch.randn(1, n, 64)
    k[0, 0] = 48 * q[0, 0] / q.norm() ** 2               # a logit of 6
    for factor in (1.0, math.log(n) / math.log(64)):
        print(n, factor, ll.weights(q, k, scale=factor / 8)[0, 0, 0].item())
""",
)
WIDTH, BASE, MATCH = 64, 64, 6.0
LENGTHS = (16, 64, 256, 1024, 4096, 16384)


def run(quick: bool = False, seed: int = 0) -> Result:
    """Measure the weight of the matching key, and the entropy, against n."""
    draws = 8 if quick else 40
    rows = [_row(n, factor, seed, draws) for n in LENGTHS for factor in ("plain", "log n")]
    by = {(row["keys"], row["logits"]): row for row in rows}
    far = LENGTHS[-1]
    plain, scaled = (by[far, name]["weight"] / by[BASE, name]["weight"] for name in ("plain", "log n"))
    entropies = [by[n, "plain"]["entropy"] for n in (BASE, far)]
    findings = [
        Finding(
            claim=50,
            what=f"plain: weight of the matching key with {far} keys, as a share of that with {BASE}",
            theirs="falls",
            measured=round(plain, 3),
            verdict=holds(plain < 0.5, in_part=plain < 0.9),
            note=f"from {by[BASE, 'plain']['weight']:.2f} to {by[far, 'plain']['weight']:.3f}: the others are many",
        ),
        Finding(
            claim=50,
            what=f"plain: entropy with {BASE} and with {far} keys (nats)",
            theirs="rises",
            measured=rounded(entropies),
            verdict=holds(entropies[1] > 2 * entropies[0], in_part=entropies[1] > entropies[0]),
        ),
        Finding(
            claim=50,
            what="times log n: the same share of the weight of the matching key",
            theirs="at least 1",
            measured=round(scaled, 3),
            verdict=holds(scaled > 0.95, in_part=scaled > 2 * plain),
            note="the logit of the match grows as fast as the logarithm of the number of others",
        ),
        Finding(
            claim=50,
            what="times log n: entropy of a row without any match, as a share of the largest, at both lengths",
            theirs=None,
            measured=rounded([by[n, "log n"]["evenness without a match"] for n in (BASE, far)]),
            verdict=EXTRA,
            note="and what is noise gets sharper, too",
        ),
    ]
    takeaway = (
        f"From {BASE} to {far} keys the matching key's weight falls to {plain:.0%} of what it was; with logits times "
        f"log n it becomes {scaled:.0%}."
    )
    return Result("long-texts", takeaway, findings, {"lengths": rows})


def _row(n: int, logits: str, seed: int, draws: int) -> dict[str, Any]:
    factor = 1.0 if logits == "plain" else math.log(n) / math.log(BASE)
    g = torch.Generator().manual_seed(seed + n)
    weight, entropy, evenness = [], [], []
    for _ in range(draws):
        q, k = torch.randn(1, 1, WIDTH, generator=g), torch.randn(1, n, WIDTH, generator=g)
        scale = factor * WIDTH**-0.5
        evenness.append(float(weights(q, k, scale=scale).entropy().mean()) / math.log(n))
        k[0, 0] = MATCH * WIDTH**0.5 * q[0, 0] / q.norm() ** 2
        A = weights(q, k, scale=scale)
        weight.append(float(A[0, 0, 0]))
        entropy.append(float(A.entropy().mean()))
    row: dict[str, Any] = {"keys": n, "logits": logits, "factor": factor}
    for name, x in (("weight", weight), ("entropy", entropy), ("evenness without a match", evenness)):
        row[name], row[f"{name} spread"] = mean_and_spread(x)
    return row


def draw(result: Result) -> Figure:
    """Draw the weight of the matching key against n."""
    from limelight.experiments.figures import lengths_axis, new_figure, series

    figure, axis = new_figure(height=3.1)
    for n, name in enumerate(("log n", "plain")):
        mine = [row for row in result.data["lengths"] if row["logits"] == name]
        means, spreads = [row["weight"] for row in mine], [row["weight spread"] for row in mine]
        label = "logits × log n / log 64" if name == "log n" else "plain logits"
        series(axis, LENGTHS, means, n, label, spread=spreads)
    axis.set(ylabel="weight of the matching key", ylim=(0, 1.05), title="One match among more and more others")
    lengths_axis(axis, LENGTHS, "keys n")
    axis.legend(loc="lower left")
    return figure
