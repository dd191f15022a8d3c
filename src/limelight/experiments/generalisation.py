"""A rule learned on some sentences, tried on others: claim 17."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight import Causal
from limelight.experiments.findings import EXTRA, Finding, Result, holds, mean_and_spread
from limelight.experiments.lesson import Lesson
from limelight.experiments.training import accuracy, fit
from limelight.nn import MultiHeadAttention
from limelight.positions import T5, XL, ALiBi, Learned, Positions, Rotary, Sinusoidal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Generalisation",
    equation="q = x W_Q, k = x W_K, v = x W_V: the same W for every sentence",
    method=(
        "One attention layer learns a rule and is tested on new texts, on tokens that it never saw, with the mark at "
        "places where it never was, and on texts twice as long, with every position scheme. Two rules: “say the "
        "marked token”, which asks what a token is, and “say the token before”, which asks where it is. The "
        "embeddings are random and fixed, so nothing can be known of tokens that were not seen."
    ),
    code="""\
import torch
from limelight.experiments.generalisation import MARKED, learn_rule
print(learn_rule(MARKED, "none", seed=0, steps=60))     # share that is right, by test
print(learn_rule(MARKED, "learned", seed=0, steps=60))
""",
)
VOCABULARY, SEEN, WIDTH, HEADS = 320, 256, 32, 2  # more tokens than dimensions: a linear map cannot memorise them
LENGTH, LONGER = 16, 32
MARKED, BEFORE = "the marked token", "the token before"
RULES = (MARKED, BEFORE)
LEARNED = 0.9  # a rule counts as learned above this share of right answers
TESTS = {
    "new": "new texts",
    "unseen": "tokens never seen",
    "elsewhere": "marks at new places",
    "longer": "texts twice as long",
}


def schemes() -> dict[str, Positions]:
    """Make new schemes, which learn with the layer."""
    return {
        "none": Positions(),
        "sinusoidal": Sinusoidal(),
        "learned": Learned(LONGER, WIDTH),
        "rotary": Rotary(WIDTH // HEADS),
        "ALiBi": ALiBi(HEADS),
        "T5": T5(HEADS),
        "XL": XL(HEADS, WIDTH // HEADS, WIDTH),
    }


class Model(nn.Module):
    """One attention layer between a fixed embedding table and the same table as output head."""

    def __init__(self, scheme: Positions, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.scheme, self.layer = scheme, MultiHeadAttention(WIDTH, HEADS, positions=scheme)
        table = nn.functional.normalize(torch.randn(VOCABULARY + 1, WIDTH), dim=-1) * WIDTH**0.5
        self.register_buffer("table", table)

    def forward(self, ids: Tensor, marked: Tensor) -> Tensor:
        """Return logits; the mark is a vector that is added to the marked token."""
        table: Tensor = self.table  # type: ignore[assignment]
        x = table[ids] + marked[..., None] * table[VOCABULARY]
        y: Tensor = self.layer(self.scheme.embed(x), mask=Causal() if self.causal else None)
        logits: Tensor = y @ table[:VOCABULARY].T / WIDTH**0.5
        return logits


def _task(
    rule: str, tokens: range, count: int, n: int, g: torch.Generator, places: range | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw texts, marks and answers (−100 where none is wanted); a mark stands at one of ``places``, or anywhere."""
    ids = torch.randint(tokens.start, tokens.stop, (count, n), generator=g)
    marked = torch.zeros(count, n)
    if rule == MARKED:
        places = places or range(n)
        at = torch.randint(places.start, places.stop, (count, 1), generator=g)
        return ids, marked.scatter(1, at, 1.0), ids.gather(1, at).expand(count, n)
    return ids, marked, torch.cat([torch.full((count, 1), -100), ids[:, :-1]], 1)


def learn_rule(rule: str, name: str, seed: int, steps: int) -> dict[str, float]:
    """Train one layer with a position scheme and return its accuracy in each test.

    While it learns, marks stand in the first half of a text.
    """
    torch.manual_seed(seed)
    model = Model(schemes()[name], causal=rule == BEFORE)
    g = torch.Generator().manual_seed(seed)
    seen, unseen = range(SEEN), range(SEEN, VOCABULARY)
    first, second = range(LENGTH // 2), range(LENGTH // 2, LENGTH)

    def texts(tokens: range, count: int, n: int, places: range) -> tuple[tuple[Tensor, Tensor], Tensor]:
        ids, marked, target = _task(rule, tokens, count, n, g, places)
        return (ids, marked), target

    fit(model, lambda: texts(seen, 64, LENGTH, first), steps=steps, rate=1e-2)
    found = {
        "new": accuracy(model, lambda: texts(seen, 128, LENGTH, first)),
        "unseen": accuracy(model, lambda: texts(unseen, 128, LENGTH, first)),
    }
    if rule == MARKED:
        found["elsewhere"] = accuracy(model, lambda: texts(seen, 128, LENGTH, second))
    found["longer"] = accuracy(model, lambda: texts(seen, 128, LONGER, first))
    return found


def run(quick: bool = False, seed: int = 0) -> Result:
    """Measure accuracy on new texts, unseen tokens, new places and longer texts."""
    seeds, steps = range(seed, seed + (1 if quick else 2)), 150 if quick else 250
    rows: list[dict[str, Any]] = []
    for rule in RULES:
        for name in schemes():
            found = [learn_rule(rule, name, s, steps) for s in seeds]
            row: dict[str, Any] = {"rule": rule, "positions": name}
            for test in found[0]:
                row[test], row[f"{test} spread"] = mean_and_spread([x[test] for x in found])
            rows.append(row)
    learned = [row for row in rows if row["new"] > LEARNED]
    takeaway = (
        f"{len(learned)} of {len(rows)} layers learned their rule, and those get tokens that they never saw right in "
        f"at least {min((row['unseen'] for row in learned), default=0.0):.0%} of cases: what is learned is a kind of "
        "token."
    )
    return Result("generalisation", takeaway, _findings(rows), {"accuracy": rows})


def _findings(rows: list[dict[str, Any]]) -> list[Finding]:
    learned = [row for row in rows if row["new"] > LEARNED]
    marked, before = ([row for row in rows if row["rule"] == rule] for rule in RULES)
    least = {test: min((row[test] for row in learned), default=0.0) for test in ("new", "unseen")}
    elsewhere = {row["positions"]: round(row["elsewhere"], 2) for row in marked}
    fails = [name for name, x in elsewhere.items() if x <= LEARNED]
    guess = sum(1 / i for i in range(1, LENGTH)) / (LENGTH - 1)
    can = [row["positions"] for row in before if row["new"] > LEARNED]
    longer = {row["positions"]: round(row["longer"], 2) for row in before}
    return [
        Finding(
            claim=17,
            what="what is learned works on new sentences: least share that is right",
            theirs="works",
            measured=round(least["new"], 3),
            verdict=holds(len(learned) >= len(marked)),
            note=(
                f"over the {len(learned)} of {len(rows)} layers (a rule and a position scheme) that learned their rule"
            ),
        ),
        Finding(
            claim=17,
            what="and on kinds of tokens that were never seen",
            theirs="works",
            measured=round(least["unseen"], 3),
            verdict=holds(least["unseen"] > LEARNED),
            note=f"the same layers; guessing one of {LENGTH} tokens is right in {1 / LENGTH:.0%}",
        ),
        Finding(
            claim=17,
            what="and not positions: the marked token, with marks at places where none was, by scheme",
            theirs="works",
            measured=elsewhere,
            verdict=holds(not fails, in_part=len(fails) < len(elsewhere)),
            note=f"not with {', '.join(fails)}: there a place is learned like a kind" if fails else "with every scheme",
        ),
        Finding(
            claim=17,
            what="a rule about places: the token before",
            theirs=None,
            measured={row["positions"]: round(row["new"], 2) for row in before},
            verdict=EXTRA,
            note=f"one layer learns it with {', '.join(can) or 'none'}; guessing an earlier token gives {guess:.2f}",
        ),
        Finding(
            claim=17,
            what="and that rule in texts twice as long",
            theirs=None,
            measured=longer,
            verdict=EXTRA,
            note="not all that learned it can do it",
        ),
    ]


def draw(result: Result) -> Figure:
    """Draw the accuracy by scheme, a panel for each rule."""
    from limelight.experiments.figures import bars, legend_below, new_figure

    figure, axes = new_figure(2, 1, height=2.6)
    for axis, rule in zip(axes, RULES, strict=True):
        rows = [row for row in result.data["accuracy"] if row["rule"] == rule]
        heights = {label: [row.get(test, math.nan) for row in rows] for test, label in TESTS.items()}
        spreads = {label: [row.get(f"{test} spread", math.nan) for row in rows] for test, label in TESTS.items()}
        bars(axis, [row["positions"].replace("sinusoidal", "sinus.") for row in rows], heights, spreads=spreads)
        axis.set(ylabel="share right", ylim=(0, 1.05), title=f"Rule: say {rule}")
    legend_below(figure, axes[0], 2)
    return figure
