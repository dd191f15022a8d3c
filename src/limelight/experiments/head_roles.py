"""Grammatical roles of the heads of real models: claim 31."""

from __future__ import annotations

import json
import math
from collections import Counter
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from limelight.experiments.findings import MISSING, Finding, Result, holds
from limelight.experiments.lesson import Lesson
from limelight.experiments.real_models import HOW_TO_GET, RealModel, real_models
from limelight.lens import relation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Roles of heads",
    equation="accuracy of a head = share of pairs (i, j) with Aᵢⱼ > Aᵢₖ for every other token k",
    method=(
        "68 sentences were written and annotated for this: verbs with their subjects, pronouns with their "
        "antecedents, modifiers with their nouns, and synonyms. Every head of MiniLM and of the translator's encoder "
        "is scored by lens.relation, in both directions. A model has many heads, so that one is good by chance: the "
        "head is chosen on one half of the sentences and scored on the other, and the other way round. It is "
        "compared with a guess among all tokens, and with always looking at the same distance, which is chosen in "
        "the same way."
    ),
    code="""\
from limelight.experiments.real_models import real_models
from limelight.lens import relation
text = "The animal did not cross the street because it was tired."
for model in real_models():
    place = model.places(text)
    best = relation(model.read(text), [(place[8], place[1])], stack="encoder")[0]   # it -> animal
    print(model.name, best["layer"], best["head"], best["weight"], "chance", best["chance"])
""",
)
RELATIONS = ("verb to subject", "pronoun to antecedent", "modifier to noun", "synonyms")


@cache
def annotated() -> tuple[dict[str, Any], ...]:
    """Read the annotated sentences that come with limelight."""
    text = files("limelight.experiments").joinpath("data", "relations.json").read_text(encoding="utf-8")
    return tuple(json.loads(text)["sentences"])


def run(quick: bool = False, seed: int = 0) -> Result:
    """Score every head on every relation, on sentences that it was not chosen on."""
    found = real_models()
    rows, findings = [], []
    for model in found:
        for name in RELATIONS:
            sentences = [s for s in annotated() if s["relation"] == name]
            rows.append({"model": model.name, "relation": name} | _score(model, sentences[: 8 if quick else None]))
            findings.append(_judge(rows[-1]))
    if all(model.name != "MiniLM" for model in found):
        findings += [Finding(31, f"MiniLM: {name}", "above chance", None, MISSING, HOW_TO_GET) for name in RELATIONS]
    best = max(rows, key=lambda row: row["accuracy"] - row["distance"])
    has = [row["relation"] for row in rows if row["model"] == rows[0]["model"] and _above(row)]
    named = f" ({', '.join(has)})" if has else ""
    takeaway = (
        f"Of {len(RELATIONS)} relations {rows[0]['model']} has clear heads for {len(has)}{named}; the clearest head, "
        f"in {best['model']}, is right in {best['accuracy']:.0%} of pairs where a fixed distance is in "
        f"{best['distance']:.0%}."
    )
    return Result("head-roles", takeaway, findings, {"roles": rows})


def _score(model: RealModel, sentences: list[dict[str, Any]]) -> dict[str, Any]:
    """Choose a head, and a distance, on one half of the sentences and score them on the other; then the other way."""
    heads: list[dict[tuple[int, int, str], float]] = [{}, {}]  # right pairs by head and direction, for each half
    distances: list[Counter[int]] = [Counter(), Counter()]
    pairs, chance = [0, 0], 0.0
    for n, sentence in enumerate(sentences):
        place = model.places(sentence["text"])
        wanted = [(place[a], place[b]) for a, b in sentence["pairs"]]
        half, count = n % 2, len(wanted)
        pairs[half] += count
        distances[half].update(b - a for a, b in sentence["pairs"])
        record = model.read(sentence["text"])
        for direction, some in (("", wanted), (" backwards", [(b, a) for a, b in wanted])):
            for row in relation(record, some, stack="encoder"):
                key = (row["layer"], row["head"], direction)
                heads[half][key] = heads[half].get(key, 0.0) + row["accuracy"] * count
        chance += sum(1 / len(model.ids(sentence["text"])) for _ in wanted)
    right = by_distance = 0.0
    chosen = []
    for half in (0, 1):
        head = max(heads[half], key=lambda key: heads[half][key])
        right += heads[1 - half][head]
        by_distance += distances[1 - half][distances[half].most_common(1)[0][0]]
        chosen.append(f"{head[0]}.{head[1]}{head[2]}")
    total = sum(pairs)
    return {
        "heads": len(heads[0]) // 2,
        "pairs": total,
        "accuracy": right / total,
        "distance": by_distance / total,
        "chance": chance / total,
        "chosen": " and ".join(dict.fromkeys(chosen)),
    }


def _above(row: dict[str, Any]) -> bool:
    """Return whether a head beats guessing and the best distance by two standard errors."""
    p = row["accuracy"]
    error = math.sqrt(max(p * (1 - p), 0.25 / row["pairs"]) / row["pairs"])
    return bool(p - 2 * error > max(row["distance"], row["chance"]))


def _judge(row: dict[str, Any]) -> Finding:
    return Finding(
        claim=31,
        what=f"{row['model']}, {row['relation']}: right pairs of the chosen head",
        theirs=f"above {max(row['chance'], row['distance']):.2f}",
        measured=round(row["accuracy"], 2),
        verdict=holds(_above(row), in_part=row["accuracy"] > max(row["distance"], row["chance"])),
        note=(
            f"head {row['chosen']} of {row['heads']}, over {row['pairs']} pairs it was not chosen on; a guess is "
            f"right in {row['chance']:.2f}, the best fixed distance in {row['distance']:.2f}; reproduced: above both "
            "by 2 standard errors"
        ),
    )


def draw(result: Result) -> Figure:
    """Draw the accuracy of the chosen heads next to guessing and a fixed distance."""
    from limelight.experiments.figures import COLOURS, GREY, bars, legend_below, new_figure

    rows = result.data["roles"]
    models = list(dict.fromkeys(row["model"] for row in rows))
    figure, axis = new_figure(height=3.4)
    first = [row for row in rows if row["model"] == models[0]]
    heights = {"a guess": [row["chance"] for row in first], "best fixed distance": [row["distance"] for row in first]}
    for name in models:
        heights[f"best head, {name}"] = [row["accuracy"] for row in rows if row["model"] == name]
    bars(axis, [name.replace(" to ", "\nto ") for name in RELATIONS], heights, colours=(GREY, COLOURS[4], *COLOURS))
    axis.set(ylabel="share of pairs", ylim=(0, 1.05), title="Do heads follow grammar?")
    legend_below(figure, axis, 2)
    return figure
