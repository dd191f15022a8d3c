"""Kinds of words in real embeddings and queries: claims 32 and 33."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from limelight.experiments.findings import EXTRA, MISSING, Finding, Result, holds
from limelight.experiments.lesson import Lesson
from limelight.experiments.real_models import HOW_TO_GET, RealModel, real_models
from limelight.nn import MultiHeadAttention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Words of a kind",
    equation="cos(e_cat, e_dog) > cos(e_cat, e_run)?   e_king − e_man + e_woman ≈ e_queen?   q = e W_Q",
    method=(
        "The token embeddings of MiniLM and of the translator are taken for 70 words of seven kinds, as far as a "
        "word is one token. Counted are the words whose nearest of the others is of their kind, and the share of "
        "analogies a : b = c : d that vector arithmetic solves among all words of the list. Then every word goes "
        "through the first layer's W_Q, and the cosines of queries are compared with those of embeddings over all "
        "pairs of words."
    ),
    code="""\
import torch
from limelight.experiments.real_models import real_models
model = real_models()[0]
def word(w):
    return torch.nn.functional.normalize(model.table[model.ids(w)[1 if model.name == "MiniLM" else 0]], dim=0)
for a, b in (("cat", "dog"), ("cat", "run"), ("red", "blue"), ("red", "seven")):
    print(a, b, float(word(a) @ word(b)))
""",
)
KINDS = {
    "animals": "cat dog horse cow bird fish mouse sheep lion bear",
    "verbs": "run walk eat drink sleep write read sing jump swim",
    "colours": "red blue green yellow black white brown grey pink orange",
    "countries": "france germany spain italy england china japan india russia canada",
    "numbers": "two three four five six seven eight nine ten eleven",
    "family": "father mother brother sister son daughter uncle aunt husband wife",
    "food": "bread cheese butter milk rice soup apple sugar salt meat",
}
ANALOGIES = (
    "man woman king queen|man woman uncle aunt|man woman father mother|man woman brother sister|man woman son "
    "daughter|man woman husband wife|boy girl brother sister|france paris germany berlin|france paris spain "
    "madrid|france paris italy rome|france paris england london|france paris japan tokyo|france paris russia "
    "moscow|big bigger small smaller|big bigger old older|big bigger high higher|walk walked jump jumped|walk walked "
    "play played|walk walked ask asked|go went come came|go went take took|cat cats dog dogs|cat cats house "
    "houses|cat cats book books|france french germany german|france french spain spanish|france french italy "
    "italian|good better bad worse"
)


def run(quick: bool = False, seed: int = 0) -> Result:
    """Measure neighbours, analogies and cosines in real embeddings."""
    models = real_models()
    rows, findings, map_rows = [], [], []
    for model in models:
        words, kinds, E = known_words(model)
        Q = first_queries(model, E)
        row = {"model": model.name, "words": len(words)} | _neighbours(E, Q, kinds) | _analogies(model)
        rows.append(row)
        findings += _judge(row)
        map_rows += _kind_map(model.name, E, kinds)
    if all(model.name != "MiniLM" for model in models):
        findings.append(Finding(33, "words of a kind in MiniLM", "neighbours", None, MISSING, HOW_TO_GET))
    first = rows[0]
    takeaway = (
        f"In {first['model']} the nearest word is of the same kind for {first['of a kind']:.0%} of words (guessing: "
        f"{first['chance']:.0%}), as embeddings, and for {first['of a kind, queries']:.0%} as queries; arithmetic "
        f"solves {first['solved']:.0%} of analogies."
    )
    return Result("embeddings", takeaway, findings, {"measures": rows, "kinds": map_rows})


def _vector(model: RealModel, word: str) -> Tensor | None:
    """Return the embedding of a word that is one token, else None."""
    ids = [i for i in model.ids(word) if model.tokenizer.id_to_token(i) not in ("[CLS]", "[SEP]", "</s>")]
    return model.table[ids[0]] if len(ids) == 1 else None


def known_words(model: RealModel) -> tuple[list[str], Tensor, Tensor]:
    """Return the words that are one token, the numbers of their kinds and their embeddings."""
    words, kinds, vectors = [], [], []
    for kind, names in enumerate(KINDS.values()):
        for word in names.split():
            vector = _vector(model, word)
            if vector is not None:
                words.append(word)
                kinds.append(kind)
                vectors.append(vector)
    return words, torch.tensor(kinds), torch.stack(vectors)


def first_queries(model: RealModel, E: Tensor) -> Tensor:
    """Return the queries that the first layer makes of embeddings, those of all heads next to each other."""
    layer = next(module for module in model.model.modules() if isinstance(module, MultiHeadAttention))
    with torch.no_grad():
        return layer.query(E)  # type: ignore[no-any-return]


def _cosines(x: Tensor) -> Tensor:
    x = normalize(x - x.mean(0), dim=-1)  # the mean over all words does not tell kinds apart
    return x @ x.T


def _neighbours(E: Tensor, Q: Tensor, kinds: Tensor) -> dict[str, float]:
    same = kinds[:, None] == kinds
    found: dict[str, float] = {}
    pairs = torch.ones_like(same).triu(1).bool()
    cosines = {"": _cosines(E), ", queries": _cosines(Q)}
    for name, C in cosines.items():
        nearest = (C - 2 * torch.eye(len(C))).argmax(1)
        found[f"of a kind{name}"] = float((kinds[nearest] == kinds).float().mean())
        found[f"cosine within{name}"] = float(C[same & pairs].mean())
        found[f"cosine between{name}"] = float(C[~same & pairs].mean())
    found["chance"] = float((same.float().sum() - len(E)) / (len(E) * (len(E) - 1)))
    both = torch.stack([C[pairs] for C in cosines.values()])
    found["correlation"] = float(torch.corrcoef(both)[0, 1])
    return found


def _analogies(model: RealModel) -> dict[str, float]:
    """Solve a : b = c : ? by the nearest word to b − a + c, which may not be one of the three."""
    questions = [line.split() for line in ANALOGIES.split("|")]
    kinds = [text.split() for text in KINDS.values()]
    names = sorted({word for words in (*questions, *kinds) for word in words})
    table = {word: vector for word in names if (vector := _vector(model, word)) is not None}
    known = [q for q in questions if all(word in table for word in q)]
    words, vectors = list(table), normalize(torch.stack(list(table.values())), dim=-1)
    solved = copied = 0
    for a, b, c, d in known:
        x = [vectors[words.index(word)] for word in (a, b, c)]
        order = (vectors @ (x[1] - x[0] + x[2])).argsort(descending=True).tolist()
        copied += words[order[0]] in (a, b, c)
        solved += next(words[i] for i in order if words[i] not in (a, b, c)) == d
    n = max(len(known), 1)
    return {"analogies": len(known), "solved": solved / n, "copied": copied / n, "candidates": len(words)}


def _kind_map(model: str, E: Tensor, kinds: Tensor) -> list[dict[str, Any]]:
    C = _cosines(E)
    rows = []
    for a, first in enumerate(KINDS):
        for b, second in enumerate(KINDS):
            block = C[kinds == a][:, kinds == b]
            mean = (block.sum() - (block.trace() if a == b else 0.0)) / (block.numel() - (len(block) if a == b else 0))
            rows.append({"model": model, "kind": first, "other": second, "cosine": float(mean)})
    return rows


def _judge(row: dict[str, Any]) -> list[Finding]:
    name, gap = row["model"], row["cosine within"] - row["cosine between"]
    query_gap = row["cosine within, queries"] - row["cosine between, queries"]
    return [
        Finding(
            claim=33,
            what=f"{name}: words whose nearest word is of their kind",
            theirs="most",
            measured=round(row["of a kind"], 2),
            verdict=holds(row["of a kind"] > 0.75, in_part=row["of a kind"] > 2 * row["chance"]),
            note=(
                f"of {row['words']} words in seven kinds; guessing gives {row['chance']:.2f}; cosine within a kind "
                f"{row['cosine within']:.2f}, between kinds {row['cosine between']:.2f}"
            ),
        ),
        Finding(
            claim=33,
            what=f"{name}: analogies solved by b − a + c",
            theirs="most",
            measured=round(row["solved"], 2),
            verdict=holds(row["solved"] > 0.5, in_part=row["solved"] > 10 / row["candidates"]),
            note=(
                f"of {row['analogies']} among {row['candidates']} words, with the three of the question left out; "
                f"left in, the nearest is one of them in {row['copied']:.0%}"
            ),
        ),
        Finding(
            claim=32,
            what=f"{name}: similar embeddings have similar queries: correlation of their cosines over all pairs",
            theirs="high",
            measured=round(row["correlation"], 2),
            verdict=holds(row["correlation"] > 0.7, in_part=row["correlation"] > 0.3),
            note=f"within kinds minus between kinds: embeddings {gap:.2f}, queries of the first layer {query_gap:.2f}",
        ),
        Finding(
            claim=32,
            what=f"{name}: words whose nearest query is of their kind",
            theirs=None,
            measured=round(row["of a kind, queries"], 2),
            verdict=EXTRA,
            note="W_Q keeps some directions and drops others",
        ),
    ]


def draw(result: Result) -> Figure:
    """Draw the mean cosine between kinds of words."""
    from limelight.experiments.figures import heatmap, new_figure

    rows = result.data["kinds"]
    model = rows[0]["model"]
    cosine = {(row["kind"], row["other"]): row["cosine"] for row in rows if row["model"] == model}
    figure, axis = new_figure(height=3.7)
    names = list(KINDS)
    heatmap(axis, [[cosine[a, b] for b in names] for a in names], names, names, numbers=".2f", signed=True)
    axis.tick_params(axis="x", rotation=35)
    axis.set_title(f"{model}: cosine of two words, by their kinds")
    return figure
