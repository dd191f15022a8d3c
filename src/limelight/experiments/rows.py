"""Rows, columns, sides and masks: claims 2, 3 and 4.

A row of the weights is what a query gives and sums to 1; a column is what a key receives and sums to anything.
Self-attention takes everything from one sequence, cross-attention its keys and values from another. A causal mask adds
−∞ to the logits of later keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from limelight.biases import DenseBias
from limelight.experiments.findings import Finding, Result, holds
from limelight.functional import weights
from limelight.masks import Causal
from limelight.nn import MultiHeadAttention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Rows, columns and masks"
TOKENS = 24


def run(quick: bool = False, seed: int = 0) -> Result:
    """Sums of rows and columns, cross-attention, and the mask as a sum."""
    g = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(1, TOKENS, 32, generator=g) for _ in range(2))
    A = weights(q, k)
    given, received = A.dense().sum(-1)[0], A.received()[0]
    rows = [{"token": n, "given": float(given[n]), "received": float(received[n])} for n in range(TOKENS)]
    data = {"sums": rows}
    return Result("rows", TITLE, [*_sums(given, received), *_sides(seed), _mask(q, k)], data, __doc__ or "")


def _sums(given: torch.Tensor, received: torch.Tensor) -> list[Finding]:
    off = float((given - 1).abs().max())
    low, high = float(received.min()), float(received.max())
    return [
        Finding(2, "every row sums to 1", 1.0, round(1 + off, 6), holds(off < 1e-5), "the row farthest from it"),
        Finding(
            *(
                2,
                "a column is what a token receives, and need not sum to 1",
                "anything",
                [round(low, 3), round(high, 3)],
            ),
            *(holds(low < 0.9 and high > 1.1), "the least and the most; one text names the column the wrong way round"),
        ),
    ]


def _sides(seed: int) -> list[Finding]:
    torch.manual_seed(seed)
    layer = MultiHeadAttention(32, 4)
    x, context = torch.randn(1, 7, 32), torch.randn(1, 11, 32)
    with torch.no_grad():
        own = float((layer(x) - layer(x, x)).abs().max())
        crossed = layer.weights(x, context)
        moved = context.clone()
        moved[0, 5] += 1
        change = (layer(x, moved) - layer(x, context)).abs().amax(-1)[0]
    return [
        Finding(3, "self-attention is cross-attention to oneself: largest difference", 0.0, own, holds(own < 1e-5)),
        Finding(
            *(3, "cross-attention: weights of 7 queries over 11 keys of another sequence", [7, 11]),
            *(list(crossed.shape[-2:]), holds(list(crossed.shape[-2:]) == [7, 11] and bool((change > 0).all()))),
            "and every query changes with one token of the other sequence",
        ),
    ]


def _mask(q: torch.Tensor, k: torch.Tensor) -> Finding:
    added = torch.zeros(TOKENS, TOKENS).masked_fill(torch.ones(TOKENS, TOKENS).triu(1).bool(), -torch.inf)
    by_sum, by_mask = weights(q, k, bias=DenseBias(added)).dense(), weights(q, k, mask=Causal()).dense()
    off = float((by_sum - by_mask).abs().max())
    above = float(by_mask.triu(1).abs().max())
    return Finding(
        *(4, "0 where i ≥ j and −∞ where i < j, against Causal(): largest difference", 0.0, off),
        *(holds(off < 1e-6 and above == 0.0), "and nothing above the diagonal"),
    )


def draw(result: Result) -> Figure:
    """What each token gives and receives."""
    from limelight.experiments.figures import bars, new_figure

    figure, axis = new_figure(width=7.0)
    rows = result.data["sums"]
    series = {
        "given: sum of the row": [row["given"] for row in rows],
        "received: sum of the column": [row["received"] for row in rows],
    }
    bars(axis, [row["token"] for row in rows], series)
    axis.set(xlabel="token", ylabel="sum of weights", title="Rows sum to 1, columns need not", ylim=(0, 2))
    axis.legend(ncols=2)
    return figure
