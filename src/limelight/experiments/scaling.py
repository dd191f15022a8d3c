"""Division of the scores by √d: claims 8 to 11."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from limelight import attention, trace, weights
from limelight.experiments.findings import (
    CORRECTED,
    EXTRA,
    Finding,
    Result,
    holds,
    judge,
    mean_and_spread,
    ordered,
    plus_minus,
    rounded,
)
from limelight.experiments.lesson import Lesson

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Scaling by √d",
    equation="Var(q · k) = d,  so  A = softmax(q kᵀ / √d)",
    method=(
        "Queries and keys are drawn with unit variance for seven widths. The variance of the scores, the entropy of "
        "the weights and the gradient that reaches q and k are measured with and without the division by √d. The "
        "texts give entropies and no number of keys, so every number from 10 to 30 is tried, and the share of them "
        "that fits is told. The texts' example of a softmax is worked out."
    ),
    code="""\
import torch, limelight as ll
for d in (8, 64, 512):
    q, k = torch.randn(2, 1, 20, d)
    scaled, unscaled = ll.weights(q, k), ll.weights(q, k, scale=1.0)
    print(d, scaled.entropy().mean(), unscaled.entropy().mean())
print(torch.tensor([25.3, 2.1, -18.7, 31.2]).div(8).softmax(-1))
""",
)
WIDTHS = (8, 16, 32, 64, 128, 256, 512)
ENTROPIES = {
    8: (1.50, 2.65),
    32: (0.51, 2.55),
    64: (0.42, 2.54),
    128: (0.25, 2.51),
    256: (0.13, 2.54),
    512: (0.07, 2.56),
}
RANGES = {16: 8, 64: 16, 256: 32, 512: 45}
LOGITS, PRINTED = (25.3, 2.1, -18.7, 31.2), ((0.003, 0.0, 0.0, 0.997), (0.21, 0.11, 0.01, 0.47))
BOTH = ("unscaled", "scaled")
VALUES = 16  # width of the values, which the claims do not depend on


def run(quick: bool = False, seed: int = 0) -> Result:
    """Measure variances, entropies, the texts' example of a softmax, and gradients."""
    seeds = range(seed, seed + (3 if quick else 8))
    variance = [_variance(d, seeds) for d in WIDTHS]
    keys, fitting, entropy = _entropies(seed, draws=60 if quick else 200)
    gradient = [_gradient(d, keys, seeds) for d in WIDTHS]
    example = _example()
    data = {"variance": variance, "entropy": entropy, "gradient": gradient, "softmax": example}
    found = [
        *_judge_variance(variance),
        *_judge_entropy(entropy, fitting),
        *_judge_example(example),
        *_judge_gradient(gradient),
    ]
    last = entropy[-1]
    takeaway = (
        f"Scores grow with √d; undivided, the weights of width {last['width']} have an entropy of "
        f"{last['unscaled']:.2f} nats instead of {last['scaled']:.2f}: one key takes all, and a typical query gets "
        "hardly any gradient."
    )
    return Result("scaling", takeaway, found, data)


def _draws(d: int, seed: int, count: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw queries and keys of ``count`` texts of n tokens."""
    q, k = torch.randn(2, count, n, d, generator=torch.Generator().manual_seed(1000 * seed + d))
    return q, k


def _scales(d: int) -> dict[str, float]:
    return {"unscaled": 1.0, "scaled": d**-0.5}


def _variance(d: int, seeds: Any) -> dict[str, Any]:
    """Measure the variance of the logits, how many scores lie within ±2√d, and how even the weights are."""
    row: dict[str, Any] = {"width": d}
    measured: dict[str, list[float]] = {}
    for s in seeds:
        q, k = _draws(d, s, 1, 400)
        for name, scale in {**_scales(d), "by d": 1 / d}.items():
            steps = trace(q, k, k, scale=scale)
            measured.setdefault(f"variance {name}", []).append(float(steps.scaled.var()))
            share = weights(q, k, scale=scale).entropy().mean() / math.log(400)
            measured.setdefault(f"evenness {name}", []).append(float(share))
        inside = trace(q, k, k, scale=1.0).scores.abs() <= 2 * d**0.5
        measured.setdefault("within 2√d", []).append(float(inside.float().mean()))
    for name, numbers in measured.items():
        row[name], row[f"{name} spread"] = mean_and_spread(numbers)
    return row


def _judge_variance(rows: list[dict[str, Any]]) -> list[Finding]:
    by = {row["width"]: row for row in rows}
    variances = [by[d]["variance unscaled"] for d in RANGES]
    ranges = [2 * x**0.5 for x in variances]
    rising = ordered(variances, rising=True)
    inside = [by[d]["within 2√d"] for d in RANGES]
    one = [row["variance scaled"] for row in rows]
    flat, even = by[512]["variance by d"], by[512]["evenness by d"]
    near = all(abs(x / d - 1) < 0.05 for x, d in zip(variances, RANGES, strict=True))
    return [
        Finding(
            claim=8,
            what="Var(q·k), for d = 16, 64, 256, 512",
            theirs=list(RANGES),
            measured=rounded(variances, 1),
            verdict=holds(near, in_part=rising),
            note=f"{plus_minus([by[d]['variance unscaled spread'] for d in RANGES])} between seeds",
        ),
        Finding(
            claim=8,
            what="typical range ±2σ, the same widths",
            theirs=list(RANGES.values()),
            measured=rounded(ranges, 1),
            verdict=judge(list(RANGES.values()), ranges, 1.0, same_way=rising),
            note=f"{', '.join(f'{x:.1%}' for x in inside)} of the scores are within ±2√d",
        ),
        Finding(
            claim=8,
            what="variance after division by √d, least and most over all widths",
            theirs=[1, 1],
            measured=rounded([min(one), max(one)], 3),
            verdict=holds(all(abs(x - 1) < 0.05 for x in one)),
        ),
        Finding(
            claim=8,
            what="variance after division by d, d = 512",
            theirs=round(1 / 512, 5),
            measured=round(flat, 5),
            verdict=judge(1 / 512, flat, 1e-4, same_way=False),
        ),
        Finding(
            claim=8,
            what="so attention is too flat: entropy as a share of that of equal weights, by d and by √d",
            theirs="near 1",
            measured=rounded([even, by[512]["evenness scaled"]], 4),
            verdict=holds(even > 0.99),
            note="d = 512, 400 keys",
        ),
    ]


def _entropies(seed: int, draws: int) -> tuple[int, dict[str, float], list[dict[str, Any]]]:
    """Find the number of keys that fits the texts' entropies best, and the share of numbers that fits at all.

    A draw is one text of m tokens, each with a query and a key; its entropy is the mean over the queries. The spread is
    that between draws, of which a text shows one.
    """

    def measure(d: int, m: int) -> dict[str, Any]:
        q, k = _draws(d, seed, draws, m)
        row: dict[str, Any] = {"width": d, "keys": m}
        for name, scale in _scales(d).items():
            found = weights(q, k, scale=scale).entropy().mean(-1)
            row[name], row[f"{name} spread"] = mean_and_spread(found.tolist())
        return row

    tried = {keys: [measure(d, keys) for d in ENTROPIES] for keys in range(10, 31)}
    best = min(tried, key=lambda keys: sum(_deviation(row, name) ** 2 for row in tried[keys] for name in BOTH))
    fitting = {name: sum(_fits(rows, name) for rows in tried.values()) / len(tried) for name in BOTH}
    return best, fitting, [measure(d, best) for d in WIDTHS]


def _deviation(row: dict[str, Any], name: str) -> float:
    """Count the spreads between the texts' entropy and the mean of the draws."""
    return float((ENTROPIES[row["width"]][BOTH.index(name)] - row[name]) / row[f"{name} spread"])


def _fits(rows: list[dict[str, Any]], name: str) -> bool:
    """Return whether the texts' entropies could be random draws: within √2 spreads on average, and 3 at most."""
    off = [_deviation(row, name) for row in rows if row["width"] in ENTROPIES]
    return sum(x * x for x in off) / len(off) <= 2 and max(map(abs, off)) <= 3


def _judge_entropy(rows: list[dict[str, Any]], fitting: dict[str, float]) -> list[Finding]:
    by = {row["width"]: row for row in rows}
    findings = []
    for n, name in enumerate(BOTH):
        measured = rounded([by[d][name] for d in ENTROPIES])
        falls = ordered(measured, rising=False) if name == "unscaled" else max(measured) - min(measured) < 0.2
        spread = plus_minus([by[d][f"{name} spread"] for d in ENTROPIES])
        below = sum(_deviation(by[d], name) < 0 for d in ENTROPIES)
        findings.append(
            Finding(
                claim=9,
                what=f"entropy, {name}, for d = {', '.join(map(str, ENTROPIES))}",
                theirs=[x[n] for x in ENTROPIES.values()],
                measured=measured,
                verdict=holds(_fits(rows, name), in_part=falls),
                note=(
                    f"{spread} between draws of {rows[0]['keys']} tokens, the number that fits best; "
                    f"{fitting[name]:.0%} of the numbers from 10 to 30 fit; the texts lie below the mean at {below} "
                    f"of {len(ENTROPIES)} widths"
                ),
            )
        )
    return findings


def _example() -> list[dict[str, Any]]:
    k = torch.tensor(LOGITS, dtype=torch.float64)[None, :, None]
    rows = []
    for name, scale in (("as they are", 1.0), ("divided by √64", 0.125)):
        row = weights(torch.ones(1, 1, 1, dtype=torch.float64), k, scale=scale).dense()[0, 0]
        rows.append({"logits": name, **{f"weight {n}": x for n, x in enumerate(row.tolist())}})
    return rows


def _judge_example(rows: list[dict[str, Any]]) -> list[Finding]:
    findings = []
    for row, printed in zip(rows, PRINTED, strict=True):
        measured = [round(row[f"weight {n}"], 3) for n in range(4)]
        verdict = judge(printed, measured, 5e-4, same_way=False)
        note = "" if verdict != CORRECTED else f"what is printed sums to {sum(printed):.2f}, and a softmax to 1"
        findings.append(
            Finding(10, f"softmax of 25.3, 2.1, −18.7, 31.2 {row['logits']}", list(printed), measured, verdict, note)
        )
    return findings


def _gradient(d: int, n: int, seeds: Any) -> dict[str, Any]:
    """Measure the gradient of a random projection of the output at the q and k of a token: its median and mean."""
    measured: dict[str, list[float]] = {}
    for s in seeds:
        q, k = _draws(d, s, 50, n)
        v, u = torch.randn(2, 50, n, VALUES, generator=torch.Generator().manual_seed(s))
        for name, scale in _scales(d).items():
            a, b = q.clone().requires_grad_(), k.clone().requires_grad_()
            (attention(a, b, v, scale=scale) * u).sum().backward()
            for side, x in (("q", a), ("k", b)):
                assert x.grad is not None
                norms = x.grad.norm(dim=-1)
                measured.setdefault(f"typical {side} {name}", []).append(float(norms.median()))
                measured.setdefault(f"mean {side} {name}", []).append(float(norms.mean()))
    row: dict[str, Any] = {"width": d}
    for name, numbers in measured.items():
        row[name], row[f"{name} spread"] = mean_and_spread(numbers)
    return row


def _judge_gradient(rows: list[dict[str, Any]]) -> list[Finding]:
    def change(of: str) -> list[float]:
        return [float(rows[-1][f"{of} {name}"] / rows[0][f"{of} {name}"]) for name in BOTH]

    findings = []
    for side in ("q", "k"):
        unscaled, scaled = change(f"typical {side}")
        findings.append(
            Finding(
                claim=11,
                what=f"gradient that reaches {side}, d = 512 / d = 8: unscaled, scaled",
                theirs="near 0, near 1",
                measured=rounded([unscaled, scaled], 3),
                verdict=holds(unscaled < 0.2 and 0.5 < scaled < 2, in_part=unscaled < 0.6 * scaled),
                note="of a typical token: the median" + ("; a key hears from many queries" if side == "k" else ""),
            )
        )
    findings.append(
        Finding(
            claim=11,
            what="the mean over tokens, instead of the median: q unscaled, scaled; k unscaled, scaled",
            theirs=None,
            measured=rounded([x for side in ("q", "k") for x in change(f"mean {side}")]),
            verdict=EXTRA,
            note="a few tokens whose weights are nearly a tie get most of it, the more so the larger d is",
        )
    )
    return findings


def draw(result: Result) -> Figure:
    """Draw the entropy, and the gradients, against the width, scaled and not."""
    from limelight.experiments.figures import COLOURS, lengths_axis, new_figure, series

    figure, (upper, lower) = new_figure(2, 1, height=3.1)
    rows, gradient = result.data["entropy"], result.data["gradient"]
    for n, name in enumerate(("scaled", "unscaled")):
        series(upper, WIDTHS, [row[name] for row in rows], n, name, spread=[row[f"{name} spread"] for row in rows])
        theirs = [x[BOTH.index(name)] for x in ENTROPIES.values()]
        upper.scatter(list(ENTROPIES), theirs, s=55, marker="x", color=COLOURS[n], zorder=3, label=f"texts, {name}")
        for m, side in enumerate(("q", "k")):
            series(lower, WIDTHS, [row[f"typical {side} {name}"] for row in gradient], n + 2 * m, f"{side}, {name}")
    upper.set(ylabel="entropy (nats)", title=f"Unscaled weights collapse ({rows[0]['keys']} keys)")
    upper.legend(loc="center right", bbox_to_anchor=(1.0, 0.55))
    lower.set(yscale="log", ylabel="norm of the gradient", title="What reaches a typical token's q and k")
    lower.legend(loc="lower left")
    for axis in (upper, lower):
        lengths_axis(axis, WIDTHS, "width d")
    return figure
