"""Heads: claims 5, 6 and 16.

Texts say that concatenating heads and multiplying by W_O is summing each head times its slice of W_O, while adding
heads makes them interfere; that d_k = d_v = d_model / h makes any number of heads cost the same; and that heads are
little alike, with numbers for 1, 2, 4 and 8 of them, since they learn different things: positional heads, separator
heads and more. The numbers are looked for in new layers of several widths and lengths, by two measures, as texts give
none of it; what is learned is seen in the translator that comes with limelight, beside models with its shape and no
training.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from limelight.core import reference
from limelight.experiments.findings import (
    BESIDE,
    Finding,
    Result,
    holds,
    mean_and_spread,
    plus_minus,
)
from limelight.experiments.measuring import seconds
from limelight.functional import attention
from limelight.nn import MultiHeadAttention, Seq2Seq

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Heads"
SIMILARITY = {1: 1.00, 2: 0.12, 4: 0.17, 8: 0.19}
MEASURES = ("outputs", "weights")
NAMED = {"positional": ("previous token", "next token", "local"), "separator": ("separator",)}
SENTENCES = (
    "The cat sat on the mat.",
    "She is reading a book in the garden.",
    "I don't think that we have enough time to finish this today.",
    "When he came home, his wife was already asleep.",
)


def run(quick: bool = False, seed: int = 0) -> Result:
    """Similarity, concatenation, cost, and the trained heads."""
    seeds = range(seed, seed + (5 if quick else 20))
    measure, similarity = _similarities(seeds)
    cost = [_cost(h) for h in (1, 2, 4, 8, 16)]
    learned, labels = _trained(seeds[:3])
    findings = [
        *(*_of_similarity(similarity, measure), *_of_trained(learned), _of_labels(labels)),
        *(*_joining(seeds[:5]), *_of_cost(cost)),
    ]
    data = {"similarity": similarity, "learned": learned, "labels": labels, "cost": cost}
    return Result("heads", TITLE, findings, data, __doc__ or "")


def _similarities(seeds: Any) -> tuple[str, list[dict[str, Any]]]:
    """Of new layers, with the width, the number of tokens and the measure that fit the texts' numbers best."""
    found = {
        (width, tokens): [_similarity(h, width, tokens, seeds) for h in SIMILARITY]
        for width in (64, 128, 256)
        for tokens in (6, 8, 12, 24)
    }

    def misfit(rows: list[dict[str, Any]], measure: str) -> float:
        return float(sum((row[measure] - x) ** 2 for row, x in zip(rows, SIMILARITY.values(), strict=True)))

    _, measure, rows = min((misfit(rows, m), m, rows) for rows in found.values() for m in MEASURES)
    return measure, rows


def _similarity(h: int, width: int, tokens: int, seeds: Any) -> dict[str, Any]:
    """|cosine| between the outputs of two heads of a new layer, and the cosine between their weights."""
    found: dict[str, list[float]] = {name: [] for name in MEASURES}
    for s in seeds:
        torch.manual_seed(s)
        layer = MultiHeadAttention(width, h)
        x = torch.randn(1, tokens, width)
        with torch.no_grad():
            A = layer.weights(x)
            outputs = A @ layer.value(x).unflatten(-1, (h, -1)).transpose(1, 2)
        flat = torch.nn.functional.normalize(outputs[0].flatten(1), dim=-1)
        found["outputs"].append(_between((flat @ flat.mT).abs()))
        found["weights"].append(_between(A.similarity()[0]))
    row: dict[str, Any] = {"heads": h, "width": width, "tokens": tokens}
    for name, numbers in found.items():
        row[name], row[f"{name} spread"] = mean_and_spread(numbers)
    return row


def _between(matrix: Tensor) -> float:
    """The mean over pairs of different heads; of a head with itself, where there is but one."""
    h = len(matrix)
    return float(matrix.mean() if h == 1 else (matrix.sum() - matrix.diagonal().sum()) / (h * (h - 1)))


def _of_similarity(rows: list[dict[str, Any]], measure: str) -> list[Finding]:
    theirs = list(SIMILARITY.values())
    found = {name: [round(row[name], 2) for row in rows] for name in MEASURES}
    off = [(row[measure] - x) / row[f"{measure} spread"] for row, x in zip(rows[1:], theirs[1:], strict=True)]
    near = sum(x * x for x in off) / len(off) <= 2 and abs(rows[0][measure] - 1) < 1e-4
    spread = plus_minus([row[f"{measure} spread"] for row in rows[1:]])
    setting = f"width {rows[0]['width']}, {rows[0]['tokens']} tokens, mean |cosine| of their {measure} fit best"
    other = next(name for name in MEASURES if name != measure)
    return [
        Finding(
            *(16, "similarity of 1, 2, 4 and 8 heads", theirs, found[measure]),
            *(holds(near, in_part=max(found[measure][1:]) < 0.5), f"of a new layer; {setting}; {spread} between seeds"),
        ),
        Finding(
            *(16, "so these numbers show that heads learn: what is learned in a layer that has them", "something"),
            *("nothing" if near else "?", holds(not near), "new heads have them already, as random directions differ"),
        ),
        Finding(16, f"the same, by the cosine of their {other}", None, found[other], BESIDE, "new weights are broad"),
    ]


def _trained(seeds: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """How alike the heads of the translator's layers are, before and after training, and which labels they have."""
    from limelight import models, translate
    from limelight.lens import heads

    translator = translate.load()
    new: dict[str, Seq2Seq] = {}
    for s in seeds:
        torch.manual_seed(s)
        model = models.build(translator.model.config).eval()
        assert isinstance(model, Seq2Seq)
        new[f"new, seed {s}"] = model
    alike: dict[str, dict[str, list[float]]] = {}
    labels: dict[tuple[str, str, int], Counter[str]] = {}
    for sentence in (sentence for text in SENTENCES for sentence in translator(text).sentences):
        tokens = {"encoder": sentence.source_tokens, "decoder": ["<pad>", *sentence.tokens[:-1]]}
        records = {"trained": sentence.record, **{name: sentence.read_by(model) for name, model in new.items()}}
        for name, record in records.items():
            for call in record.log:
                found = alike.setdefault(f"{call.stack} {call.kind} {call.layer}", {"new": [], "trained": []})
                found[name.split(",")[0]].append(_between(call.weights.similarity()[0]))
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


def _of_trained(rows: list[dict[str, Any]]) -> list[Finding]:
    falls = sum(row["trained"] < row["new"] for row in rows)
    means = [round(sum(row[kind] for row in rows) / len(rows), 2) for kind in ("new", "trained")]
    against = [row["attention"] for row in rows if row["trained"] >= row["new"]]
    note = f"mean cosine of the weights of two heads: {means[0]} new, {means[1]} trained"
    note += f"; not in {', '.join(against)}" if against else ""
    return [
        Finding(
            *(16, f"heads learn different things: in how many of {len(rows)} layers they become less alike", len(rows)),
            *(falls, holds(falls == len(rows), in_part=falls >= 0.7 * len(rows)), note),
        )
    ]


def _of_labels(rows: list[dict[str, Any]]) -> Finding:
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        for name, kinds in NAMED.items():
            counts.setdefault(row["model"], Counter())[name] += row["heads"] * (row["label"] in kinds)
    trained = counts.pop("trained")
    more = [trained[name] > max(new[name] for new in counts.values()) for name in NAMED]
    total = sum(row["heads"] for row in rows if row["model"] == "trained")
    others = Counter({row["label"]: row["heads"] for row in rows if row["model"] == "trained"}).most_common(3)
    note = "the label that a head has most often; new models have at most " + ", ".join(
        f"{max(new[name] for new in counts.values())} {name}" for name in NAMED
    )
    note += "; most are: " + ", ".join(f"{label} ({n})" for label, n in others)
    note += "; syntactic, semantic and coreference heads are no rule that weights alone could be held to"
    return Finding(
        *(16, f"trained heads are positional, separator, …: of {total}", "more than new", dict(trained)),
        *(holds(all(more), in_part=any(more)), note),
    )


def _joining(seeds: Any) -> list[Finding]:
    off, added, concatenated = zip(*(_joined(s) for s in seeds), strict=True)
    (mean, spread), kept = mean_and_spread(added), max(concatenated)
    return [
        Finding(
            *(5, "concatenated heads times W_O, against the sum of heads times slices: largest difference", 0.0),
            *(max(off), holds(max(off) < 1e-5), f"of {len(off)} layers"),
        ),
        Finding(
            *(5, "adding heads makes them interfere: share of their variance that is lost", "above 0", round(mean, 2)),
            holds(mean > 0.1 and kept < 1e-5),
            f"{plus_minus([spread])} between seeds: what no linear map finds in the sum; of concatenated heads, 0",
        ),
    ]


def _joined(seed: int, width: int = 64, tokens: int = 96, h: int = 4) -> tuple[float, float, float]:
    """How far the two sums are apart, and what is lost of the heads where they are added and where they are not."""
    torch.manual_seed(seed)
    layer = MultiHeadAttention(width, h)
    x = torch.randn(1, tokens, width)
    with torch.no_grad():
        heads = layer.weights(x) @ layer.value(x).unflatten(-1, (h, -1)).transpose(1, 2)  # (1, h, N, width / h)
        slices = layer.out.weight.chunk(h, dim=1)
        summed = sum(heads[:, n] @ w.T for n, w in enumerate(slices)) + layer.out.bias
        off = float((summed - layer(x)).abs().max())
        heads = (heads - heads.mean(2, keepdim=True))[0].double()  # what all tokens share tells nothing
        apart = heads.transpose(0, 1).flatten(1)

        def lost(given: Tensor) -> float:
            best = given @ torch.linalg.lstsq(given, apart).solution
            return float(((apart - best).norm() / apart.norm()) ** 2)

        return off, lost(heads.sum(0)), lost(apart)


def _cost(h: int, width: int = 768, n: int = 512) -> dict[str, Any]:
    """Of h heads that share a width, and of h heads that have it each: multiply-adds counted, and time."""
    layer = MultiHeadAttention(width, h)
    x = torch.randn(1, n, width)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        q, k, v = (part(x).unflatten(-1, (h, -1)).transpose(1, 2) for part in (layer.query, layer.key, layer.value))
        layer.out(reference.attention(q, k, v).transpose(1, 2).flatten(2))
    with FlopCounterMode(display=False) as full:
        reference.attention(*torch.randn(3, 1, h, 32, width))
    return {
        **{"heads": h, "width of a head": q.shape[-1], "operations": counter.get_total_flops()},
        **{"operations at full width, 32 tokens": full.get_total_flops()},
        "parameters": sum(p.numel() for p in layer.parameters()),
        "seconds": seconds(lambda: attention(q, k, v), 7),
    }


def _of_cost(rows: list[dict[str, Any]]) -> list[Finding]:
    relative = {
        name: [round(row[name] / rows[0][name], 2) for row in rows]
        for name in ("operations", "parameters", "operations at full width, 32 tokens", "seconds")
    }
    times = relative["seconds"]
    ratio = max(times) / min(times)
    bert = MultiHeadAttention(768, 12)
    shapes = [bert.query.weight.shape[0] // 12, *bert.out.weight.shape]
    heads = ", ".join(str(row["heads"]) for row in rows)
    same = all(x == 1 for name in ("operations", "parameters") for x in relative[name])
    return [
        Finding(
            *(6, f"operations of {heads} heads, relative to one", [1] * len(rows), relative["operations"]),
            *(holds(same), "counted in projections, scores, weights times values and W_O; parameters are as many, too"),
        ),
        Finding(
            *(
                6,
                "the same where every head has the whole width",
                None,
                relative["operations at full width, 32 tokens"],
            ),
            *(BESIDE, "which is what dividing it saves"),
        ),
        Finding(
            *(6, f"time of {heads} heads, relative to one", [1] * len(rows), times),
            holds(ratio < 1.3, in_part=ratio < 2),
            f"slowest / fastest: {ratio:.2f}; exponentials grow with the number of heads, operations do not",
        ),
        Finding(
            *(6, "BERT-base: width of a head, and W_O from and to", [64, 768, 768], shapes),
            holds(shapes == [64, 768, 768]),
        ),
    ]


def draw(result: Result) -> Figure:
    """Similarity by the number of heads and in the trained layers, labels, and the cost."""
    from limelight.experiments.figures import COLOURS, GREY, bars, lengths_axis, new_figure

    figure, ((left, right), (kinds, time)) = new_figure(2, 2, width=5.6, height=3.6)
    rows = result.data["similarity"]
    series = {"texts": list(SIMILARITY.values())} | {f"by {m}": [row[m] for row in rows] for m in MEASURES}
    spreads = {f"by {m}": [row[f"{m} spread"] for row in rows] for m in MEASURES}
    bars(left, [row["heads"] for row in rows], series, spreads=spreads, colours=(GREY, *COLOURS))
    left.set(xlabel="heads of a new layer", ylabel="mean similarity (cosine)", title="How alike new heads are")
    learned = result.data["learned"]
    series = {kind: [row[kind] for row in learned] for kind in ("new", "trained")}
    spreads = {kind: [row[f"{kind} spread"] for row in learned] for kind in series}
    bars(right, [row["attention"].replace(" ", "\n") for row in learned], series, spreads=spreads)
    right.set(ylabel="mean similarity (cosine)", title="How alike the translator's heads are")
    right.tick_params(axis="x", labelsize=8)
    for axis in (left, right):
        axis.set_ylim(0, 1.3)
        axis.legend(loc="upper center", ncols=3)
    labels = result.data["labels"]
    seen = {(row["model"], row["label"]): row["heads"] for row in labels}
    news = sorted({row["model"] for row in labels} - {"trained"})
    names = sorted({row["label"] for row in labels}, key=lambda label: -seen.get(("trained", label), 0))
    found = [[seen.get((model, label), 0) for model in news] for label in names]
    series = {"new": [sum(x) / len(x) for x in found], "trained": [seen.get(("trained", label), 0) for label in names]}
    bars(kinds, [name.replace(" ", "\n") for name in names], series)
    kinds.set(ylabel="heads", title="What they do: the label that they have most often")
    kinds.tick_params(axis="x", labelsize=8)
    kinds.legend()
    cost = result.data["cost"]
    time.plot([row["heads"] for row in cost], [1e3 * row["seconds"] for row in cost], "-o", color=COLOURS[0])
    time.set(ylabel="milliseconds", title="Time of attention, 512 tokens, width 768")
    time.set_ylim(0, 1.2e3 * max(row["seconds"] for row in cost))
    lengths_axis(time, [row["heads"] for row in cost], "heads")
    return figure
