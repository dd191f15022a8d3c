"""Order: claim 14.

Without positions, attention is permutation equivariant: shuffle the tokens, and the outputs shuffle with them. Every
scheme breaks that, and each makes similarity depend on distance in its own way: seen on equal tokens, whose weights
differ by position alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from limelight.experiments.findings import Finding, Result, holds, mean_and_spread
from limelight.nn import MultiHeadAttention
from limelight.positions import T5, XL, ALiBi, Learned, Positions, Rotary, Sinusoidal

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
    """Equivariance with and without positions, and similarity by distance."""
    seeds = range(seed, seed + (2 if quick else 5))
    errors: dict[str, list[float]] = {}
    for s in seeds:
        torch.manual_seed(s)
        for name, scheme in {"none": Positions(), **schemes()}.items():
            errors.setdefault(name, []).append(_error(scheme))
    torch.manual_seed(seed)
    profiles = {name: _profile(scheme) for name, scheme in schemes().items()}
    by = {name: mean_and_spread(x)[0] for name, x in errors.items()}
    broken = [{"scheme": name, "error": by[name], "spread": mean_and_spread(x)[1]} for name, x in errors.items()]
    findings = [
        Finding(
            *(14, "without positions: difference between shuffled outputs and outputs of shuffled tokens", 0.0),
            *(f"{by['none']:.1e}", holds(by["none"] < 1e-5), "relative to the outputs"),
        )
    ]
    for name in list(by)[1:]:
        findings.append(Finding(14, f"{name} breaks it", "above 0", round(by[name], 3), holds(by[name] > 1e-2)))
    rows = [
        {"distance": d, **{name: x[d + RADIUS] for name, x in profiles.items()}} for d in range(-RADIUS, RADIUS + 1)
    ]
    return Result("positions", TITLE, findings, {"equivariance": broken, "similarity": rows}, __doc__ or "")


def _layer(scheme: Positions) -> MultiHeadAttention:
    return MultiHeadAttention(WIDTH, HEADS, positions=scheme)


def _error(scheme: Positions) -> float:
    """|attend(shuffled) − shuffled(attend)| / |attend|."""
    layer = _layer(scheme)
    x, order = torch.randn(1, TOKENS, WIDTH), torch.randperm(TOKENS)
    with torch.no_grad():
        y, shuffled = (layer(scheme.embed(z)) for z in (x, x[:, order]))
    return float((shuffled - y[:, order]).norm() / y.norm())


def _profile(scheme: Positions) -> list[float]:
    """The logarithm of the mean weight by key − query, of the first head, for equal tokens; 0 is the mean."""
    layer = _layer(scheme)
    x = torch.randn(1, 1, WIDTH).expand(1, TOKENS, WIDTH)
    with torch.no_grad():
        for projection in (layer.query, layer.key):  # so that what is seen is the scheme, and no projection
            torch.nn.init.eye_(projection.weight)
            torch.nn.init.zeros_(projection.bias)
        profile = layer.weights(scheme.embed(x)).profile(RADIUS)[0].mean(0)
    return [math.log(float(y) * TOKENS) for y in profile]


def draw(result: Result) -> Figure:
    """Similarity by distance, a panel for each scheme."""
    from limelight.experiments.figures import COLOURS, GREY, new_figure

    figure, axes = new_figure(2, 3, width=3.4, height=2.6)
    rows: list[dict[str, Any]] = result.data["similarity"]
    names = [name for name in rows[0] if name != "distance"]
    for axis, name, colour in zip(axes.flat, names, COLOURS, strict=True):
        axis.plot([row["distance"] for row in rows], [row[name] for row in rows], color=colour)
        axis.axvline(0, color=GREY, alpha=0.6, linewidth=0.8)
        axis.set_title(name)
    figure.supxlabel("key − query (positions)", fontsize=10)
    figure.supylabel("log of the weight of equal tokens; 0 is the mean", fontsize=10)
    return figure
