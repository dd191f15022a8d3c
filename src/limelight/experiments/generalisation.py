"""What is learned on some sentences works on others: claim 17.

Texts say that weights which were learned on some sentences work on new ones, because they transform kinds of words and
not positions. One attention layer learns a rule and is tested on new texts, on tokens that it never saw, with the mark
at places where it never was, and on longer texts, with every scheme of positions. Two rules: "say the marked token",
which asks what a token is, and "say the token before", which asks where it is. The embeddings are random and fixed, so
nothing can be known of the tokens that were not seen.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight.core.masks import Causal
from limelight.experiments.findings import BESIDE, Finding, Result, holds, mean_and_spread
from limelight.nn import MultiHeadAttention
from limelight.nn.positions import T5, XL, ALiBi, Learned, Positions, Rotary, Sinusoidal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Generalisation"
VOCABULARY, SEEN, WIDTH, HEADS = 320, 256, 32, 2  # more tokens than dimensions: no map fits those that were seen alone
LENGTH, LONGER = 16, 32
MARKED, BEFORE = "the marked token", "the token before"
RULES = (MARKED, BEFORE)
LEARNED = 0.9  # of what is to be said, from which on a rule counts as learned
TESTS = {
    "new": "new texts",
    "unseen": "tokens never seen",
    "elsewhere": "marks at new places",
    "longer": "texts twice as long",
}


def schemes() -> dict[str, Positions]:
    """New ones, which learn with the layer."""
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
    """One layer between an embedding that is fixed and the same one as a head."""

    def __init__(self, scheme: Positions, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.scheme, self.layer = scheme, MultiHeadAttention(WIDTH, HEADS, positions=scheme)
        table = nn.functional.normalize(torch.randn(VOCABULARY + 1, WIDTH), dim=-1) * WIDTH**0.5
        self.register_buffer("table", table)

    def forward(self, ids: Tensor, marked: Tensor) -> Tensor:
        """Logits; the mark is added to the token that has it."""
        table: Tensor = self.table  # type: ignore[assignment]
        x = table[ids] + marked[..., None] * table[VOCABULARY]
        y: Tensor = self.layer(self.scheme.embed(x), mask=Causal() if self.causal else None)
        logits: Tensor = y @ table[:VOCABULARY].T / WIDTH**0.5
        return logits


def _task(
    rule: str, tokens: range, count: int, n: int, g: torch.Generator, places: range | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Texts, marks and what is to be said; -100 where nothing is. A mark stands at one of the places, or anywhere."""
    ids = torch.randint(tokens.start, tokens.stop, (count, n), generator=g)
    marked = torch.zeros(count, n)
    if rule == MARKED:
        places = places or range(n)
        at = torch.randint(places.start, places.stop, (count, 1), generator=g)
        return ids, marked.scatter(1, at, 1.0), ids.gather(1, at).expand(count, n)
    return ids, marked, torch.cat([torch.full((count, 1), -100), ids[:, :-1]], 1)


def _learned(rule: str, name: str, seed: int, steps: int) -> dict[str, float]:
    """The share that is right in each of the tests. Marks stand in the first half of a text while it learns."""
    torch.manual_seed(seed)
    model = Model(schemes()[name], causal=rule == BEFORE)
    g = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    seen, unseen = range(SEEN), range(SEEN, VOCABULARY)
    first, second = range(LENGTH // 2), range(LENGTH // 2, LENGTH)
    for _ in range(steps):
        ids, marked, target = _task(rule, seen, 64, LENGTH, g, first)
        loss = nn.functional.cross_entropy(model(ids, marked).flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    @torch.no_grad()
    def right(tokens: range, n: int, places: range) -> float:
        ids, marked, target = _task(rule, tokens, 128, n, g, places)
        return float((model(ids, marked).argmax(-1) == target)[target >= 0].float().mean())

    found = {"new": right(seen, LENGTH, first), "unseen": right(unseen, LENGTH, first)}
    if rule == MARKED:
        found["elsewhere"] = right(seen, LENGTH, second)
    return {**found, "longer": right(seen, LONGER, first)}


def run(quick: bool = False, seed: int = 0) -> Result:
    """Accuracy on new texts, unseen tokens, new places and longer texts."""
    seeds, steps = range(seed, seed + (2 if quick else 3)), 150 if quick else 300
    rows: list[dict[str, Any]] = []
    for rule in RULES:
        for name in schemes():
            found = [_learned(rule, name, s, steps) for s in seeds]
            row: dict[str, Any] = {"rule": rule, "positions": name}
            for test in found[0]:
                row[test], row[f"{test} spread"] = mean_and_spread([x[test] for x in found])
            rows.append(row)
    return Result("generalisation", TITLE, _findings(rows), {"accuracy": rows}, __doc__ or "")


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
            *(17, "what is learned works on new sentences: least share that is right", "works", round(least["new"], 3)),
            holds(len(learned) >= len(marked)),
            f"over the {len(learned)} of {len(rows)} layers (a rule and a scheme of positions) that learned their rule",
        ),
        Finding(
            *(17, "and on kinds of tokens that were never seen", "works", round(least["unseen"], 3)),
            *(holds(least["unseen"] > LEARNED), f"the same; one of {LENGTH} tokens by chance is {1 / LENGTH:.2f}"),
        ),
        Finding(
            *(17, "and not positions: the marked token, with marks at places where none was, by scheme", "works"),
            elsewhere,
            holds(not fails, in_part=len(fails) < len(elsewhere)),
            f"not with {', '.join(fails)}: there a place is learned like a kind" if fails else "with every one",
        ),
        Finding(
            *(
                17,
                "a rule about places: the token before",
                None,
                {row["positions"]: round(row["new"], 2) for row in before},
            ),
            *(
                BESIDE,
                f"one layer learns it with {', '.join(can) or 'none'}; a guess among earlier tokens is {guess:.2f}",
            ),
        ),
        Finding(17, "and that rule in texts twice as long", None, longer, BESIDE, "not all that learned it can do it"),
    ]


def draw(result: Result) -> Figure:
    """Accuracy by scheme, a panel for each rule."""
    from limelight.experiments.figures import bars, new_figure

    figure, axes = new_figure(1, 2, width=6.0, height=3.8)
    for axis, rule in zip(axes, RULES, strict=True):
        rows = [row for row in result.data["accuracy"] if row["rule"] == rule]
        series = {label: [row.get(test, math.nan) for row in rows] for test, label in TESTS.items()}
        spreads = {label: [row.get(f"{test} spread", math.nan) for row in rows] for test, label in TESTS.items()}
        bars(axis, [row["positions"] for row in rows], series, spreads=spreads)
        axis.set(ylabel="share that is right", ylim=(0, 1.05), xlabel="positions", title=f"Rule: say {rule}")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure
