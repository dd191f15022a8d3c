"""What one changed token changes: claim 22.

Attention mixes positions: its outputs change everywhere. The feed-forward part treats every position by itself: its
output changes at one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limelight.experiments.findings import Finding, Result, holds
from limelight.masks import Causal
from limelight.nn import FeedForward, MultiHeadAttention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "What one token changes"
TOKENS, WIDTH, CHANGED = 16, 32, 5


def run(quick: bool = False, seed: int = 0) -> Result:
    """The size of the change at every position."""
    torch.manual_seed(seed)
    attention, feed_forward = MultiHeadAttention(WIDTH, 4), FeedForward(WIDTH, 4 * WIDTH)
    x = torch.randn(1, TOKENS, WIDTH)
    other = x.clone()
    other[0, CHANGED] = torch.randn(WIDTH)
    parts: dict[str, Callable[[Tensor], Tensor]] = {
        "attention": attention,
        "causal attention": lambda x: attention(x, mask=Causal()),
        "feed-forward": feed_forward,
    }
    with torch.no_grad():
        change = {name: (part(other) - part(x))[0].norm(dim=-1).tolist() for name, part in parts.items()}
    rows = [{"position": n, **{name: x[n] for name, x in change.items()}} for n in range(TOKENS)]
    count = {name: sum(y > 1e-6 for y in x) for name, x in change.items()}
    exact = {name: sum(y > 0 for y in x) for name, x in change.items()}
    findings = [
        Finding(
            22, "outputs of attention that change", TOKENS, count["attention"], holds(count["attention"] == TOKENS)
        ),
        Finding(
            22,
            "outputs of the feed-forward part that change",
            1,
            exact["feed-forward"],
            holds(exact["feed-forward"] == 1),
        ),
        Finding(
            *(22, "outputs of causal attention that change", TOKENS - CHANGED, exact["causal attention"]),
            *(holds(exact["causal attention"] == TOKENS - CHANGED), "the token's own and those after it"),
        ),
    ]
    return Result("mixing", TITLE, findings, {"change": rows}, __doc__ or "")


def draw(result: Result) -> Figure:
    """The change at every position."""
    from limelight.experiments.figures import COLOURS, GREY, new_figure

    figure, axis = new_figure(width=7.0)
    rows = result.data["change"]
    styles = zip(("attention", "causal attention", "feed-forward"), ("-o", "--s", ":^"), COLOURS, strict=False)
    for name, style, colour in styles:
        axis.plot([r["position"] for r in rows], [max(r[name], 1e-9) for r in rows], style, color=colour, label=name)
    axis.axvline(CHANGED, color=GREY, alpha=0.6, linewidth=0.8)
    axis.set(
        yscale="log",
        xlabel="position",
        ylabel="change of the output",
        title=f"Token {CHANGED} is exchanged (no change: 10⁻⁹)",
    )
    axis.legend()
    return figure
