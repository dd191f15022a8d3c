"""Heads: claims 5, 6 and 16.

How alike the weights of different heads are, at the start and in the trained translator, and what its heads do; that
concatenating heads and projecting them equals summing each head times its slice, and adding them does not; and that
any number of heads costs the same.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limelight.experiments.findings import (
    CORRECTED,
    DIRECTION,
    REPRODUCED,
    Finding,
    Result,
    holds,
    judge,
    mean_and_spread,
)
from limelight.functional import attention
from limelight.nn import MultiHeadAttention

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
    trained, labels = _trained()
    findings = [*_of_similarity(similarity), *_joining(seed), *_of_cost(cost), *_of_trained(trained, labels)]
    return Result(
        "heads",
        TITLE,
        findings,
        {"similarity": similarity, "cost": cost, "trained": trained, "labels": labels},
        __doc__ or "",
    )


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


def _of_similarity(rows: list[dict[str, Any]]) -> list[Finding]:
    theirs = list(SIMILARITY.values())
    found = {name: [round(row[name], 2) for row in rows] for name in ("weights", "outputs")}
    near = all(abs(a - b) < 0.1 for a, b in zip(theirs, found["outputs"], strict=True))
    low = max(found["outputs"][1:]) < 0.5
    return [
        Finding(
            *(16, "similarity of heads, by their outputs (|cosine|), 1, 2, 4, 8 heads", theirs, found["outputs"]),
            *(
                REPRODUCED if near else DIRECTION if low else CORRECTED,
                "of a new layer: heads differ before anything is learned",
            ),
        ),
        Finding(
            *(16, "similarity of heads, by their weights (cosine)", theirs, found["weights"]),
            judge(theirs, found["weights"], 0.1, same_way=low and max(found["weights"][1:]) < 0.5),
            "weights are never negative, so new heads, which are broad, are alike",
        ),
    ]


def _joining(seed: int) -> list[Finding]:
    torch.manual_seed(seed)
    layer = MultiHeadAttention(WIDTH, 4)
    x = torch.randn(1, TOKENS, WIDTH)
    with torch.no_grad():
        heads = layer.weights(x) @ layer.value(x).unflatten(-1, (4, -1)).transpose(1, 2)  # (1, 4, N, 16)
        slices = layer.out.weight.chunk(4, dim=1)
        summed = sum(heads[:, n] @ w.T for n, w in enumerate(slices)) + layer.out.bias
        off = float((summed - layer(x)).abs().max())
        # From the sum of the heads alone, the best linear map cannot tell them apart.
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
    times = []
    for _ in range(7):
        begin = time.perf_counter()
        attention(q, k, v)
        times.append(time.perf_counter() - begin)
    parameters = sum(p.numel() for p in MultiHeadAttention(width, h).parameters())
    return {
        "heads": h,
        "width of a head": d,
        "products": 2 * h * n * n * d,
        "parameters": parameters,
        "seconds": min(times),
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


def _trained() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The translator's heads on a few sentences: how alike they are, and how many have which label."""
    from limelight import translate
    from limelight.lens import heads

    try:
        translator = translate.load()
    except FileNotFoundError:
        return [], []
    rows: list[dict[str, Any]] = []
    for text in SENTENCES:
        (sentence,) = translator(text).sentences
        tokens = {"encoder": sentence.source_tokens, "decoder": ["<pad>", *sentence.tokens[:-1]]}
        rows += [{"sentence": text, **row} for row in heads(sentence.record, tokens)]
    return rows, _labels(rows)


def _labels(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    counts: dict[tuple[str, str], int] = {}
    for row in rows:
        key = f"{row['stack']} {row['kind']}", row["label"]
        counts[key] = counts.get(key, 0) + 1
    return [{"attention": a, "label": b, "count": n} for (a, b), n in sorted(counts.items())]


def _of_trained(rows: list[dict[str, Any]], labels: list[dict[str, Any]]) -> list[Finding]:
    if not rows:
        return []
    mean, spread = mean_and_spread([row["similarity"] for row in rows])
    kinds = {row["label"] for row in labels}
    return [
        Finding(
            16,
            "trained heads differ: mean cosine of their weights",
            0.19,
            round(mean, 2),
            judge(0.19, mean, 0.1, same_way=mean < 0.6),
            f"in the translator that comes with limelight; ±{spread:.2f} between heads",
        ),
        Finding(
            16,
            "trained heads do different things: positional, separator, …",
            "several kinds",
            sorted(kinds),
            holds(len(kinds) >= 3),
            "labels by measured rules; what is called semantic is not among them",
        ),
    ]


def draw(result: Result) -> Figure:
    """Similarity by the number of heads, and the cost."""
    from limelight.experiments.figures import COLOURS, new_figure

    figure, (left, right) = new_figure(1, 2)
    rows = result.data["similarity"]
    places = range(len(rows))
    left.bar([n - 0.25 for n in places], list(SIMILARITY.values()), 0.25, color="#808080", label="texts")
    for shift, name, colour, hatch in ((0.0, "outputs", COLOURS[0], ""), (0.25, "weights", COLOURS[1], "//")):
        left.bar(
            [n + shift for n in places],
            [row[name] for row in rows],
            0.25,
            yerr=[row[f"{name} spread"] for row in rows],
            color=colour,
            hatch=hatch,
            label=f"measured, by {name}",
        )
    left.set_xticks(list(places), [str(row["heads"]) for row in rows])
    left.set(xlabel="heads of a new layer", ylabel="mean similarity", title="how alike heads are")
    left.legend()
    cost = result.data["cost"]
    right.plot([row["heads"] for row in cost], [1e3 * row["seconds"] for row in cost], "-o", color=COLOURS[0])
    right.set(xscale="log", xlabel="heads", ylabel="milliseconds", ylim=(0, None), title="time of attention, width 768")
    right.set_xticks([row["heads"] for row in cost], [str(row["heads"]) for row in cost])
    return figure
