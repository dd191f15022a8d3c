"""Why scores are divided by √d: claims 8 to 11.

For queries and keys of unit variance the score q·k has variance d, so that without scaling the softmax saturates as d
grows: its entropy falls to 0, and little gradient passes through it. Measured on normal numbers, with several seeds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from limelight.experiments.findings import (
    CORRECTED,
    DIRECTION,
    REPRODUCED,
    Finding,
    Result,
    holds,
    judge,
    mean_and_spread,
    ordered,
    plus_minus,
)
from limelight.functional import attention, weights

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


def run(quick: bool = False, seed: int = 0) -> Result:
    """Variances, entropies, the texts' example of a softmax, and gradients."""
    seeds = range(seed, seed + (3 if quick else 8))
    variance = [_variance(d, seeds) for d in WIDTHS]
    keys, entropy = _entropies(seeds, quick)
    gradient = [_gradient(d, seeds, keys) for d in WIDTHS]
    example = _example()
    data = {
        "variance": variance,
        "entropy": entropy,
        "gradient": gradient,
        "softmax": example,
        "weights": _bars(seed, keys),
    }
    findings = [*_of_variance(variance), *_of_entropy(entropy, keys), *_of_example(example), _of_gradient(gradient)]
    return Result("scaling", TITLE, findings, data, __doc__ or "")


def _pair(d: int, seed: int, n: int, m: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1000 * seed + d)
    return torch.randn(1, n, d, generator=g), torch.randn(1, m, d, generator=g)


def _variance(d: int, seeds: Any) -> dict[str, Any]:
    found = [(q @ k.mT).var().item() for q, k in (_pair(d, s, 400, 400) for s in seeds)]
    mean, spread = mean_and_spread(found)
    return {"width": d, "variance": mean, "spread": spread, "by √d": mean / d, "by d": mean / d**2, "2σ": 2 * mean**0.5}


def _of_variance(rows: list[dict[str, Any]]) -> list[Finding]:
    by = {row["width"]: row for row in rows}
    measured = {d: round(by[d]["2σ"], 1) for d in RANGES}
    close = all(abs(by[d]["variance"] / d - 1) < 0.05 for d in by)
    mean, spread = mean_and_spread([row["by √d"] for row in rows])
    return [
        Finding(8, "Var(q·k) / d", 1.0, round(mean, 3), holds(close), f"{plus_minus([spread])} between widths"),
        Finding(
            8,
            "typical range ±2√d",
            list(RANGES.values()),
            list(measured.values()),
            judge(list(RANGES.values()), list(measured.values()), 1.0, same_way=True),
            "for d = 16, 64, 256, 512",
        ),
        Finding(
            8,
            "variance of scores / d, d = 512",
            1 / 512,
            round(by[512]["by d"], 5),
            judge(1 / 512, by[512]["by d"], 2e-4, same_way=True),
            "so flat that the weights are nearly equal",
        ),
    ]


def _entropies(seeds: Any, quick: bool) -> tuple[int, list[dict[str, Any]]]:
    """For the number of tokens that fits the texts' numbers best, which they do not give.

    A draw is one text of m tokens, each with a query and a key; its entropy is the mean over the queries. The spread is
    that between draws, of which a text shows one.
    """
    draws = 20 if quick else 60

    def measure(d: int, m: int) -> dict[str, Any]:
        g = torch.Generator().manual_seed(1000 * seeds[0] + d)
        q, k = torch.randn(2, draws, m, d, generator=g)
        both = {}
        for name, scale in (("unscaled", 1.0), ("scaled", d**-0.5)):
            found = weights(q, k, scale=scale).entropy().mean(-1)
            both[name], both[f"{name} spread"] = mean_and_spread(found.tolist())
        return {"width": d, "keys": m, **both}

    def misfit(m: int) -> float:
        return sum(_deviation(measure(d, m), name) ** 2 for d in ENTROPIES for name in ("unscaled", "scaled"))

    best = min(range(10, 31, 2 if quick else 1), key=misfit)
    return best, [measure(d, best) for d in WIDTHS]


def _deviation(row: dict[str, Any], name: str) -> float:
    """How many spreads lie between the texts' entropy and the mean of the draws."""
    theirs = ENTROPIES[row["width"]][0 if name == "unscaled" else 1]
    return float(abs(theirs - row[name]) / row[f"{name} spread"])


def _of_entropy(rows: list[dict[str, Any]], keys: int) -> list[Finding]:
    by = {row["width"]: row for row in rows}
    findings = []
    for n, name in enumerate(("unscaled", "scaled")):
        theirs, measured = [x[n] for x in ENTROPIES.values()], [round(by[d][name], 2) for d in ENTROPIES]
        falls = ordered(measured, rising=False) if name == "unscaled" else max(measured) - min(measured) < 0.2
        spread = plus_minus([by[d][f"{name} spread"] for d in ENTROPIES])
        note = f"widths {', '.join(map(str, ENTROPIES))}; {spread} between draws of {keys} tokens, which fit best"
        near = all(_deviation(by[d], name) <= 2 for d in ENTROPIES)
        verdict = REPRODUCED if near else DIRECTION if falls else CORRECTED
        findings.append(Finding(9, f"entropy, {name}", theirs, measured, verdict, note))
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


def _gradient(d: int, seeds: Any, keys: int) -> dict[str, Any]:
    """The gradient of a random projection of the output, as it reaches q and k, by the size of what it changes."""
    row: dict[str, Any] = {"width": d}
    for name, scale in (("unscaled", 1.0), ("scaled", d**-0.5)):
        found: dict[str, list[float]] = {"q": [], "k": []}
        for s in seeds:
            q, k = (x.requires_grad_() for x in _pair(d, s, 200, keys))
            g = torch.Generator().manual_seed(s)
            v, u = torch.randn(1, keys, d, generator=g), torch.randn(1, 200, d, generator=g)
            (attention(q, k, v, scale=scale) * u).sum().backward()
            for side, x in (("q", q), ("k", k)):
                assert x.grad is not None
                # To change every score by one unit of its spread takes a step of 1 / (scale √d) in q.
                found[side].append(float(x.grad.norm(dim=-1).median()) / (scale * d**0.5))
        for side, numbers in found.items():
            row[f"{side} {name}"], row[f"{side} {name} spread"] = mean_and_spread(numbers)
    return row


def _of_gradient(rows: list[dict[str, Any]]) -> Finding:
    first, last = rows[0], rows[-1]
    fall = {name: last[f"q {name}"] / first[f"q {name}"] for name in ("unscaled", "scaled")}
    relative = fall["unscaled"] / fall["scaled"]
    return Finding(
        11,
        "gradient that reaches q: d = 512 as a share of d = 8, unscaled / scaled",
        "vanishes / does not",
        [round(x, 4) for x in fall.values()],
        holds(relative < 0.2),
        "the median over queries, in units of the scores",
    )


def _bars(seed: int, keys: int) -> list[dict[str, Any]]:
    q, k = _pair(256, seed, 1, keys)
    both = {
        name: weights(q, k, scale=scale).dense()[0, 0].tolist()
        for name, scale in (("unscaled", 1.0), ("scaled", 0.0625))
    }
    return [{"key": n, **{name: x[n] for name, x in both.items()}} for n in range(keys)]


def draw(result: Result) -> Figure:
    """Entropy against width, scaled and not; and the weights of one query at width 256."""
    from limelight.experiments.figures import COLOURS, bars, lengths_axis, new_figure

    figure, (left, right) = new_figure(1, 2, width=5.0)
    rows = result.data["entropy"]
    for name, colour, style in (("unscaled", COLOURS[1], "--s"), ("scaled", COLOURS[0], "-o")):
        widths, means = [row["width"] for row in rows], [row[name] for row in rows]
        left.errorbar(
            widths, means, [row[f"{name} spread"] for row in rows], fmt=style, color=colour, label=f"measured, {name}"
        )
    for n, (name, colour) in enumerate((("unscaled", COLOURS[1]), ("scaled", COLOURS[0]))):
        left.scatter(
            list(ENTROPIES),
            [x[n] for x in ENTROPIES.values()],
            marker="x",
            color=colour,
            label=f"texts, {name}",
            zorder=3,
        )
    left.set(ylabel="entropy of the weights (nats)", title=f"Unscaled weights collapse ({rows[0]['keys']} keys)")
    lengths_axis(left, WIDTHS, "width d")
    left.legend(loc="center right", bbox_to_anchor=(1.0, 0.6))
    weights = result.data["weights"]
    series = {name: [row[name] for row in weights] for name in ("scaled", "unscaled")}
    bars(right, [row["key"] for row in weights], series)
    right.set(xlabel="key", ylabel="weight", title="The weights of one query at width 256")
    right.legend()
    return figure
