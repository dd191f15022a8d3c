"""Separate projections for keys and values, or one for both: claim 24."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight import attention
from limelight.experiments.findings import EXTRA, Finding, Result, holds, mean_and_spread, plus_minus, rounded
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
        "and with values that are not projected (v = x)."
    ),
    code="""\
import torch
from limelight.experiments.keys_and_values import WAYS, learn
for way in WAYS:
    print(way, learn(way, head_width=8, seed=0, steps=100))   # share of contents that are recalled
""",
)
NAMES = CONTENTS = 32
WIDTH, PAIRS = 48, 8
HEAD_WIDTHS = (4, 8, 16)
WAYS = ("separate", "v = k", "v = x")


class Recall(nn.Module):
    """One head over pairs: keys for matching, values for content, and a linear map to the contents."""

    def __init__(self, way: str, head_width: int) -> None:
        super().__init__()
        self.way = way
        self.register_buffer("names", torch.randn(NAMES, WIDTH) / WIDTH**0.5)
        self.register_buffer("contents", torch.randn(CONTENTS, WIDTH) / WIDTH**0.5)
        self.query, self.key, self.value = (nn.Linear(WIDTH, head_width, bias=False) for _ in range(3))
        self.out = nn.Linear(WIDTH if way == "v = x" else head_width, CONTENTS)
        self.sharpness = nn.Parameter(torch.tensor(8.0))

    def forward(self, names: Tensor, contents: Tensor, asked: Tensor) -> Tensor:
        """Return logits ``(B, 1, contents)`` for pairs ``(B, n)`` and the name that is asked ``(B,)``."""
        x = self.names[names] + self.contents[contents]  # type: ignore[index]
        q, k = self.query(self.names[asked])[:, None], self.key(x)  # type: ignore[index]
        v = {"separate": self.value(x), "v = k": k, "v = x": x}[self.way]
        y = attention(self.sharpness * q[:, None], k[:, None], v[:, None])[:, 0]
        logits: Tensor = self.out(y)
        return logits


def learn(way: str, head_width: int, seed: int, steps: int) -> float:
    """Train one head and return the share of contents that it recalls in new texts."""
    torch.manual_seed(seed)
    model = Recall(way, head_width)
    g = torch.Generator().manual_seed(seed)

    def batch(count: int = 64) -> tuple[tuple[Tensor, ...], Tensor]:
        names = torch.rand(count, NAMES, generator=g).argsort(1)[:, :PAIRS]  # no name twice
        contents = torch.randint(0, CONTENTS, (count, PAIRS), generator=g)
        at = torch.randint(0, PAIRS, (count, 1), generator=g)
        return (names, contents, names.gather(1, at)[:, 0]), contents.gather(1, at)

    fit(model, batch, steps=steps, rate=1e-2)
    return accuracy(model, lambda: batch(1000))


def run(quick: bool = False, seed: int = 0) -> Result:
    """Train all three ways, for several widths of the head."""
    seeds, steps = range(seed, seed + (1 if quick else 2)), 200 if quick else 400
    rows: list[dict[str, Any]] = []
    for width in HEAD_WIDTHS[1:2] if quick else HEAD_WIDTHS:
        for way in WAYS:
            mean, spread = mean_and_spread([learn(way, width, s, steps) for s in seeds])
            rows.append({"head width": width, "way": way, "recalled": mean, "spread": spread})
    by = {way: [row for row in rows if row["way"] == way] for way in WAYS}
    recalled = {way: [row["recalled"] for row in mine] for way, mine in by.items()}
    gaps = [a - b for a, b in zip(recalled["separate"], recalled["v = k"], strict=True)]
    widths = ", ".join(str(row["head width"]) for row in by["separate"])
    findings = [
        Finding(
            claim=24,
            what=f"recall with projections of their own is better than with v = k: difference, heads of width {widths}",
            theirs="above 0",
            measured=rounded(gaps),
            verdict=holds(min(gaps) > 0.05, in_part=max(gaps) > 0.05),
            note=(
                f"separate {rounded(recalled['separate'])}, {plus_minus([r['spread'] for r in by['separate']])}; v = k "
                f"{rounded(recalled['v = k'])}, {plus_minus([r['spread'] for r in by['v = k']])}; guessing one of the "
                f"contents that are there is right in {1 / PAIRS:.2f}"
            ),
        ),
        Finding(
            claim=24,
            what="keys and values need them: recall with v = k",
            theirs=f"about {1 / PAIRS:.2f}",
            measured=rounded(recalled["v = k"]),
            verdict=holds(max(recalled["v = k"]) < 1.5 / PAIRS, in_part=max(gaps) > 0.05),
            note="one projection has to hold name and content in the same numbers: that takes more width, and works",
        ),
        Finding(
            claim=24,
            what="values that are not projected at all (v = x)",
            theirs=None,
            measured=rounded(recalled["v = x"]),
            verdict=EXTRA,
            note=f"they have all {WIDTH} numbers, and the output layer finds the content in them",
        ),
    ]
    takeaway = (
        f"A head of width {by['separate'][0]['head width']} recalls {recalled['separate'][0]:.0%} of the contents with "
        f"projections of their own for keys and values and {recalled['v = k'][0]:.0%} with one for both."
    )
    return Result("keys-and-values", takeaway, findings, {"recall": rows})


def draw(result: Result) -> Figure:
    """Draw the recall of each way by the width of the head."""
    from limelight.experiments.figures import bars, chance_line, legend_below, new_figure

    figure, axis = new_figure(height=3.0)
    rows = result.data["recall"]
    widths = list(dict.fromkeys(row["head width"] for row in rows))
    heights = {way: [row["recalled"] for row in rows if row["way"] == way] for way in WAYS}
    spreads = {way: [row["spread"] for row in rows if row["way"] == way] for way in WAYS}
    bars(axis, widths, heights, spreads=spreads)
    chance_line(axis, 1 / PAIRS)
    axis.set(xlabel="width of the head", ylabel="share recalled", ylim=(0, 1.05), title=f"Recall among {PAIRS} pairs")
    legend_below(figure, axis, 4)
    return figure
