"""Weights as explanations, against the effect of taking tokens away: claim 48."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight import Dense, watch
from limelight.experiments.findings import EXTRA, Finding, Result, holds, mean_and_spread, plus_minus, rounded
from limelight.experiments.lesson import Lesson
from limelight.experiments.small_models import encoder
from limelight.experiments.training import accuracy, fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Weights as explanations",
    equation="weight Āᵢⱼ  against  effect |p(class) − p(class | key j masked in every layer)|",
    method=(
        "Models of one, two and three layers learn to tell the class of a text of 16 tokens, of which some speak for "
        "a class, some strongly and some weakly, and the others are noise. For new texts each token is knocked out "
        "in turn: no query of any layer may attend to it. The ranks of tokens by the weight that the reading "
        "position gives them (mean over heads and layers) are compared with their ranks by the effect of the "
        "knock-out (Spearman's ρ)."
    ),
    code="""\
from limelight.experiments.explanation import learn, rank_correlation
model, texts = learn(layers=2, seed=0, steps=100)
weight, effect = model.weight_and_effect(texts[:20])
print(rank_correlation(weight, effect).mean())
""",
)
CLASSES, WIDTH, TOKENS = 6, 32, 16
STRENGTHS = (2.0, 1.2, 0.7, 0.4)  # strength of the tokens that indicate the class; the others are noise


class Reader(nn.Module):
    """A stack that is read at its first position, and a linear map to the classes."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.stack, self.out = encoder(WIDTH, 2, layers), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Return logits ``(B, 1, classes)``; keys that are not ``allowed (B, N)`` are masked in every layer."""
        mask = None if allowed is None else Dense(allowed[:, None, None])
        logits: Tensor = self.out(self.stack(x, mask=mask)[:, :1])
        return logits

    @torch.no_grad()
    def weight_and_effect(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return, for every token but the first, its mean weight and the effect of knocking it out, ``(B, N − 1)``."""
        with watch(self) as record:
            before = self(x)[:, 0].softmax(-1)
        weight = torch.stack([call.weights.dense()[:, :, 0].mean(1) for call in record.log]).mean(0)
        chosen = before.argmax(-1, keepdim=True)
        effects = []
        for j in range(1, x.shape[1]):
            allowed = torch.ones(x.shape[:2], dtype=torch.bool)
            allowed[:, j] = False
            after = self(x, allowed)[:, 0].softmax(-1)
            effects.append((before - after).gather(1, chosen)[:, 0].abs())
        return weight[:, 1:], torch.stack(effects, 1)


def learn(layers: int, seed: int, steps: int) -> tuple[Reader, Tensor]:
    """Train a reader and return it with new texts."""
    torch.manual_seed(seed)
    model, prototypes = Reader(layers), torch.randn(CLASSES, WIDTH)

    def batch(count: int = 64) -> tuple[tuple[Tensor, ...], Tensor]:
        label = torch.randint(0, CLASSES, (count, 1))
        x = torch.randn(count, TOKENS, WIDTH)
        for place, strength in enumerate(STRENGTHS, 1):
            x[:, place] += strength * prototypes[label[:, 0]]
        order = torch.rand(count, TOKENS - 1).argsort(1) + 1  # the reading position stays the first
        x[:, 1:] = x.gather(1, order[..., None].expand(-1, -1, WIDTH))
        return (x,), label

    fit(model, batch, steps=steps, rate=2e-3)
    model.right = accuracy(model, batch)  # type: ignore[assignment]
    return model, batch(60)[0][0]


def rank_correlation(a: Tensor, b: Tensor) -> Tensor:
    """Compute Spearman's ρ of each row."""
    ranks = [x.argsort(-1).argsort(-1).double() for x in (a, b)]
    ranks = [x - x.mean(-1, keepdim=True) for x in ranks]
    return nn.functional.cosine_similarity(ranks[0], ranks[1], dim=-1)


def run(quick: bool = False, seed: int = 0) -> Result:
    """Compare the ranks by weight and by effect, for one to three layers."""
    seeds, steps = range(seed, seed + (1 if quick else 3)), 150 if quick else 300
    rows: list[dict[str, Any]] = []
    points: list[dict[str, Any]] = []
    for layers in (1, 3) if quick else (1, 2, 3):
        found = []
        for s in seeds:
            model, texts = learn(layers, s, steps)
            weight, effect = model.weight_and_effect(texts)
            same = float((weight.argmax(-1) == effect.argmax(-1)).float().mean())
            found.append((float(rank_correlation(weight, effect).mean()), same, float(model.right)))  # type: ignore[arg-type]
            if s == seed:
                some = zip(weight[:8].flatten().tolist(), effect[:8].flatten().tolist(), strict=True)
                points += [{"layers": layers, "weight": w, "effect": x} for w, x in some]
        row: dict[str, Any] = {"layers": layers}
        for n, name in enumerate(("ρ", "same first", "right")):
            row[name], row[f"{name} spread"] = mean_and_spread([x[n] for x in found])
        rows.append(row)
    return Result("explanation", _takeaway(rows), _findings(rows), {"correlation": rows, "tokens": points})


def _findings(rows: list[dict[str, Any]]) -> list[Finding]:
    first, last = rows[0], rows[-1]
    return [
        Finding(
            claim=48,
            what=f"{row['layers']} layer{'s' * (row['layers'] > 1)}: rank correlation of weight and effect",
            theirs="below 0.5",
            measured=round(row["ρ"], 2),
            verdict=holds(row["ρ"] < 0.5, in_part=row["ρ"] < 0.7),
            note=(
                f"{plus_minus([row['ρ spread']])} between seeds; the largest weight is the largest effect in "
                f"{row['same first']:.0%} of texts; {row['right']:.0%} of classes are right"
            ),
        )
        for row in rows
    ] + [
        Finding(
            claim=48,
            what="with depth: rank correlation of the shallowest and the deepest",
            theirs=None,
            measured=rounded([first["ρ"], last["ρ"]]),
            verdict=EXTRA,
            note="in a deeper model what a token says also reaches the reading position through others",
        )
    ]


def _takeaway(rows: list[dict[str, Any]]) -> str:
    return (
        f"Weights and knock-out effects rank tokens with a correlation of {rows[0]['ρ']:.2f} in one layer and "
        f"{rows[-1]['ρ']:.2f} in {rows[-1]['layers']}; the token with the largest weight matters most in "
        f"{rows[-1]['same first']:.0%} of texts there."
    )


def draw(result: Result) -> Figure:
    """Draw effect against weight, for the shallowest and the deepest model."""
    from limelight.experiments.figures import COLOURS, MARKS, legend_below, new_figure

    figure, axis = new_figure(height=3.3)
    points, rows = result.data["tokens"], result.data["correlation"]
    for n, row in enumerate((rows[0], rows[-1])):
        mine = [p for p in points if p["layers"] == row["layers"]]
        label = f"{row['layers']} layer{'s' * (row['layers'] > 1)}: ρ = {row['ρ']:.2f}"
        x, y = [p["weight"] for p in mine], [p["effect"] for p in mine]
        axis.scatter(x, y, s=16, marker=MARKS[n], color=COLOURS[n], alpha=0.7, label=label)
    axis.set(
        xlabel="mean weight of a token", ylabel="change of p without it", title="Weight and effect, token by token"
    )
    axis.set_yscale("symlog", linthresh=1e-3)
    legend_below(figure, axis, 2)
    return figure
