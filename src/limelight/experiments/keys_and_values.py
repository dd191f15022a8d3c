"""Separate projections for keys and values, or one for both: claim 24."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight import attention
from limelight.experiments.findings import BESIDE, Finding, Result, holds, mean_and_spread, plus_minus, rounded
from limelight.experiments.lesson import Lesson
from limelight.experiments.training import accuracy, fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Keys and values",
    equation="y = softmax(q kᵀ / √d) v, with v = k or v = x W_V",
    method=(
        "Associative recall: a text of pairs, each a name and a content, is followed by one of the names, and its "
        "content is wanted. Each pair is one token, the sum of two random vectors. One head has to match names and "
        "hand on contents. It learns with projections of their own for keys and values, with one for both (v = k), "
        "and with values that are not projected (v = x), each with an output layer of the same size."
    ),
    code="""\
import torch
from limelight.experiments.keys_and_values import WAYS, learn
for way in WAYS:
    print(way, learn(way, pairs=8, seed=0, steps=100))   # share of contents that are recalled
""",
)
NAMES = CONTENTS = 32
WIDTH, HEAD = 48, 12
PAIRS = (4, 8, 16)
WAYS = ("separate", "v = k", "v = x")


class Recall(nn.Module):
    """One head over pairs: keys for matching, values for content, and a linear map to the contents."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.register_buffer("names", torch.randn(NAMES, WIDTH) / WIDTH**0.5)
        self.register_buffer("contents", torch.randn(CONTENTS, WIDTH) / WIDTH**0.5)
        self.query, self.key, self.value = (nn.Linear(WIDTH, HEAD, bias=False) for _ in range(3))
        self.out = nn.Linear(WIDTH if way == "v = x" else HEAD, CONTENTS)
        self.sharpness = nn.Parameter(torch.tensor(8.0))

    def forward(self, names: Tensor, contents: Tensor, asked: Tensor) -> Tensor:
        """Return logits ``(B, 1, contents)`` for pairs ``(B, n)`` and the name that is asked ``(B,)``."""
        x = self.names[names] + self.contents[contents]  # type: ignore[index]
        q, k = self.query(self.names[asked])[:, None], self.key(x)  # type: ignore[index]
        v = {"separate": self.value(x), "v = k": k, "v = x": x}[self.way]
        y = attention(self.sharpness * q[:, None], k[:, None], v[:, None])[:, 0]
        logits: Tensor = self.out(y)
        return logits


def learn(way: str, pairs: int, seed: int, steps: int) -> float:
    """Train one head and return the share of contents that it recalls in new texts."""
    torch.manual_seed(seed)
    model = Recall(way)
    g = torch.Generator().manual_seed(seed)

    def batch(count: int = 64) -> tuple[tuple[Tensor, ...], Tensor]:
        names = torch.rand(count, NAMES, generator=g).argsort(1)[:, :pairs]  # no name twice
        contents = torch.randint(0, CONTENTS, (count, pairs), generator=g)
        at = torch.randint(0, pairs, (count, 1), generator=g)
        return (names, contents, names.gather(1, at)[:, 0]), contents.gather(1, at)

    fit(model, batch, steps=steps, rate=1e-2)
    return accuracy(model, lambda: batch(1000))


def run(quick: bool = False, seed: int = 0) -> Result:
    """Train all three ways on several numbers of pairs."""
    seeds, steps = range(seed, seed + (1 if quick else 3)), 300 if quick else 800
    rows: list[dict[str, Any]] = []
    for pairs in PAIRS[1:2] if quick else PAIRS:
        for way in WAYS:
            mean, spread = mean_and_spread([learn(way, pairs, s, steps) for s in seeds])
            rows.append({"pairs": pairs, "way": way, "recalled": mean, "spread": spread})
    by = {way: [row for row in rows if row["way"] == way] for way in WAYS}
    gaps = [a["recalled"] - b["recalled"] for a, b in zip(by["separate"], by["v = k"], strict=True)]
    numbers = ", ".join(str(row["pairs"]) for row in by["separate"])
    findings = [
        Finding(
            claim=24,
            what=f"recall with separate projections is better than with v = k: difference, {numbers} pairs",
            theirs="above 0",
            measured=rounded(gaps),
            verdict=holds(min(gaps) > 0.05, in_part=max(gaps) > 0.05),
            note=(
                f"separate {rounded([r['recalled'] for r in by['separate']])}, "
                f"{plus_minus([r['spread'] for r in by['separate']])}; v = k "
                f"{rounded([r['recalled'] for r in by['v = k']])}, {plus_minus([r['spread'] for r in by['v = k']])}; "
                f"guessing is {1 / CONTENTS:.2f}"
            ),
        ),
        Finding(
            claim=24,
            what="keys and values need them: recall with v = k is no better than guessing one of the pairs",
            theirs=rounded([1 / row["pairs"] for row in by["v = k"]]),
            measured=rounded([row["recalled"] for row in by["v = k"]]),
            verdict=holds(
                all(row["recalled"] < 1.5 / row["pairs"] for row in by["v = k"]),
                in_part=all(
                    x["recalled"] < 0.9 * y["recalled"] for x, y in zip(by["v = k"], by["separate"], strict=True)
                ),
            ),
            note="one projection has to hold name and content in the same numbers: it does both worse, and does them",
        ),
        Finding(
            claim=24,
            what="values that are not projected at all (v = x)",
            theirs=None,
            measured=rounded([row["recalled"] for row in by["v = x"]]),
            verdict=BESIDE,
            note=f"they are wider ({WIDTH} against {HEAD}), and their output layer finds the content in them",
        ),
    ]
    middle = len(by["separate"]) // 2
    takeaway = (
        f"With {by['separate'][middle]['pairs']} pairs a head recalls {by['separate'][middle]['recalled']:.0%} of the "
        f"contents with projections of their own and {by['v = k'][middle]['recalled']:.0%} with one for both."
    )
    return Result("keys-and-values", takeaway, findings, {"recall": rows})


def draw(result: Result) -> Figure:
    """Draw the recall of each way by the number of pairs."""
    from limelight.experiments.figures import bars, legend_below, new_figure

    figure, axis = new_figure(height=3.0)
    rows = result.data["recall"]
    pairs = list(dict.fromkeys(row["pairs"] for row in rows))
    heights = {way: [row["recalled"] for row in rows if row["way"] == way] for way in WAYS}
    spreads = {way: [row["spread"] for row in rows if row["way"] == way] for way in WAYS}
    bars(axis, pairs, heights, spreads=spreads)
    axis.set(xlabel="pairs in the text", ylabel="share recalled", ylim=(0, 1.05), title="Recall of one head")
    legend_below(figure, axis, 3)
    return figure
