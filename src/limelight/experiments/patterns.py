"""Full, causal and local attention, and how their cost grows: claim 15."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from limelight import Causal, Window, attention
from limelight.experiments.findings import Finding, Result, exponent, holds
from limelight.experiments.lesson import Lesson
from limelight.experiments.measuring import judge_ratio, time_ratio

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Patterns",
    equation="weights: full n², causal n (n + 1) / 2, local about n · w",
    method=(
        "The weights that each mask allows are counted for growing lengths and windows, and the powers by which they "
        "grow are fitted. The time is measured as a ratio, twice the tokens or the window against once, in turns on "
        "one thread: limelight computes only what a mask allows."
    ),
    code="""\
import limelight as ll
for mask in (ll.Causal(), ll.Window(1), ll.Causal() & ll.Window(3), ll.Causal() & (ll.Window(2) | ll.First(1))):
    print(mask)
    print(mask.dense(12).sum(), "of", 12 * 12, "weights")
""",
)
LOCAL = "local, window 3"
PATTERNS: dict[str, tuple[Any, float]] = {
    "full": (None, 2.0),
    "causal": (Causal(), 2.0),
    LOCAL: (Window(1), 1.0),  # the token and a neighbour on either side
}
HEADS, WIDTH = 2, 64
LENGTHS = (128, 256, 512, 1024, 2048)
WINDOWS = (257, 513, 1025)  # keys of a window: the query and radii that double


def run(quick: bool = False, seed: int = 0) -> Result:
    """Count weights and take ratios of times, for growing lengths and windows."""
    torch.manual_seed(seed)
    counts = [
        {"pattern": name, "tokens": n, "weights": count(mask, n)}
        for name, (mask, _) in PATTERNS.items()
        for n in LENGTHS
    ]
    findings = [_counted(name, counts) for name in PATTERNS]
    share = count(Causal(), 2048) / 2048**2
    findings.append(
        Finding(15, "causal: share of the n² weights", 0.5, round(share, 3), holds(abs(share - 0.5) < 0.01))
    )
    n = 1024 if quick else 2048
    findings += [_timed(name, 8 * n if name == LOCAL else n) for name in PATTERNS]
    windows = [{"window": w, "weights": count(Window(w // 2), 8192)} for w in WINDOWS]
    findings += _judge_windows(windows, 4 * n)
    takeaway = (
        f"Of {2048**2:,} weights of 2048 tokens, causal attention computes {share:.0%} and a window of 3 computes "
        f"{count(Window(1), 2048):,}: full and causal grow as n², local as n·w."
    )
    return Result("patterns", takeaway, findings, {"growth": counts, "windows": windows})


def count(mask: Any, n: int) -> int:
    """Count the weights that a mask allows among n tokens."""
    return n * n if mask is None else int(mask.dense(n).sum())


def _counted(name: str, counts: list[dict[str, Any]]) -> Finding:
    mine = [row for row in counts if row["pattern"] == name]
    power, found = PATTERNS[name][1], exponent(LENGTHS, [row["weights"] for row in mine])
    return Finding(
        claim=15,
        what=f"{name}: number of weights grows as n to the power",
        theirs=power,
        measured=round(found, 2),
        verdict=holds(abs(found - power) <= 0.05, in_part=(found > 1.5) == (power > 1.5)),
        note=f"from {LENGTHS[0]} to {LENGTHS[-1]} tokens",
    )


def _call(mask: Any, n: int) -> Any:
    q, k, v = torch.randn(3, 1, HEADS, n, WIDTH)
    return partial(attention, q, k, v, mask=mask)


def _timed(name: str, n: int) -> Finding:
    mask, power = PATTERNS[name]
    ratio = time_ratio(_call(mask, 2 * n), _call(mask, n))
    low, high = 2 ** (power - 0.3), 2 ** (power + 0.3)
    return Finding(
        claim=15,
        what=f"{name}: time of {2 * n} tokens against {n}, as a power of n",
        theirs=power,
        measured=round(ratio.power, 2),
        verdict=judge_ratio(ratio, low, high, same_way=(ratio.power > 1.5) == (power > 1.5)),
        note=f"times as long: {ratio}, {ratio.rounds} rounds in turns; reproduced within 0.3",
    )


def _judge_windows(rows: list[dict[str, Any]], n: int) -> list[Finding]:
    found = exponent([row["window"] for row in rows], [row["weights"] for row in rows])
    wide, narrow = WINDOWS[-1], WINDOWS[-2]
    ratio = time_ratio(_call(Window(wide // 2), n), _call(Window(narrow // 2), n))
    return [
        Finding(
            claim=15,
            what="local: number of weights grows as w to the power",
            theirs=1.0,
            measured=round(found, 2),
            verdict=holds(abs(found - 1) <= 0.1, in_part=0.5 < found < 1.5),
            note="of 8192 tokens; those at the edges have fewer",
        ),
        Finding(
            claim=15,
            what=f"local: time of a window of {wide} against {narrow}, as a power of w",
            theirs=1.0,
            measured=round(ratio.power, 2),
            verdict=judge_ratio(ratio, 2**0.5, 2**1.35, same_way=0.2 < ratio.power < 1.5),
            note=f"times as long: {ratio}; a part of the time is the same for every query",
        ),
    ]


def draw(result: Result) -> Figure:
    """Draw the three patterns, and how many weights they have."""
    from matplotlib.figure import Figure

    from limelight.experiments.figures import WIDTH as INCHES
    from limelight.experiments.figures import constrained_layout, heatmap, lengths_axis, series

    figure = Figure(figsize=(INCHES, 4.6), layout=constrained_layout())
    above, below = figure.subfigures(2, 1, height_ratios=(2, 3), squeeze=False)[:, 0]
    n = 12
    for axis, (name, (mask, _)) in zip(above.subplots(1, 3), PATTERNS.items(), strict=True):
        allowed = torch.ones(n, n) if mask is None else mask.dense(n).float()
        heatmap(axis, (0.5 * allowed).tolist(), [""] * n, [""] * n)
        axis.set(title=name.split(",")[0], box_aspect=1, xticks=[], yticks=[])
        axis.images[0].set_clim(0, 1)
    axis = below.subplots()
    for m, name in enumerate(PATTERNS):
        mine = [row for row in result.data["growth"] if row["pattern"] == name]
        series(axis, [row["tokens"] for row in mine], [row["weights"] for row in mine], m, name)
    axis.set(yscale="log", ylabel="weights", title="Number of weights")
    lengths_axis(axis, LENGTHS, "tokens")
    axis.legend()
    return figure
