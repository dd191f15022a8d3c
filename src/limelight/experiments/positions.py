"""Order: claim 14.

Without positions, attention is permutation equivariant: shuffle the tokens, and the outputs shuffle with them. Every
scheme breaks that: sinusoidal (the original Transformer), learned (BERT, GPT), rotary (LLaMA, GPT-NeoX), ALiBi (BLOOM)
and relative ones (T5, Transformer-XL). Each makes similarity depend on distance in its own way, which is seen on equal
tokens, whose logits differ by position alone. What a scheme would learn is drawn at random here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limelight.experiments.findings import BESIDE, Finding, Result, holds, mean_and_spread, plus_minus
from limelight.nn import MultiHeadAttention
from limelight.nn.positions import T5, XL, ALiBi, Learned, Positions, Rotary, Sinusoidal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Positions"
TOKENS, WIDTH, HEADS = 128, 64, 4
RADIUS = 32


def schemes() -> dict[str, Positions]:
    """All six, with the numbers that they would learn drawn at random."""
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
    """Equivariance with and without positions, and logits by distance."""
    seeds = range(seed, seed + (2 if quick else 5))
    errors: dict[str, list[float]] = {}
    logits: dict[str, list[Tensor]] = {}
    for s in seeds:
        torch.manual_seed(s)
        for name, scheme in {"none": Positions(), **schemes()}.items():
            errors.setdefault(name, []).append(_error(scheme))
        for name, scheme in schemes().items():
            logits.setdefault(name, []).append(_logits(scheme))
    by = {name: mean_and_spread(x) for name, x in errors.items()}
    findings = [
        Finding(
            *(14, "without positions: difference between shuffled outputs and outputs of shuffled tokens", 0.0),
            *(f"{by['none'][0]:.1e}", holds(by["none"][0] < 1e-5), "relative to the outputs"),
        )
    ]
    for name, (mean, spread) in list(by.items())[1:]:
        note = f"{plus_minus([spread])} between seeds"
        findings.append(Finding(14, f"{name} breaks it", "above 0", round(mean, 3), holds(mean > 1e-2), note))
    broken = [{"scheme": name, "error": mean, "spread": spread} for name, (mean, spread) in by.items()]
    profiles = {name: torch.stack([_by_distance(x) for x in found]) for name, found in logits.items()}
    rows = [_row(d, profiles) for d in range(-RADIUS, RADIUS + 1)]
    data = {"equivariance": broken, "similarity": rows}
    return Result("positions", TITLE, [*findings, *_shapes(logits, profiles)], data, __doc__ or "")


def _row(d: int, profiles: dict[str, Tensor]) -> dict[str, Any]:
    row: dict[str, Any] = {"distance": d}
    for name, x in profiles.items():
        row[name], row[f"{name} spread"] = mean_and_spread(x[:, d + RADIUS].tolist())
    return row


def _shapes(logits: dict[str, list[Tensor]], profiles: dict[str, Tensor]) -> list[Finding]:
    """What each scheme does to the similarity of equal tokens, in numbers."""
    alone = [name for name, found in logits.items() if max(map(_along, found)) < 1e-4]
    near = torch.arange(-RADIUS, RADIUS + 1).abs()
    mean = {name: x.mean(0) for name, x in profiles.items()}
    alibi = profiles["ALiBi"][0]
    slope = float(alibi[RADIUS + 1] - alibi[RADIUS])
    bent = float((alibi - alibi[RADIUS] - slope * near).abs().max())
    learned = mean["learned"][near > 0]
    t5 = profiles["T5"][0]
    steps = len({round(float(x), 4) for x in t5})
    sinusoidal = mean["sinusoidal"]
    falls = [round(float(sinusoidal[RADIUS + d]), 2) for d in (0, 1, 4, 16)]
    turned = profiles["rotary"][0]
    return [
        Finding(14, "logits of equal tokens depend on key − query alone", None, alone, BESIDE, "to four digits"),
        Finding(14, "sinusoidal: logit at distance 0, 1, 4, 16", None, falls, BESIDE, "near positions are alike"),
        Finding(
            *(14, "learned: spread of the logit between distances", None, round(float(learned.std()), 3), BESIDE),
            "before training: no position is nearer than another",
        ),
        Finding(
            *(14, "rotary: the largest logit is at distance", None, int(turned.argmax()) - RADIUS, BESIDE),
            "it oscillates with distance, for the same vectors",
        ),
        Finding(
            *(14, "ALiBi: slope of the first head, and how far from a line", None, [round(slope, 3), round(bent, 4)]),
            *(BESIDE, "farther is less, by the same for each step"),
        ),
        Finding(
            *(14, f"T5: how many different logits at {len(t5)} distances", None, steps, BESIDE),
            "distances share buckets, the far ones more",
        ),
    ]


def _layer(scheme: Positions) -> MultiHeadAttention:
    return MultiHeadAttention(WIDTH, HEADS, positions=scheme)


def _error(scheme: Positions) -> float:
    """|attend(shuffled) − shuffled(attend)| / |attend|."""
    layer = _layer(scheme)
    x, order = torch.randn(1, TOKENS, WIDTH), torch.randperm(TOKENS)
    with torch.no_grad():
        y, shuffled = (layer(scheme.embed(z)) for z in (x, x[:, order]))
    return float((shuffled - y[:, order]).norm() / y.norm())


def _logits(scheme: Positions) -> Tensor:
    """Of the first head, ``(N, N)``, for equal tokens."""
    layer = _layer(scheme)
    x = torch.randn(1, 1, WIDTH).expand(1, TOKENS, WIDTH)
    with torch.no_grad():
        for projection in (layer.query, layer.key):  # so that what is seen is the scheme, and no projection
            torch.nn.init.eye_(projection.weight)
            torch.nn.init.zeros_(projection.bias)
        A = layer.weights(scheme.embed(x))
        return (A.dense().log() + A.logsumexp()[..., None])[0, 0]


def _by_distance(logits: Tensor) -> Tensor:
    """The mean along each diagonal, less the mean of all: for key − query from −RADIUS to RADIUS."""
    found = torch.stack([logits.diagonal(d).mean() for d in range(-RADIUS, RADIUS + 1)])
    return found - found.mean()


def _along(logits: Tensor) -> float:
    """How much logits differ at the same distance, as a share of how much they differ at all."""
    within = max(float(logits.diagonal(d).std()) for d in range(-RADIUS, RADIUS + 1))
    return within / float(logits.std())


def draw(result: Result) -> Figure:
    """Similarity by distance, a panel for each scheme."""
    from limelight.experiments.figures import COLOURS, GREY, new_figure

    figure, axes = new_figure(2, 3, width=3.6, height=2.6)
    rows: list[dict[str, Any]] = result.data["similarity"]
    distances = [row["distance"] for row in rows]
    for axis, name, colour in zip(axes.flat, schemes(), COLOURS, strict=True):
        means, spreads = [row[name] for row in rows], [row[f"{name} spread"] for row in rows]
        axis.plot(distances, means, color=colour)
        low, high = ([m + sign * s for m, s in zip(means, spreads, strict=True)] for sign in (-1, 1))
        axis.fill_between(distances, low, high, color=colour, alpha=0.25, linewidth=0)
        axis.axvline(0, color=GREY, alpha=0.6, linewidth=0.8)
        axis.set_title(name + (", drawn at random" if name in ("learned", "T5", "Transformer-XL") else ""))
    figure.supxlabel("key − query (positions)", fontsize=10)
    figure.supylabel("logit of equal tokens, less its mean (± σ between seeds)", fontsize=9)
    return figure
