"""What is learned on some tokens works on others: claim 17.

One attention layer learns a rule on some of the tokens and is tested on the others, and on longer texts, with every
scheme of positions. Two rules: "say the marked token", which asks what a token is, and "say the token before", which
asks where it is. The embeddings are random and fixed, so nothing can be known of the tokens that were not seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight.experiments.findings import Finding, Result, holds, mean_and_spread
from limelight.masks import Causal
from limelight.nn import MultiHeadAttention
from limelight.positions import T5, ALiBi, Learned, Positions, Rotary, Sinusoidal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Generalisation"
VOCABULARY, SEEN, WIDTH, HEADS = 320, 256, 32, 2  # more tokens than dimensions: no map fits those that were seen alone
LENGTH, LONGER = 16, 32
RULES = ("the marked token", "the token before")


def schemes() -> dict[str, Positions]:
    """New ones, which learn with the layer."""
    return {
        "none": Positions(),
        "sinusoidal": Sinusoidal(),
        "learned": Learned(LONGER, WIDTH),
        "rotary": Rotary(WIDTH // HEADS),
        "ALiBi": ALiBi(HEADS),
        "T5": T5(HEADS),
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


def _task(rule: str, tokens: range, count: int, n: int, g: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Texts, marks and what is to be said; -100 where nothing is."""
    ids = torch.randint(tokens.start, tokens.stop, (count, n), generator=g)
    marked = torch.zeros(count, n)
    if rule == "the marked token":
        at = torch.randint(0, n, (count, 1), generator=g)
        return ids, marked.scatter(1, at, 1.0), ids.gather(1, at).expand(count, n)
    return ids, marked, torch.cat([torch.full((count, 1), -100), ids[:, :-1]], 1)


def _learned(rule: str, name: str, seed: int, steps: int) -> dict[str, float]:
    torch.manual_seed(seed)
    model = Model(schemes()[name], causal=rule == "the token before")
    g = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    seen, unseen = range(SEEN), range(SEEN, VOCABULARY)
    for _ in range(steps):
        ids, marked, target = _task(rule, seen, 64, LENGTH, g)
        loss = nn.functional.cross_entropy(model(ids, marked).flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    @torch.no_grad()
    def right(tokens: range, n: int) -> float:
        ids, marked, target = _task(rule, tokens, 128, n, g)
        return float((model(ids, marked).argmax(-1) == target)[target >= 0].float().mean())

    return {"seen": right(seen, LENGTH), "unseen": right(unseen, LENGTH), "longer": right(seen, LONGER)}


def run(quick: bool = False, seed: int = 0) -> Result:
    """Accuracy on seen and unseen tokens, and on longer texts."""
    seeds, steps = range(seed, seed + (1 if quick else 3)), 150 if quick else 300
    rows: list[dict[str, Any]] = []
    for rule in RULES:
        for name in schemes():
            found = [_learned(rule, name, s, steps) for s in seeds]
            row: dict[str, Any] = {"rule": rule, "positions": name}
            for test in ("seen", "unseen", "longer"):
                row[test], row[f"{test} spread"] = mean_and_spread([x[test] for x in found])
            rows.append(row)
    by = {(row["rule"], row["positions"]): row for row in rows}
    before = [by[RULES[1], name] for name in schemes()]
    learned = [row for row in rows if row["seen"] > 0.9]
    gap = max(row["seen"] - row["unseen"] for row in learned)
    without = by["the token before", "none"]
    can = [row["positions"] for row in before if row["seen"] > 0.9]
    findings = [
        Finding(
            *(17, "what is learned works on tokens that were never seen: accuracy on them", "works"),
            *(round(min(row["unseen"] for row in learned), 3), holds(bool(learned) and gap < 0.1)),
            "the least over rules and schemes that were learned; chance is " + f"{1 / VOCABULARY:.3f}",
        ),
        Finding(
            *(17, "a rule about kinds of tokens needs no positions: accuracy without", "works"),
            *(
                round(by["the marked token", "none"]["unseen"], 3),
                holds(by["the marked token", "none"]["unseen"] > 0.9),
            ),
        ),
        Finding(
            *(17, "and not positions: a rule about places, without positions", "works", round(without["seen"], 3)),
            *(
                holds(without["seen"] > 0.9),
                f"where a rule is about places, weights must know them; one layer learns it with {', '.join(can)}",
            ),
        ),
        Finding(
            *(
                17,
                "and in texts twice as long, by scheme",
                "works",
                {row["positions"]: round(row["longer"], 2) for row in before},
            ),
            *(
                holds(all(row["longer"] > 0.9 for row in before if row["seen"] > 0.9)),
                "the token before; what is learned by place does not reach further",
            ),
        ),
    ]
    return Result("generalisation", TITLE, findings, {"accuracy": rows}, __doc__ or "")


def draw(result: Result) -> Figure:
    """Accuracy by scheme, a panel for each rule."""
    from limelight.experiments.figures import bars, new_figure

    figure, axes = new_figure(1, 2, width=5.4, height=3.8)
    tests = {"seen": "tokens seen", "unseen": "tokens never seen", "longer": "texts twice as long"}
    for axis, rule in zip(axes, RULES, strict=True):
        rows = [row for row in result.data["accuracy"] if row["rule"] == rule]
        series = {label: [row[test] for row in rows] for test, label in tests.items()}
        spreads = {label: [row[f"{test} spread"] for row in rows] for test, label in tests.items()}
        bars(axis, [row["positions"] for row in rows], series, spreads=spreads)
        axis.set(ylabel="share that is right", ylim=(0, 1.05), xlabel="positions", title=f"Rule: say {rule}")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
