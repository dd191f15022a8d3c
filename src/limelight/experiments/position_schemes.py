"""Position schemes, and what each makes of order and distance: claim 14."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limelight.experiments.findings import EXTRA, Finding, Result, holds, mean_and_spread, plus_minus, rounded
from limelight.experiments.lesson import Lesson
from limelight.nn import MultiHeadAttention
from limelight.positions import T5, XL, ALiBi, Learned, Positions, Rotary, Sinusoidal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Position schemes",
    equation="attend(P x) = P attend(x) for every permutation P, without positions",
    method=(
        "A random layer reads 128 tokens and the same tokens shuffled, with six position schemes and with none; the "
        "difference between shuffled outputs and outputs of shuffled tokens is measured. Then all tokens are made "
        "equal, so that logits differ by position alone, and their mean is taken for every distance. What a scheme "
        "would learn is drawn at random."
    ),
    code="""\
import torch
from limelight.nn import MultiHeadAttention
from limelight.positions import ALiBi, Positions, Rotary
x, order = torch.randn(1, 9, 32), torch.randperm(9)
for scheme in (Positions(), Rotary(8), ALiBi(4)):
    layer = MultiHeadAttention(32, 4, positions=scheme)
    off = layer(x[:, order]) - layer(x)[:, order]
    print(type(scheme).__name__, off.abs().max())
""",
)
TOKENS, WIDTH, HEADS = 128, 64, 4
RADIUS = 32


def schemes() -> dict[str, Positions]:
    """Make all six schemes, with the numbers that they would learn drawn at random."""
    head = WIDTH // HEADS
    found = {
        "sinusoidal": Sinusoidal(),
        "learned": Learned(TOKENS, WIDTH),
        "rotary": Rotary(head),
        "ALiBi": ALiBi(HEADS),
        "T5": T5(HEADS),
        "Transformer-XL": XL(HEADS, head, WIDTH),
    }
    for scheme in found.values():
        for parameter in scheme.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
    return found


def run(quick: bool = False, seed: int = 0) -> Result:
    """Measure equivariance with and without positions, and logits by distance."""
    seeds = range(seed, seed + (2 if quick else 5))
    errors: dict[str, list[float]] = {}
    logits: dict[str, list[Tensor]] = {}
    for s in seeds:
        torch.manual_seed(s)
        for name, scheme in ({"none": Positions()} | schemes()).items():
            errors.setdefault(name, []).append(_error(scheme))
        for name, scheme in schemes().items():
            logits.setdefault(name, []).append(_logits(scheme))
    by = {name: mean_and_spread(x) for name, x in errors.items()}
    findings = [
        Finding(
            claim=14,
            what="without positions: difference between shuffled outputs and outputs of shuffled tokens",
            theirs=0.0,
            measured=f"{by['none'][0]:.1e}",
            verdict=holds(by["none"][0] < 1e-5),
            note="relative to the outputs",
        )
    ]
    for name, (mean, spread) in list(by.items())[1:]:
        note = f"{plus_minus([spread])} between seeds"
        findings.append(Finding(14, f"{name} breaks it", "above 0", round(mean, 3), holds(mean > 1e-2), note))
    broken = [{"scheme": name, "error": mean, "spread": spread} for name, (mean, spread) in by.items()]
    profiles = {name: torch.stack([_by_distance(x) for x in found]) for name, found in logits.items()}
    rows = [_row(d, profiles) for d in range(-RADIUS, RADIUS + 1)]
    shapes = _shapes(logits, profiles)
    takeaway = (
        f"Without positions, shuffled tokens give shuffled outputs (difference {by['none'][0]:.0e}); every scheme "
        f"breaks that, and these depend on distance alone: {', '.join(shapes[0].measured)}."
    )
    data = {"equivariance": broken, "similarity": rows}
    return Result("positions", takeaway, [*findings, *shapes], data)


def _row(d: int, profiles: dict[str, Tensor]) -> dict[str, Any]:
    row: dict[str, Any] = {"distance": d}
    for name, x in profiles.items():
        row[name], row[f"{name} spread"] = mean_and_spread(x[:, d + RADIUS].tolist())
    return row


def _shapes(logits: dict[str, list[Tensor]], profiles: dict[str, Tensor]) -> list[Finding]:
    """Describe the logits of equal tokens in numbers, scheme by scheme."""
    by_distance = [name for name, found in logits.items() if max(map(_along, found)) < 1e-4]
    distance = torch.arange(-RADIUS, RADIUS + 1).abs()
    alibi, t5, rotary = (profiles[name][0] for name in ("ALiBi", "T5", "rotary"))
    slope = float(alibi[RADIUS + 1] - alibi[RADIUS])
    bent = float((alibi - alibi[RADIUS] - slope * distance).abs().max())
    learned = profiles["learned"].mean(0)[distance > 0]
    falls = rounded(profiles["sinusoidal"].mean(0)[[RADIUS + d for d in (0, 1, 4, 16)]].tolist())
    described = (
        ("logits of equal tokens depend on key − query alone", by_distance, "to four digits"),
        ("sinusoidal: logit at distance 0, 1, 4, 16", falls, "near positions are alike"),
        ("learned: spread of the logit between distances", round(float(learned.std()), 3), "before any training"),
        ("rotary: the largest logit is at distance", int(rotary.argmax()) - RADIUS, "it oscillates with distance"),
        ("ALiBi: slope of the first head, and how far from a line", rounded([slope, bent], 4), "farther is less"),
        (
            f"T5: different logits at {len(t5)} distances",
            len({round(float(x), 4) for x in t5}),
            "far ones share buckets",
        ),
    )
    return [Finding(14, what, None, measured, EXTRA, note) for what, measured, note in described]


def _layer(scheme: Positions) -> MultiHeadAttention:
    return MultiHeadAttention(WIDTH, HEADS, positions=scheme)


def _error(scheme: Positions) -> float:
    """Compute |attend(shuffled) − shuffled(attend)| / |attend|."""
    layer = _layer(scheme)
    x, order = torch.randn(1, TOKENS, WIDTH), torch.randperm(TOKENS)
    with torch.no_grad():
        y, shuffled = (layer(scheme.embed(z)) for z in (x, x[:, order]))
    return float((shuffled - y[:, order]).norm() / y.norm())


def _logits(scheme: Positions) -> Tensor:
    """Return the logits ``(N, N)`` of the first head for equal tokens."""
    layer = _layer(scheme)
    x = torch.randn(1, 1, WIDTH).expand(1, TOKENS, WIDTH)
    with torch.no_grad():
        for projection in (layer.query, layer.key):  # identities, so that only the scheme shows
            torch.nn.init.eye_(projection.weight)
            torch.nn.init.zeros_(projection.bias)
        A = layer.weights(scheme.embed(x))
        return (A.dense().log() + A.logsumexp()[..., None])[0, 0]


def _by_distance(logits: Tensor) -> Tensor:
    """Average each diagonal, less the mean of all, for key − query from −RADIUS to RADIUS."""
    found = torch.stack([logits.diagonal(d).mean() for d in range(-RADIUS, RADIUS + 1)])
    return found - found.mean()


def _along(logits: Tensor) -> float:
    """Return the variation of logits at the same distance, as a share of their whole variation."""
    within = max(float(logits.diagonal(d).std()) for d in range(-RADIUS, RADIUS + 1))
    return within / float(logits.std())


def draw(result: Result) -> Figure:
    """Draw the logit by distance, a panel for each scheme."""
    from limelight.experiments.figures import COLOURS, GREY, new_figure

    figure, axes = new_figure(3, 2, height=1.7)
    rows: list[dict[str, Any]] = result.data["similarity"]
    distances = [row["distance"] for row in rows]
    for axis, name, colour in zip(axes.flat, schemes(), COLOURS, strict=False):
        means, spreads = [row[name] for row in rows], [row[f"{name} spread"] for row in rows]
        axis.plot(distances, means, color=colour)
        low, high = ([m + sign * s for m, s in zip(means, spreads, strict=True)] for sign in (-1, 1))
        axis.fill_between(distances, low, high, color=colour, alpha=0.25, linewidth=0)
        axis.axvline(0, color=GREY, alpha=0.6, linewidth=0.8)
        axis.set_title(name + ("*" if name in ("learned", "T5", "Transformer-XL") else ""))
    figure.supxlabel("key − query (positions);  * drawn at random", fontsize=10.5)
    figure.supylabel("logit of equal tokens", fontsize=10.5)
    return figure
