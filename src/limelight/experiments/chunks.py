"""Attention in chunks, and the longest text that it reaches: claim 21."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limelight import Causal, Window, attention
from limelight.experiments.findings import Finding, Result, growth_exponent, holds
from limelight.experiments.lesson import Lesson
from limelight.experiments.measuring import longest, peak_bytes
from limelight.experiments.stored import stored_attention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Chunks",
    equation="memory = O(n d) beyond the inputs, against n² h for stored weights",
    method=(
        "The memory of attention beyond its inputs is read from the operating system, in a process of its own, for "
        "rising lengths and three patterns. Then memory is limited to 256 MiB, and stored attention and attention in "
        "chunks try ever longer texts until they fail."
    ),
    code="""\
import torch, limelight as ll
q, k, v = torch.randn(3, 1, 1, 20_000, 16)
y = ll.attention(q, k, v)                  # the matrix would take 1.5 GiB
print(y.shape, 20_000**2 * 4 / 2**30, "GiB")
""",
)
HEADS, WIDTH, LIMIT = 4, 64, 256 * 2**20
PATTERNS = {"full": None, "causal": Causal(), "local, window 3": Window(1)}


def run(quick: bool = False, seed: int = 0) -> Result:
    """Measure memory against the length, and the reach within a limit."""
    lengths = (2048, 4096, 8192)
    rows: list[dict[str, Any]] = []
    for name, mask in PATTERNS.items():
        # A window takes so little memory that it can be measured for long texts only.
        sizes = [2 * n for n in lengths] if name.startswith("local") else list(lengths)
        peaks = peak_bytes(attention, sizes, HEADS, WIDTH, mask=mask)
        rows += [{"pattern": name, "tokens": n, "bytes": x} for n, x in zip(sizes, peaks, strict=True)]
    sizes = [2**p for p in range(10, 15 if quick else 16)]
    reached = [longest(f, sizes, 1, 16, LIMIT) for f in (stored_attention, attention)]
    takeaway = (
        f"Within 256 MiB stored attention reads {reached[0]} tokens and attention in chunks at least {reached[1]}, "
        "since it holds no n × n matrix at any time."
    )
    reach = [{"way": name, "tokens": n} for name, n in zip(("stored", "in chunks"), reached, strict=True)]
    return Result("chunks", takeaway, _findings(rows, reached, sizes), {"memory": rows, "reach": reach})


def _findings(rows: list[dict[str, Any]], reached: list[int], sizes: list[int]) -> list[Finding]:
    full = [row for row in rows if row["pattern"] == "full"]
    n, found = full[-1]["tokens"], full[-1]["bytes"] / 2**20
    matrix, output = HEADS * n * n * 4 / 2**20, HEADS * n * WIDTH * 4 / 2**20
    powers = {}
    for name in PATTERNS:
        mine = [row for row in rows if row["pattern"] == name]
        powers[name] = round(growth_exponent([row["tokens"] for row in mine], [row["bytes"] for row in mine]), 2)
    return [
        Finding(
            claim=21,
            what=f"chunks never hold the n × n matrix: MiB beyond the inputs, n = {n}",
            theirs=f"below {matrix:.0f}",
            measured=round(found, 1),
            verdict=holds(found < matrix / 10),
            note=f"of which the output takes {output:.0f}",
        ),
        Finding(
            claim=21,
            what="memory grows as n to the power",
            theirs="below 2",
            measured=powers,
            verdict=holds(max(powers.values()) < 1.5),
            note="of the part that grows, with each pattern",
        ),
        Finding(
            claim=21,
            what="it reaches longer texts: tokens within 256 MiB, stored and in chunks",
            theirs="longer",
            measured=reached,
            verdict=holds(reached[1] > reached[0] > 0),
            note=f"of {', '.join(map(str, sizes))}; one head of width 16",
        ),
    ]


def draw(result: Result) -> Figure:
    """Draw memory against the length, with that of a stored matrix."""
    from limelight.experiments.figures import GREY, lengths_axis, new_figure, series

    figure, axis = new_figure(height=3.3)
    rows = result.data["memory"]
    every = sorted({row["tokens"] for row in rows})
    for n, name in enumerate(PATTERNS):
        mine = [row for row in rows if row["pattern"] == name]
        series(axis, [row["tokens"] for row in mine], [row["bytes"] / 2**20 for row in mine], n, name)
    axis.plot(every, [HEADS * n * n * 4 / 2**20 for n in every], "-.", color=GREY, label="a stored matrix (n²)")
    axis.set(yscale="log", ylabel="MiB beyond the inputs", title="Memory of attention in chunks")
    lengths_axis(axis, every, "tokens")
    axis.legend()
    return figure
