"""What one changed token changes: claim 22.

Attention mixes positions: its outputs change everywhere. The feed-forward part treats every position by itself: its
output changes at one. Counted where the outputs of random layers differ once a token is exchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limelight.core.masks import Causal
from limelight.experiments.findings import BESIDE, Finding, Result, holds
from limelight.nn import FeedForward, MultiHeadAttention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "What one token changes"
TOKENS, WIDTH, CHANGED = 16, 32, 5
PARTS = ("attention", "feed-forward", "causal attention")


def run(quick: bool = False, seed: int = 0) -> Result:
    """How many outputs change, for several seeds, and by how much, for one."""
    seeds = range(seed, seed + (3 if quick else 10))
    changes = [_change(s) for s in seeds]
    counts = {name: sorted({sum(y > 0 for y in x[name]) for x in changes}) for name in PARTS}
    rows = [{"position": n, **{name: x[n] for name, x in changes[0].items()}} for n in range(TOKENS)]
    seeded = f"for each of {len(seeds)} seeds"
    causal = f"the token's own and those after it, {seeded}"
    findings = [
        _of(22, "outputs of attention that change", TOKENS, counts["attention"], seeded),
        _of(22, "outputs of the feed-forward part that change", 1, counts["feed-forward"], seeded),
        Finding(22, "outputs of causal attention that change", None, counts["causal attention"], BESIDE, causal),
    ]
    return Result("mixing", TITLE, findings, {"change": rows}, __doc__ or "")


def _of(claim: int, what: str, theirs: int, counts: list[int], note: str) -> Finding:
    found: Any = counts[0] if len(counts) == 1 else counts
    return Finding(claim, f"{what}, of {TOKENS}", theirs, found, holds(counts == [theirs]), note)


def _change(seed: int) -> dict[str, list[float]]:
    """The size of the change at every position."""
    torch.manual_seed(seed)
    attention, feed_forward = MultiHeadAttention(WIDTH, 4), FeedForward(WIDTH, 4 * WIDTH)
    x = torch.randn(1, TOKENS, WIDTH)
    other = x.clone()
    other[0, CHANGED] = torch.randn(WIDTH)
    parts: dict[str, Callable[[Tensor], Tensor]] = {
        "attention": attention,
        "feed-forward": feed_forward,
        "causal attention": lambda x: attention(x, mask=Causal()),
    }
    with torch.no_grad():
        return {name: (part(other) - part(x))[0].norm(dim=-1).tolist() for name, part in parts.items()}


def draw(result: Result) -> Figure:
    """The change at every position."""
    from limelight.experiments.figures import COLOURS, GREY, new_figure

    figure, axis = new_figure(width=7.0)
    rows = result.data["change"]
    for name, mark, colour, shift in zip(PARTS, "o^s", COLOURS, (-0.15, 0.0, 0.15), strict=False):
        places = [row["position"] + shift for row in rows]
        axis.scatter(places, [row[name] for row in rows], marker=mark, color=colour, label=name)
    axis.axvline(CHANGED, color=GREY, alpha=0.6, linewidth=0.8)
    axis.set(xlabel="position", ylabel="change of the output (norm)", title=f"Token {CHANGED} is exchanged")
    axis.set_yscale("symlog", linthresh=1e-2)
    axis.set_ylim(-2e-3, 4)
    axis.legend(loc="center right")
    return figure
