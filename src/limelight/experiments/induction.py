"""Induction heads, as they appear during training: claim 47."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limelight import watch
from limelight.experiments.findings import EXTRA, Finding, Result, holds
from limelight.experiments.lesson import Lesson
from limelight.experiments.small_models import decoder
from limelight.experiments.training import fit
from limelight.nn import LanguageModel
from limelight.positions import Rotary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Induction heads",
    equation="[A][B] … [A] → [B]: the head's weight on the token after the last [A]",
    method=(
        "A model of two layers learns texts that repeat a random segment of 5 to 13 tokens, so that only what stands "
        "in the text helps, and no fixed distance does. Again and again during training each head's weight on the "
        "token after the earlier occurrence is measured (its induction score), with the weight on the previous token "
        "and the loss where the text repeats. The rise is abrupt if half of it takes at most a fifth of the "
        "training. A model of one layer learns the same texts."
    ),
    code="""\
import torch, limelight as ll
from limelight.experiments.induction import model_of, repeated, scores
model = model_of(layers=2)
print(scores(model, *repeated(8, torch.Generator().manual_seed(0))))   # before any training
""",
)
VOCABULARY, WIDTH, HEADS, TOKENS = 24, 48, 4, 28
SHORTEST, LONGEST = 5, 13  # tokens of the repeated segment


def model_of(layers: int) -> LanguageModel:
    """Build a causal model with rotary positions."""
    return decoder(VOCABULARY, WIDTH, HEADS, layers, positions=lambda: Rotary(WIDTH // HEADS))


def repeated(count: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw texts that repeat a random segment of different tokens, and the length of each text's segment."""
    period = torch.randint(SHORTEST, LONGEST + 1, (count, 1), generator=g)
    segment = torch.rand(count, VOCABULARY, generator=g).argsort(1)
    return segment.gather(1, torch.arange(TOKENS) % period), period


@torch.no_grad()
def scores(model: LanguageModel, ids: Tensor, period: Tensor) -> dict[str, float]:
    """Return the best induction and previous-token scores over all heads, and the loss where the text repeats."""
    with watch(model) as record:
        logits = model(ids[:, :-1])
    query = torch.arange(TOKENS - 1).expand(len(ids), -1)
    again = query >= period  # queries whose token has come before
    keys = {"induction": (query - period + 1).clamp(min=0), "previous": (query - 1).clamp(min=0)}
    best: dict[str, float] = {}
    for name, key in keys.items():
        on_key = [call.weights.dense().gather(3, key[:, None, :, None].expand(-1, HEADS, -1, 1)) for call in record.log]
        by_head = torch.cat([x[..., 0] for x in on_key], 1).transpose(0, 1)  # (heads of all layers, B, N)
        best[name] = float(by_head[:, again].mean(1).max())
    loss = torch.nn.functional.cross_entropy(logits[again], ids[:, 1:][again])
    return {"induction": best["induction"], "previous": best["previous"], "loss": float(loss)}


def _trained(layers: int, seed: int, steps: int, every: int) -> list[dict[str, Any]]:
    torch.manual_seed(seed)
    model, g = model_of(layers), torch.Generator().manual_seed(seed)
    test, periods = repeated(64, torch.Generator().manual_seed(seed + 1))

    def batch() -> tuple[tuple[Tensor, ...], Tensor]:
        ids, period = repeated(32, g)
        known = torch.arange(TOKENS - 1) >= period - 1  # a token that comes for the first time cannot be predicted
        return (ids[:, :-1],), ids[:, 1:].masked_fill(~known, -100)

    rows = [{"layers": layers, "step": 0} | scores(model, test, periods)]
    for step in range(every, steps + 1, every):
        fit(model, batch, steps=every, rate=3e-3)
        rows.append({"layers": layers, "step": step} | scores(model, test, periods))
    return rows


def run(quick: bool = False, seed: int = 0) -> Result:
    """Train two layers, and one, and follow the heads."""
    steps, every = (400, 25) if quick else (600, 25)
    two, one = (_trained(layers, seed, steps, every) for layers in (2, 1))
    rise, fall = ([row[name] for row in two] for name in ("induction", "loss"))
    before, after = (_step_at(two, "induction", share) for share in (0.25, 0.75))
    takeaway = (
        f"Between steps {before} and {after} of {steps} an induction head appears (score {rise[-1]:.2f}), and the "
        f"loss in repeated text falls from {fall[0]:.1f} to {fall[-1]:.2f}; one layer stays at {one[-1]['loss']:.1f}."
    )
    return Result("induction", takeaway, _findings(two, one[-1], steps, every), {"training": [*two, *one]})


def _step_at(rows: list[dict[str, Any]], name: str, share: float) -> int:
    """Return the first step at which a number has made a share of its way from its first to its last value."""
    first, last = rows[0][name], rows[-1][name]
    way = 1 if last > first else -1
    return next(int(row["step"]) for row in rows if way * (row[name] - first) >= share * way * (last - first))


def _findings(two: list[dict[str, Any]], one: dict[str, Any], steps: int, every: int) -> list[Finding]:
    rise, fall = ([row[name] for row in two] for name in ("induction", "loss"))
    gained = rise[-1] - rise[0]
    before, moment, after = (_step_at(two, "induction", share) for share in (0.25, 0.5, 0.75))
    halfway = _step_at(two, "loss", 0.5)
    half = 0.5 * max(row["previous"] for row in two)
    previous = next(row["step"] for row in two if row["previous"] >= half)
    return [
        Finding(
            claim=47,
            what="an induction head appears: its score before and after training, two layers",
            theirs="rises",
            measured=[round(rise[0], 2), round(rise[-1], 2)],
            verdict=holds(rise[-1] > 0.5, in_part=gained > 0.2),
            note=f"equal weights would give {1 / (0.7 * TOKENS):.2f}",
        ),
        Finding(
            claim=47,
            what=f"abruptly: steps from a quarter to three quarters of the rise, of {steps}",
            theirs=f"at most {steps // 5}",
            measured=after - before,
            verdict=holds(after - before <= steps // 5, in_part=after - before <= steps // 3),
            note=f"measured every {every} steps",
        ),
        Finding(
            claim=47,
            what="together with what is learned in context: step at which the score, and the loss, are half-way",
            theirs="the same",
            measured=[moment, halfway],
            verdict=holds(abs(moment - halfway) <= steps // 10, in_part=abs(moment - halfway) <= steps // 4),
            note=f"loss where the text repeats, from {fall[0]:.2f} to {fall[-1]:.2f} nats",
        ),
        Finding(
            claim=47,
            what="one layer, after the same training: score and loss",
            theirs=None,
            measured=[round(one["induction"], 2), round(one["loss"], 2)],
            verdict=EXTRA,
            note=(
                "an induction head needs a head of an earlier layer that tells each token its predecessor; in two "
                f"layers that one is half-way at step {previous}"
            ),
        ),
    ]


def draw(result: Result) -> Figure:
    """Draw the scores, and the loss, during training."""
    from limelight.experiments.figures import COLOURS, LINES, new_figure

    figure, (upper, lower) = new_figure(2, 1, height=2.5)
    rows = result.data["training"]
    two, one = ([row for row in rows if row["layers"] == layers] for layers in (2, 1))
    steps = [row["step"] for row in two]
    for n, (name, label) in enumerate((("induction", "induction"), ("previous", "previous token"))):
        upper.plot(steps, [row[name] for row in two], linestyle=LINES[n], color=COLOURS[n], label=label)
    for n, (mine, label) in enumerate(((two, "two layers"), (one, "one layer"))):
        lower.plot(steps, [row["loss"] for row in mine], linestyle=LINES[n], color=COLOURS[n], label=label)
    upper.set(ylabel="weight, best head", ylim=(0, 1.02), title="Heads of the model with two layers")
    lower.set(ylabel="loss (nats)", xlabel="training steps", title="Loss where the text repeats itself")
    for axis in (upper, lower):
        axis.legend()
    return figure
