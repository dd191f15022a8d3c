"""The parts that an induction head rests on, shown by edits of a trained model: claim 52."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight import Causal, Window, edit, watch
from limelight.experiments.findings import EXTRA, Finding, Result, holds
from limelight.experiments.induction import TOKENS, VOCABULARY, repeated
from limelight.experiments.lesson import Lesson
from limelight.experiments.training import fit
from limelight.lens import Importance, Knockout, Off, Pattern, Record, importance
from limelight.lens.importance_table import rank_correlation
from limelight.nn import MultiHeadAttention
from limelight.positions import Rotary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Does it matter what a head looks at?",
    equation="effect of an edit = loss with it − loss without it",
    method=(
        "A model of two layers of attention, without feed-forward parts, learns texts that repeat a random segment. "
        "Its heads are labelled by what they look at, and then measured by what the loss in the repeated part becomes "
        "without each of them. The pairs of a token and the one before it are then knocked out of the previous-token "
        "head in the layer below, and last the induction head is given back the weights that it has in a run without "
        "edits, while the knock-out stays."
    ),
    code="""\
import limelight as ll
from limelight.experiments.what_matters import learn, texts
from limelight.lens import Off, importance
model = learn(seed=0, steps=60)
ids, loss = texts(8, seed=1)
print(importance(model, ids, metric=loss))
""",
)
WIDTH, HEADS = 48, (2, 1)  # heads of each layer
PREVIOUS = Window(1, 0) & ~Window(0)  # a token and the one before it


class AttentionOnly(nn.Module):
    """``x + attention(norm(x))`` in each layer, and logits."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.decoder = nn.ModuleList(_Layer(heads) for heads in HEADS)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """``ids (B, N)`` to logits ``(B, N, vocabulary)``."""
        x = self.table(ids)
        for layer in self.decoder:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


class _Layer(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = MultiHeadAttention(WIDTH, heads, positions=Rotary(WIDTH // heads))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.attention(self.norm(x), mask=Causal())
        return y


def learn(seed: int, steps: int) -> AttentionOnly:
    """Train a model on texts that repeat a random segment."""
    torch.manual_seed(seed)
    model, g = AttentionOnly(), torch.Generator().manual_seed(seed)

    def batch() -> tuple[tuple[Tensor, ...], Tensor]:
        ids, period = repeated(32, g)
        return (ids[:, :-1],), ids[:, 1:].masked_fill(~_known(period), -100)

    fit(model, batch, steps=steps, rate=5e-3)
    return model


def _known(period: Tensor) -> Tensor:
    """Return True for tokens whose successor can be predicted: from the second time on."""
    return torch.arange(TOKENS - 1) >= period - 1


def texts(count: int, seed: int) -> tuple[Tensor, Any]:
    """Draw new texts, and the metric that is the loss where they repeat themselves."""
    ids, period = repeated(count, torch.Generator().manual_seed(seed))
    known = _known(period) & (torch.arange(TOKENS - 1) >= period)

    def loss(logits: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits[known], ids[:, 1:][known])

    return ids[:, :-1], loss


def strongest_head(record: Record, measure: str) -> dict[str, Any]:
    """Return the row of the report in which a measure is largest."""
    return max(record.heads(), key=lambda row: row[measure])


@torch.no_grad()
def circuit(model: AttentionOnly, ids: Tensor, loss: Any) -> dict[str, Any]:
    """Find both heads, and measure the loss without edits, with the knock-out and with the pattern given back."""
    with watch(model) as record:
        clean = float(loss(model(ids)))
    induction, previous = (strongest_head(record, name) for name in ("induction", "previous"))
    knockout = Knockout(PREVIOUS, heads=previous["head"])
    found: dict[str, Any] = {"induction": induction, "previous": previous, "clean": clean}
    with watch(model, edits={previous["layer"]: knockout}) as changed:
        found["knocked"] = float(loss(model(ids)))
    row = next(r for r in changed.heads() if (r["layer"], r["head"]) == (induction["layer"], induction["head"]))
    found["score_after"] = row["induction"]
    edits = {previous["layer"]: knockout, induction["layer"]: Pattern(record, heads=induction["head"])}
    with edit(model, edits):
        found["restored"] = float(loss(model(ids)))
    with edit(model, {induction["layer"]: Off(induction["head"])}):
        found["off"] = float(loss(model(ids)))
    found["looks"] = [float(x) for call in record.log for x in call.weights.max().mean((0, 2))]
    return found


def run(quick: bool = False, seed: int = 0) -> Result:
    """Train, find the heads, and edit them."""
    model = learn(seed, 300 if quick else 600)
    ids, loss = texts(32, seed + 1)
    effects = importance(model, ids, metric=loss)
    found = circuit(model, ids, loss)
    clean, knocked, restored = (found[name] for name in ("clean", "knocked", "restored"))
    gained = (knocked - restored) / max(knocked - clean, 1e-9)
    takeaway = (
        f"Without its previous tokens one head of layer {found['previous']['layer']} takes the induction head down "
        f"with it (loss {clean:.2f} → {knocked:.2f}); its weights of a clean run bring {100 * gained:.0f}% of that "
        "back."
    )
    rows = [{"layer": r["layer"], "head": r["head"], "effect": r["effect"]} for r in effects]
    losses = [{"run": name, "loss": found[name]} for name in ("clean", "knocked", "restored", "off")]
    return Result("what-matters", takeaway, _findings(effects, found, gained), {"effects": rows, "losses": losses})


def _findings(effects: Importance, found: dict[str, Any], gained: float) -> list[Finding]:
    induction, previous = found["induction"], found["previous"]
    clean, knocked, restored = (found[name] for name in ("clean", "knocked", "restored"))
    ranked = [(row["layer"], row["head"]) for row in effects.top(len(effects))]
    rank = 1 + ranked.index((induction["layer"], induction["head"]))
    agreement = rank_correlation(found["looks"], [abs(row["effect"]) for row in effects])
    return [
        Finding(
            claim=52,
            what="the report finds it: label and score of the strongest induction head",
            theirs="induction",
            measured=[induction["label"], round(induction["induction"], 2)],
            verdict=holds(induction["label"] == "induction", in_part=induction["induction"] > 0.2),
            note=f"layer {induction['layer']}, head {induction['head']}; loss where the text repeats {clean:.3f}",
        ),
        Finding(
            claim=52,
            what="it matters: its rank by the effect of switching a head off, and the loss without it",
            theirs="1",
            measured=[rank, round(found["off"], 2)],
            verdict=holds(rank == 1, in_part=rank == 2),
            note=f"of {len(effects)} heads",
        ),
        Finding(
            claim=52,
            what="it rests on the layer below: loss, and its score, without previous tokens in one head there",
            theirs="lost",
            measured=[round(knocked, 2), round(found["score_after"], 2)],
            verdict=holds(knocked > clean + 1 and found["score_after"] < 0.75 * induction["induction"]),
            note=f"layer {previous['layer']}, head {previous['head']}, previous-token score {previous['previous']:.2f}",
        ),
        Finding(
            claim=52,
            what="its weights are what was lost: share of the loss that a clean run's pattern wins back",
            theirs="most",
            measured=round(gained, 2),
            verdict=holds(gained > 0.5, in_part=gained > 0.2),
            note=f"loss {restored:.2f}, with the knock-out in force",
        ),
        Finding(
            claim=52,
            what="rank correlation between a head's strongest weights and its effect",
            theirs=None,
            measured=round(agreement, 2),
            verdict=EXTRA,
            note=f"over {len(effects)} heads: sharp weights alone do not say that a head matters",
        ),
    ]


def draw(result: Result) -> Figure:
    """Draw the effect of each head, and the loss with each edit."""
    from limelight.experiments.figures import COLOURS, HATCHES, new_figure

    figure, (upper, lower) = new_figure(2, 1, height=2.3)
    effects, losses = result.data["effects"], result.data["losses"]
    names = [f"layer {row['layer']}\nhead {row['head']}" for row in effects]
    upper.bar(names, [row["effect"] for row in effects], color=COLOURS[0])
    upper.set(ylabel="change of loss (nats)", title="Loss where the text repeats, without each head")
    titles = {"clean": "no edit", "knocked": "knock-out", "restored": "and pattern", "off": "head off"}
    for n, row in enumerate(losses):
        lower.bar(titles[row["run"]], row["loss"], color=COLOURS[n], hatch=HATCHES[n])
    lower.set(ylabel="loss (nats)", title="Knock out the token before, give the pattern back")
    return figure
