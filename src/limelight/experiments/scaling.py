"""Why scores are divided by √d: claims 8 to 11.

For queries and keys of unit variance the score q·k has variance d, so that texts expect it within ±2√d; divided by √d
its variance is 1, divided by d it is 1/d, and the weights are nearly equal. Without scaling the softmax saturates as d
grows: its entropy falls, from 1.50 for d = 8 to 0.07 for 512 in the texts, and the gradient that reaches q and k
vanishes. Measured on normal numbers, in many draws of a text whose number of tokens is the one that fits the texts'
entropies best. The texts' example of a softmax is worked out, too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from limelight.experiments.findings import (
    BESIDE,
    CORRECTED,
    Finding,
    Result,
    holds,
    judge,
    mean_and_spread,
    ordered,
    plus_minus,
)
from limelight.functional import attention, weights
from limelight.matrix.steps import trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Scaling by √d"
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
VALUES = 16  # the width of the values, which is not what is asked about


def run(quick: bool = False, seed: int = 0) -> Result:
    """Variances, entropies, the texts' example of a softmax, and gradients."""
    seeds = range(seed, seed + (3 if quick else 8))
    variance = [_variance(d, seeds) for d in WIDTHS]
    keys, entropy = _entropies(seed, draws=100 if quick else 200)
    gradient = [_gradient(d, keys, seeds) for d in WIDTHS]
    example = _example()
    bars = _bars(seed, keys)
    data = {"variance": variance, "entropy": entropy, "gradient": gradient, "softmax": example, "weights": bars}
    found = [*_of_variance(variance), *_of_entropy(entropy), *_of_example(example), *_of_gradient(gradient)]
    return Result("scaling", TITLE, found, data, __doc__ or "")


def _draws(d: int, seed: int, count: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys of texts of n tokens."""
    q, k = torch.randn(2, count, n, d, generator=torch.Generator().manual_seed(1000 * seed + d))
    return q, k


def _scales(d: int) -> dict[str, float]:
    return {"unscaled": 1.0, "scaled": d**-0.5}


def _variance(d: int, seeds: Any) -> dict[str, Any]:
    """Of the logits, with each of the scalings; how many scores lie within ±2√d; and how even the weights become."""
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


def _of_variance(rows: list[dict[str, Any]]) -> list[Finding]:
    by = {row["width"]: row for row in rows}
    variances = [by[d]["variance unscaled"] for d in RANGES]
    ranges = [2 * x**0.5 for x in variances]
    rising = ordered(variances, rising=True)
    inside = [by[d]["within 2√d"] for d in RANGES]
    one = [row["variance scaled"] for row in rows]
    flat, even = by[512]["variance by d"], by[512]["evenness by d"]
    spread = plus_minus([by[d]["variance unscaled spread"] for d in RANGES])
    return [
        Finding(
            *(8, "Var(q·k), for d = 16, 64, 256, 512", list(RANGES), [round(x, 1) for x in variances]),
            holds(all(abs(x / d - 1) < 0.05 for x, d in zip(variances, RANGES, strict=True)), in_part=rising),
            f"{spread} between seeds",
        ),
        Finding(
            *(8, "typical range ±2σ, the same widths", list(RANGES.values()), [round(x, 1) for x in ranges]),
            judge(list(RANGES.values()), ranges, 1.0, same_way=rising),
            f"{', '.join(f'{x:.1%}' for x in inside)} of the scores are within ±2√d",
        ),
        Finding(
            *(8, "variance after division by √d, least and most over all widths", [1, 1]),
            *([round(min(one), 3), round(max(one), 3)], holds(all(abs(x - 1) < 0.05 for x in one))),
        ),
        Finding(
            *(8, "variance after division by d, d = 512", round(1 / 512, 5), round(flat, 5)),
            judge(1 / 512, flat, 1e-4, same_way=False),
        ),
        Finding(
            *(8, "so attention is too flat: entropy as a share of that of equal weights, by d and by √d", "near 1"),
            *([round(even, 4), round(by[512]["evenness scaled"], 4)], holds(even > 0.99), "d = 512, 400 keys"),
        ),
    ]


def _entropies(seed: int, draws: int) -> tuple[int, list[dict[str, Any]]]:
    """For the number of tokens that fits the texts' numbers best, which they do not give.

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

    def misfit(m: int) -> float:
        return sum(_deviation(measure(d, m), name) ** 2 for d in ENTROPIES for name in BOTH)

    best = min(range(10, 31), key=misfit)
    return best, [measure(d, best) for d in WIDTHS]


def _deviation(row: dict[str, Any], name: str) -> float:
    """How many spreads lie between the texts' entropy and the mean of the draws."""
    return float((ENTROPIES[row["width"]][BOTH.index(name)] - row[name]) / row[f"{name} spread"])


def _of_entropy(rows: list[dict[str, Any]]) -> list[Finding]:
    by = {row["width"]: row for row in rows}
    findings = []
    for n, name in enumerate(BOTH):
        theirs, measured = [x[n] for x in ENTROPIES.values()], [round(by[d][name], 2) for d in ENTROPIES]
        off = [_deviation(by[d], name) for d in ENTROPIES]
        near = sum(x * x for x in off) / len(off) <= 2 and max(map(abs, off)) <= 3
        falls = ordered(measured, rising=False) if name == "unscaled" else max(measured) - min(measured) < 0.2
        spread = plus_minus([by[d][f"{name} spread"] for d in ENTROPIES])
        note = f"{spread} between draws of {rows[0]['keys']} tokens, the number that fits best"
        if name == "unscaled":
            note += f"; the texts lie below the mean at {sum(x < 0 for x in off)} of {len(off)} widths"
        what = f"entropy, {name}, for d = {', '.join(map(str, ENTROPIES))}"
        findings.append(Finding(9, what, theirs, measured, holds(near, in_part=falls), note))
    return findings


def _example() -> list[dict[str, Any]]:
    k = torch.tensor(LOGITS, dtype=torch.float64)[None, :, None]
    rows = []
    for name, scale in (("as they are", 1.0), ("divided by √64", 0.125)):
        row = weights(torch.ones(1, 1, 1, dtype=torch.float64), k, scale=scale).dense()[0, 0]
        rows.append({"logits": name, **{f"weight {n}": x for n, x in enumerate(row.tolist())}})
    return rows


def _of_example(rows: list[dict[str, Any]]) -> list[Finding]:
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
    """Of a random projection of the output, as it reaches the q and the k of a token: the median one, and the mean."""
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


def _of_gradient(rows: list[dict[str, Any]]) -> list[Finding]:
    def change(of: str) -> list[float]:
        return [float(rows[-1][f"{of} {name}"] / rows[0][f"{of} {name}"]) for name in BOTH]

    findings = []
    for side in ("q", "k"):
        unscaled, scaled = change(f"typical {side}")
        findings.append(
            Finding(
                *(11, f"gradient that reaches {side}, d = 512 / d = 8: unscaled, scaled", "near 0, near 1"),
                [round(unscaled, 3), round(scaled, 3)],
                holds(unscaled < 0.2 and 0.5 < scaled < 2, in_part=unscaled < 0.6 * scaled),
                "of a typical token: the median" + ("; a key hears of many queries" if side == "k" else ""),
            )
        )
    means = [round(x, 2) for side in ("q", "k") for x in change(f"mean {side}")]
    findings.append(
        Finding(
            *(11, "the mean over tokens, instead of the median: q unscaled, scaled; k unscaled, scaled", None, means),
            *(BESIDE, "a few tokens whose weights are nearly a tie get most of it, the more so the larger d is"),
        )
    )
    return findings


def _bars(seed: int, keys: int) -> list[dict[str, Any]]:
    q, k = _draws(256, seed, 1, keys)
    both = {name: weights(q, k, scale=scale).dense()[0, 0].tolist() for name, scale in _scales(256).items()}
    return [{"key": n, **{name: x[n] for name, x in both.items()}} for n in range(keys)]


def draw(result: Result) -> Figure:
    """Entropy against width, scaled and not; the weights of one query at width 256; and the gradients."""
    from limelight.experiments.figures import COLOURS, bars, lengths_axis, new_figure

    figure, (left, middle, right) = new_figure(1, 3, width=4.8, height=3.8)
    rows = result.data["entropy"]
    looks = (("unscaled", COLOURS[1], "--s", "+"), ("scaled", COLOURS[0], "-o", "x"))
    for n, (name, colour, style, mark) in zip((0, 1), looks, strict=True):
        means, spreads = [row[name] for row in rows], [row[f"{name} spread"] for row in rows]
        left.errorbar(WIDTHS, means, spreads, fmt=style, color=colour, label=f"{name}, ± σ", zorder=1)
        theirs = [x[n] for x in ENTROPIES.values()]
        label = f"texts, {name}"
        left.scatter(list(ENTROPIES), theirs, s=60, marker=mark, color=colour, label=label, zorder=3)
    left.set(ylabel="entropy of the weights (nats)", title=f"Unscaled weights collapse ({rows[0]['keys']} keys)")
    lengths_axis(left, WIDTHS, "width d")
    left.legend(loc="center right", bbox_to_anchor=(1.0, 0.6))
    found = result.data["weights"]
    bars(middle, [row["key"] for row in found], {name: [row[name] for row in found] for name in ("scaled", "unscaled")})
    middle.set(xlabel="key", ylabel="weight", title="The weights of one query at width 256")
    middle.tick_params(axis="x", labelsize=7)
    middle.legend()
    gradient = result.data["gradient"]
    for side, line in (("q", "-"), ("k", ":")):
        for name, colour, style, _ in looks:
            marker, means = style[-1], [row[f"typical {side} {name}"] for row in gradient]
            right.plot(WIDTHS, means, line + marker, color=colour, label=f"{side}, {name}")
    right.set(yscale="log", ylabel="norm of the gradient", title="What reaches a typical token's q and k")
    lengths_axis(right, WIDTHS, "width d")
    right.legend(loc="center left")
    return figure
