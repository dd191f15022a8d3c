"""Similarity of heads, and what trained ones do: claim 16."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limelight import models, translate
from limelight.experiments.findings import EXTRA, Finding, Result, holds, mean_and_spread, plus_minus, rounded
from limelight.experiments.lesson import Lesson
from limelight.lens import heads
from limelight.nn import MultiHeadAttention, Seq2Seq

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="How alike heads are",
    equation="cos(headᵢ, headⱼ) = ⟨headᵢ, headⱼ⟩ / (|headᵢ| |headⱼ|)",
    method=(
        "Texts print a mean similarity for 1, 2, 4 and 8 heads, and neither the layer's size nor the measure. New "
        "layers, which have learned nothing, are measured in twelve sizes and by two measures (outputs and weights); "
        "the share of settings that fit is told. What is learned is seen in the translator that comes with "
        "limelight, beside models of its shape without training: how alike its heads are in every layer, and which "
        "of them have a role."
    ),
    code="""\
import torch
from limelight.nn import MultiHeadAttention
x = torch.randn(1, 8, 128)
for h in (2, 4, 8):
    layer = MultiHeadAttention(128, h)          # it has learned nothing
    y = (layer.weights(x) @ layer.value(x).unflatten(-1, (h, -1)).transpose(1, 2))[0].flatten(1)
    y = torch.nn.functional.normalize(y, dim=-1)
    print(h, ((y @ y.T).abs().sum() - h) / (h * h - h))
""",
)
SIMILARITY = {1: 1.00, 2: 0.12, 4: 0.17, 8: 0.19}
MEASURES = ("outputs", "weights")
WIDTHS, LENGTHS = (64, 128, 256), (6, 8, 12, 24)
ROLES = {"positional": ("previous token", "next token", "local"), "separator": ("separator",)}
ENOUGH = 0.05  # share of all heads above which a model counts as having heads of a role
MOST = 0.5  # numbers without a setting count as reproduced if this share of the settings fits them
SENTENCES = (
    "The cat sat on the mat.",
    "She is reading a book in the garden.",
    "I don't think that we have enough time to finish this today.",
    "When he came home, his wife was already asleep.",
)


def run(quick: bool = False, seed: int = 0) -> Result:
    """Measure the similarity of new heads, and compare trained heads with new ones."""
    seeds = range(seed, seed + (4 if quick else 20))
    sizes = [[_new_heads(h, width, tokens, seeds) for h in SIMILARITY] for width in WIDTHS for tokens in LENGTHS]
    settings = [(measure, rows) for rows in sizes for measure in MEASURES]
    learned, labels = _trained_heads(seeds[: 1 if quick else 3], SENTENCES[: 2 if quick else None])
    measure, best = min(settings, key=lambda setting: _misfit(*setting))
    found = sum(_fits(*setting) for setting in settings)
    findings = [*_judge_similarity(measure, best, found, len(settings)), _judge_learned(learned), _judge_roles(labels)]
    takeaway = (
        "Heads that have learned nothing are as little alike as the texts' "
        f"({', '.join(f'{row[measure]:.2f}' for row in best)} for 1, 2, 4 and 8), so such numbers say nothing of "
        f"learning; trained heads do become less alike, in {sum(row['trained'] < row['new'] for row in learned)} of "
        f"{len(learned)} layers."
    )
    data = {"similarity": best, "learned": learned, "labels": labels}
    return Result("heads", takeaway, findings, data)


def _new_heads(h: int, width: int, tokens: int, seeds: range) -> dict[str, Any]:
    """Measure |cosine| between the outputs of two heads of a new layer, and the cosine between their weights."""
    found: dict[str, list[float]] = {name: [] for name in MEASURES}
    for s in seeds:
        torch.manual_seed(s)
        layer = MultiHeadAttention(width, h)
        x = torch.randn(1, tokens, width)
        with torch.no_grad():
            A = layer.weights(x)
            outputs = A @ layer.value(x).unflatten(-1, (h, -1)).transpose(1, 2)
        flat = torch.nn.functional.normalize(outputs[0].flatten(1), dim=-1)
        found["outputs"].append(mean_between((flat @ flat.mT).abs()))
        found["weights"].append(mean_between(A.similarity()[0]))
    row: dict[str, Any] = {"heads": h, "width": width, "tokens": tokens}
    for name, numbers in found.items():
        row[name], row[f"{name} spread"] = mean_and_spread(numbers)
    return row


def mean_between(matrix: Tensor) -> float:
    """Average over pairs of different heads; a single head is compared with itself."""
    h = len(matrix)
    return float(matrix.mean() if h == 1 else (matrix.sum() - matrix.diagonal().sum()) / (h * (h - 1)))


def _misfit(measure: str, rows: list[dict[str, Any]]) -> float:
    return float(sum((row[measure] - x) ** 2 for row, x in zip(rows, SIMILARITY.values(), strict=True)))


def _fits(measure: str, rows: list[dict[str, Any]]) -> bool:
    """Return whether the texts' numbers could be random draws: within √2 spreads on average."""
    several = zip(rows[1:], list(SIMILARITY.values())[1:], strict=True)
    off = [(row[measure] - x) / row[f"{measure} spread"] for row, x in several]
    return bool(sum(x * x for x in off) / len(off) <= 2 and abs(rows[0][measure] - 1) < 1e-4)


def _judge_similarity(measure: str, best: list[dict[str, Any]], fitting: int, settings: int) -> list[Finding]:
    spread = plus_minus([row[f"{measure} spread"] for row in best[1:]])
    other = next(name for name in MEASURES if name != measure)
    return [
        Finding(
            claim=16,
            what="similarity of 1, 2, 4 and 8 heads",
            theirs=list(SIMILARITY.values()),
            measured=rounded([row[measure] for row in best]),
            verdict=holds(fitting >= MOST * settings, in_part=fitting > 0),
            note=(
                f"of new layers; {fitting} of {settings} settings fit; shown: width {best[0]['width']}, "
                f"{best[0]['tokens']} tokens, mean |cosine| of the {measure}, {spread} between seeds"
            ),
        ),
        Finding(
            claim=16,
            what="so these numbers show that heads learn different things: settings without any training that fit",
            theirs=0,
            measured=fitting,
            verdict=holds(fitting == 0),
            note="new heads have these numbers already, as random directions differ: they are no sign of learning",
        ),
        Finding(
            claim=16,
            what=f"the same new heads, by the cosine of their {other}",
            theirs=None,
            measured=rounded([row[other] for row in best]),
            verdict=EXTRA,
            note="the weights of new heads are broad, and so alike",
        ),
    ]


def _trained_heads(seeds: range, texts: Sequence[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Compare the translator's heads with those of untrained models: similarity by layer, and labels."""
    translator = translate.load()
    new: dict[str, Seq2Seq] = {}
    for s in seeds:
        torch.manual_seed(s)
        model = models.build(translator.model.config).eval()
        assert isinstance(model, Seq2Seq)
        new[f"new, seed {s}"] = model
    alike: dict[str, dict[str, list[float]]] = {}
    labels: dict[tuple[str, str, int], Counter[str]] = {}
    for sentence in (sentence for text in texts for sentence in translator(text).sentences):
        tokens = {"encoder": sentence.source_tokens, "decoder": ["<pad>", *sentence.tokens[:-1]]}
        records = {"trained": sentence.record} | {name: sentence.read_by(model) for name, model in new.items()}
        for name, record in records.items():
            for call in record.log:
                found = alike.setdefault(f"{call.stack} {call.kind} {call.layer}", {"new": [], "trained": []})
                found[name.split(",")[0]].append(mean_between(call.weights.similarity()[0]))
            for head in heads(record, tokens):
                labels.setdefault((name, head["module"], head["head"]), Counter())[head["label"]] += 1
    rows = []
    for name, both in alike.items():
        row: dict[str, Any] = {"attention": name}
        for kind, numbers in both.items():
            row[kind], row[f"{kind} spread"] = mean_and_spread(numbers)
        rows.append(row)
    most = Counter((model, counts.most_common(1)[0][0]) for (model, *_), counts in labels.items())
    return rows, [{"model": model, "label": label, "heads": n} for (model, label), n in sorted(most.items())]


def _judge_learned(rows: list[dict[str, Any]]) -> Finding:
    fewer = sum(row["trained"] < row["new"] for row in rows)
    new, trained = (round(sum(row[kind] for row in rows) / len(rows), 2) for kind in ("new", "trained"))
    against = [row["attention"] for row in rows if row["trained"] >= row["new"]]
    return Finding(
        claim=16,
        what=f"heads learn different things: in how many of {len(rows)} layers they become less alike",
        theirs=len(rows),
        measured=fewer,
        verdict=holds(fewer == len(rows), in_part=fewer >= 0.7 * len(rows)),
        note=f"mean cosine of the weights of two heads: {new} new, {trained} trained"
        + (f"; not in {', '.join(against)}" if against else ""),
    )


def _judge_roles(rows: Sequence[dict[str, Any]]) -> Finding:
    def count(model: str, labels: Sequence[str]) -> int:
        return sum(row["heads"] for row in rows if row["model"] == model and row["label"] in labels)

    total = sum(row["heads"] for row in rows if row["model"] == "trained")
    trained = {role: count("trained", labels) for role, labels in ROLES.items()}
    untrained = sorted({row["model"] for row in rows} - {"trained"})
    new = {role: max(count(model, labels) for model in untrained) for role, labels in ROLES.items()}
    has = [trained[role] >= ENOUGH * total and trained[role] > new[role] for role in ROLES]
    others = Counter({row["label"]: row["heads"] for row in rows if row["model"] == "trained"}).most_common(3)
    return Finding(
        claim=16,
        what=f"trained heads are positional or separators: of {total} heads of the translator",
        theirs=f"at least {ENOUGH:.0%} each",
        measured=trained,
        verdict=holds(all(has), in_part=any(has)),
        note=(
            f"by the label that a head has most often; of untrained models at most {new}; in this model most heads are "
            + ", ".join(f"{label} ({n})" for label, n in others)
        ),
    )


def draw(result: Result) -> Figure:
    """Draw the similarity of new heads with the texts' numbers, and that of trained heads with new ones."""
    from limelight.experiments.figures import COLOURS, GREY, bars, new_figure

    figure, (upper, lower) = new_figure(2, 1, height=2.8)
    rows = result.data["similarity"]
    heights = {"texts": list(SIMILARITY.values())}
    heights |= {f"new, by {measure}": [row[measure] for row in rows] for measure in MEASURES}
    spreads = {f"new, by {measure}": [row[f"{measure} spread"] for row in rows] for measure in MEASURES}
    bars(upper, [row["heads"] for row in rows], heights, spreads=spreads, colours=(GREY, *COLOURS))
    upper.set(xlabel="heads of a new layer", ylabel="mean cosine", title="New heads have the texts' numbers")
    learned = result.data["learned"]
    heights = {kind: [row[kind] for row in learned] for kind in ("new", "trained")}
    spreads = {kind: [row[f"{kind} spread"] for row in learned] for kind in heights}
    names = [row["attention"].replace("encoder self", "enc").replace("decoder ", "") for row in learned]
    bars(lower, [name.replace(" ", "\n") for name in names], heights, spreads=spreads)
    lower.set(ylabel="mean cosine", title="The translator's layers, before and after training")
    for axis in (upper, lower):
        axis.set_ylim(0, 1.35)
        axis.legend(loc="upper center", ncols=3)
    return figure
