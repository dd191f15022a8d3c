"""Heads: claims 5, 6 and 16.

How alike different heads are, at the start and in the trained translator, and what its heads do; that concatenating
heads and projecting them equals summing each head times its slice, and adding them does not; and that any number of
heads costs the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limelight.experiments.findings import (
    DIRECTION,
    REPRODUCED,
    Finding,
    Result,
    holds,
    judge,
    mean_and_spread,
    plus_minus,
)
from limelight.experiments.measuring import seconds
from limelight.functional import attention
from limelight.nn import MultiHeadAttention, Seq2Seq

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Heads"
TOKENS, WIDTH = 24, 64
SIMILARITY = {1: 1.00, 2: 0.12, 4: 0.17, 8: 0.19}
SENTENCES = (
    "The cat sat on the mat.",
    "She is reading a book in the garden.",
    "I don't think that we have enough time to finish this today.",
    "When he came home, his wife was already asleep.",
)


def run(quick: bool = False, seed: int = 0) -> Result:
    """Similarity, concatenation, cost, and the trained heads."""
    seeds = range(seed, seed + (3 if quick else 10))
    similarity = [_similarity(h, seeds) for h in SIMILARITY]
    cost = [_cost(h) for h in (1, 2, 4, 8, 16)]
    learned, labels = _trained(seeds[:3])
    findings = [_of_similarity(similarity), *_of_trained(learned, labels), *_joining(seed), *_of_cost(cost)]
    data = {"similarity": similarity, "learned": learned, "labels": labels, "cost": cost}
    return Result("heads", TITLE, findings, data, __doc__ or "")


def _similarity(h: int, seeds: Any) -> dict[str, Any]:
    """Cosine between the weights of two heads of a new layer, and of their values' outputs, which may be negative."""
    weights, outputs = [], []
    for s in seeds:
        torch.manual_seed(s)
        layer = MultiHeadAttention(WIDTH, h)
        x = torch.randn(1, TOKENS, WIDTH)
        with torch.no_grad():
            A = layer.weights(x)
            heads = A @ layer.value(x).unflatten(-1, (h, -1)).transpose(1, 2)
        weights.append(_between(A.similarity()[0]))
        flat = torch.nn.functional.normalize(heads[0].flatten(1), dim=-1)
        outputs.append(_between((flat @ flat.mT).abs()))
    (w, dw), (o, do) = mean_and_spread(weights), mean_and_spread(outputs)
    return {"heads": h, "weights": w, "weights spread": dw, "outputs": o, "outputs spread": do}


def _between(matrix: Tensor) -> float:
    """The mean over pairs of different heads; 1 for a head alone."""
    h = len(matrix)
    return 1.0 if h == 1 else float((matrix.sum() - matrix.diagonal().sum()) / (h * (h - 1)))


def _of_similarity(rows: list[dict[str, Any]]) -> Finding:
    """By the measure that fits the texts' numbers better; they do not say which they took."""
    theirs = list(SIMILARITY.values())
    found = {name: [round(row[name], 2) for row in rows] for name in ("outputs", "weights")}
    best = min(found, key=lambda name: sum((a - b) ** 2 for a, b in zip(theirs, found[name], strict=True)))
    other = next(name for name in found if name != best)
    spread = plus_minus([row[f"{best} spread"] for row in rows])
    return Finding(
        *(16, f"similarity of 1, 2, 4 and 8 heads (cosine of their {best}, which fits best)", theirs, found[best]),
        judge(theirs, found[best], 0.1, same_way=max(found[best][1:]) < 0.5),
        f"of a new layer, {spread} between seeds: so it is before anything is learned; "
        f"that of their {other} is {', '.join(map(str, found[other]))}",
    )


def _joining(seed: int) -> list[Finding]:
    torch.manual_seed(seed)
    layer = MultiHeadAttention(WIDTH, 4)
    x = torch.randn(1, 4 * TOKENS, WIDTH)
    with torch.no_grad():
        heads = layer.weights(x) @ layer.value(x).unflatten(-1, (4, -1)).transpose(1, 2)  # (1, 4, N, 16)
        slices = layer.out.weight.chunk(4, dim=1)
        summed = sum(heads[:, n] @ w.T for n, w in enumerate(slices)) + layer.out.bias
        off = float((summed - layer(x)).abs().max())
        # From the sum of the heads alone, the best linear map cannot tell them apart. What all tokens share is nothing.
        heads = heads - heads.mean(2, keepdim=True)
        together, apart = heads.sum(1)[0], heads.transpose(1, 2).flatten(2)[0]
        best = together @ torch.linalg.lstsq(together, apart).solution
        lost = float((apart - best).norm() / apart.norm())
    return [
        Finding(5, "concatenated heads times W_O, against the sum of heads times slices", 0.0, off, holds(off < 1e-5)),
        Finding(
            *(5, "adding heads makes them interfere: share of them that is lost", "above 0", round(lost, 3)),
            *(holds(lost > 0.1), "what no linear map can find again in their sum"),
        ),
    ]


def _cost(h: int, width: int = 768, n: int = 512) -> dict[str, Any]:
    d = width // h
    q, k, v = torch.randn(3, 1, h, n, d)
    parameters = sum(p.numel() for p in MultiHeadAttention(width, h).parameters())
    return {
        "heads": h,
        "width of a head": d,
        "products": 2 * h * n * n * d,
        "parameters": parameters,
        "seconds": seconds(lambda: attention(q, k, v), 7),
    }


def _of_cost(rows: list[dict[str, Any]]) -> list[Finding]:
    products, parameters = {row["products"] for row in rows}, {row["parameters"] for row in rows}
    times = [row["seconds"] for row in rows]
    ratio = max(times) / min(times)
    shape = list(MultiHeadAttention(768, 12).out.weight.shape)
    return [
        Finding(
            6,
            "multiplications and parameters for 1 to 16 heads",
            "equal",
            [len(products), len(parameters)],
            holds(len(products) == len(parameters) == 1),
            "how many different numbers there are",
        ),
        Finding(
            *(6, "time of 1 to 16 heads: slowest / fastest", 1.0, round(ratio, 2)),
            *(REPRODUCED if ratio < 1.3 else DIRECTION, "more heads mean more exponentials, the products being equal"),
        ),
        Finding(6, "BERT-base: 768 = 12 × 64, and W_O returns to 768", [768, 768], shape, holds(shape == [768, 768])),
    ]


def _trained(seeds: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The translator's heads on a few sentences: how alike those of a layer are, before and after, and their labels."""
    from limelight import models, translate
    from limelight.lens import heads

    translator = translate.load()
    new = []
    for s in seeds:
        torch.manual_seed(s)
        model = models.build(translator.model.config).eval()
        assert isinstance(model, Seq2Seq)
        new.append(model)
    alike: dict[str, dict[str, list[float]]] = {}
    counts: dict[tuple[str, str], int] = {}
    for text in SENTENCES:
        (sentence,) = translator(text).sentences
        records = [("trained", sentence.record), *(("new", sentence.read_by(model)) for model in new)]
        for kind, call in ((kind, call) for kind, record in records for call in record.log):
            found = alike.setdefault(f"{call.stack} {call.kind} {call.layer}", {"new": [], "trained": []})
            found[kind].append(_between(call.weights.similarity()[0]))
        tokens = {"encoder": sentence.source_tokens, "decoder": ["<pad>", *sentence.tokens[:-1]]}
        for head in heads(sentence.record, tokens):
            key = f"{head['stack']} {head['kind']}", head["label"]
            counts[key] = counts.get(key, 0) + 1
    rows = []
    for name, both in alike.items():
        row: dict[str, Any] = {"attention": name}
        for kind, numbers in both.items():
            row[kind], row[f"{kind} spread"] = mean_and_spread(numbers)
        rows.append(row)
    return rows, [{"attention": a, "label": b, "count": n} for (a, b), n in sorted(counts.items())]


def _of_trained(rows: list[dict[str, Any]], labels: list[dict[str, Any]]) -> list[Finding]:
    found = {kind: mean_and_spread([row[kind] for row in rows]) for kind in ("new", "trained")}
    kinds = {row["label"] for row in labels}
    return [
        Finding(
            *(16, "heads learn different things: cosine of the weights of two heads, new and trained", "falls"),
            [round(mean, 2) for mean, _ in found.values()],
            holds(found["trained"][0] + found["trained"][1] < found["new"][0]),
            f"of the translator that comes with limelight, {plus_minus([x for _, x in found.values()])} between layers",
        ),
        Finding(
            *(16, "kinds of trained heads: positional, separator, …", "several", sorted(kinds), holds(len(kinds) >= 3)),
            "by measured rules; what texts call semantic or syntactic is no rule that a weight can be held to",
        ),
    ]


def draw(result: Result) -> Figure:
    """Similarity by the number of heads and in the trained layers, and the cost."""
    from limelight.experiments.figures import COLOURS, GREY, bars, lengths_axis, new_figure

    figure, (left, middle, right) = new_figure(1, 3, width=4.8, height=3.8)
    rows, measures = result.data["similarity"], ("outputs", "weights")
    series = {"texts": list(SIMILARITY.values())} | {f"by {m}": [row[m] for row in rows] for m in measures}
    spreads = {f"by {m}": [row[f"{m} spread"] for row in rows] for m in measures}
    bars(left, [row["heads"] for row in rows], series, spreads=spreads, colours=(GREY, *COLOURS))
    left.set(xlabel="heads of a new layer", ylabel="mean similarity (cosine)", title="How alike new heads are")
    learned = result.data["learned"]
    series = {kind: [row[kind] for row in learned] for kind in ("new", "trained")}
    spreads = {kind: [row[f"{kind} spread"] for row in learned] for kind in series}
    bars(middle, [row["attention"].replace(" ", "\n") for row in learned], series, spreads=spreads)
    middle.tick_params(axis="x", labelsize=7)
    middle.set(xlabel="attention of the translator", ylabel="mean similarity (cosine)", title="Heads learn to differ")
    for axis in (left, middle):
        axis.set_ylim(0, 1.3)
        axis.legend(loc="upper center", ncols=3)
    cost = result.data["cost"]
    right.plot([row["heads"] for row in cost], [1e3 * row["seconds"] for row in cost], "-o", color=COLOURS[0])
    right.set(ylabel="milliseconds", title="Time of attention, 512 tokens, width 768")
    right.set_ylim(0, 1.2e3 * max(row["seconds"] for row in cost))
    lengths_axis(right, [row["heads"] for row in cost], "heads")
    return figure
