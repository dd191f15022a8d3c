"""Dropout on the weights where data are few: claim 27."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight import attention
from limelight.experiments.findings import Finding, Result, holds, mean_and_spread, plus_minus, rounded
from limelight.experiments.lesson import Lesson
from limelight.experiments.training import accuracy, fit
from limelight.nn import MultiHeadAttention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Training with dropout",
    equation="train: y = (A ∘ keep / (1 − p)) v;   tokens relied on = exp H(A)",
    method=(
        "A text of 16 tokens belongs to one of eight classes, and six of its tokens are examples of the class, "
        "hidden in noise. A layer that reads the text with one query learns from 64 texts only, with dropout of 0, "
        "0.1, 0.3 and 0.5 on its weights, and is tested on new ones. How many tokens it relies on is exp of the "
        "entropy of its weights."
    ),
    code="""\
from limelight.experiments.dropout_training import learn
for p in (0.0, 0.3):
    print(p, learn(p, seed=0, steps=100))   # share right in training and in new texts, tokens relied on
""",
)
CLASSES, WIDTH, TOKENS, EVIDENCE, TEXTS, HEADS = 8, 32, 16, 6, 64, 2
RATES = (0.0, 0.1, 0.3, 0.5)


class Reader(nn.Module):
    """One learned query that reads a text, and a linear map to the classes."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.attention = MultiHeadAttention(WIDTH, HEADS, dropout=dropout)
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(B, 1, classes)``."""
        logits: Tensor = self.out(self.attention(self.query.expand(len(x), 1, WIDTH), x))
        return logits


def learn(dropout: float, seed: int, steps: int) -> tuple[float, float, float]:
    """Train on few texts; return the accuracy on them and on new ones, and the tokens that are relied on."""
    torch.manual_seed(seed)
    prototypes = torch.randn(CLASSES, WIDTH)

    def draw(count: int) -> tuple[tuple[Tensor, ...], Tensor]:
        label = torch.randint(0, CLASSES, (count, 1))
        x = torch.randn(count, TOKENS, WIDTH)
        x[:, :EVIDENCE] = 1.2 * x[:, :EVIDENCE] + 0.9 * prototypes[label]
        return (x[:, torch.randperm(TOKENS)],), label

    few, new = draw(TEXTS), draw(1000)
    model = Reader(dropout)
    fit(model, lambda: few, steps=steps, rate=5e-3)
    with torch.no_grad():
        A = model.attention.weights(model.query.expand(len(new[0][0]), 1, WIDTH), new[0][0])
        relied = float(A.entropy().exp().mean())
    return accuracy(model, lambda: few), accuracy(model, lambda: new), relied


def run(quick: bool = False, seed: int = 0) -> Result:
    """Train with several rates of dropout, over several seeds."""
    seeds, steps = range(seed, seed + (3 if quick else 8)), 150 if quick else 300
    rows: list[dict[str, Any]] = []
    for p in RATES[::2] if quick else RATES:
        found = [learn(p, s, steps) for s in seeds]
        row: dict[str, Any] = {"dropout": p}
        for n, name in enumerate(("few", "new", "tokens")):
            row[name], row[f"{name} spread"] = mean_and_spread([x[n] for x in found])
        rows.append(row)
    none, best = rows[0], max(rows[1:], key=lambda row: row["new"])
    error = (none["new spread"] ** 2 + best["new spread"] ** 2) ** 0.5 / len(seeds) ** 0.5
    gain = best["new"] - none["new"]
    findings = [
        Finding(
            claim=27,
            what=f"it regularises: right in new texts without and with dropout of {best['dropout']}",
            theirs="rises",
            measured=rounded([none["new"], best["new"]], 3),
            verdict=holds(gain > 2 * error, in_part=gain > 0),
            note=(
                f"the rate that helps most; {plus_minus([none['new spread'], best['new spread']])} between "
                f"{len(seeds)} seeds; learned from {TEXTS} texts, of which {none['few']:.0%} are right"
            ),
        ),
        Finding(
            claim=27,
            what="it makes a model rely on several tokens: exp of the entropy, by the rate",
            theirs="rises",
            measured=rounded([row["tokens"] for row in rows], 1),
            verdict=holds(rows[-1]["tokens"] > 1.1 * none["tokens"], in_part=rows[-1]["tokens"] > none["tokens"]),
            note=f"rates {[row['dropout'] for row in rows]}; {EVIDENCE} of {TOKENS} tokens carry the class",
        ),
        _dropped_heads(seed),
    ]
    takeaway = (
        f"With {TEXTS} texts to learn from, {none['new']:.1%} of new ones are right without dropout and "
        f"{best['new']:.1%} with {best['dropout']}; the layer then relies on {best['tokens']:.1f} tokens instead of "
        f"{none['tokens']:.1f}."
    )
    return Result("dropout-training", takeaway, findings, {"training": rows})


def _dropped_heads(seed: int) -> Finding:
    """Count the heads of which all weights are dropped, and those of which some are."""
    torch.manual_seed(seed)
    q, k = torch.randn(2, 20, 8, TOKENS, 16)
    kept = attention(q, k, torch.eye(TOKENS).expand(20, 8, -1, -1), dropout=0.3) > 0
    whole = float((~kept).flatten(2).all(-1).float().mean())
    some = float((~kept).flatten(2).any(-1).float().mean())
    return Finding(
        claim=27,
        what="it drops heads: share of heads of which everything is dropped, at p = 0.3",
        theirs=0.3,
        measured=whole,
        verdict=holds(abs(whole - 0.3) < 0.05),
        note=(
            f"it drops single weights: {some:.0%} of heads lose some, {float((~kept).float().mean()):.2f} of all "
            "weights"
        ),
    )


def draw(result: Result) -> Figure:
    """Draw the right answers in new texts, and the tokens relied on, by the rate."""
    from limelight.experiments.figures import new_figure, series

    figure, (upper, lower) = new_figure(2, 1, height=2.4)
    rows = result.data["training"]
    rates = [row["dropout"] for row in rows]
    series(upper, rates, [row["new"] for row in rows], 0, "new texts", spread=[row["new spread"] for row in rows])
    upper.set(ylabel="share right", title=f"New texts, after learning from {TEXTS}")
    series(lower, rates, [row["tokens"] for row in rows], 1, "tokens", spread=[row["tokens spread"] for row in rows])
    lower.set(ylabel="exp entropy", xlabel="dropout p", title="Tokens that the layer relies on")
    return figure
