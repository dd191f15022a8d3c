"""Rows, columns, sides and masks: claims 2, 3 and 4.

A row of the weights is what a query gives and sums to 1; a column is what a key receives and sums to anything (one text
has it the other way round). Self-attention takes everything from one sequence, cross-attention its keys and values from
another: seen by what an exchanged token changes. A causal mask adds 0 where i ≥ j and −∞ where i < j, before the
softmax.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limelight.core.biases import DenseBias
from limelight.core.masks import Causal
from limelight.experiments.findings import BESIDE, Finding, Result, holds
from limelight.functional import weights
from limelight.nn import MultiHeadAttention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Rows, columns and masks"
TOKENS, WIDTH, ATTRACTIVE = 16, 32, 5
QUERIES, KEYS = 7, 11


def run(quick: bool = False, seed: int = 0) -> Result:
    """Sums of rows and columns, what an exchanged token changes, and the mask as a sum."""
    draws = 10 if quick else 50
    q, k = torch.randn(2, draws, TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed))
    A = weights(q, k)
    given, received = A.dense().sum(-1), A.received()
    rows = [{"token": n, "given": float(given[0, n]), "received": float(received[0, n])} for n in range(TOKENS)]
    findings = [*_sums(q, k, given, received), *_sides(seed), _mask(q, k)]
    return Result("rows", TITLE, findings, {"sums": rows}, __doc__ or "")


def _sums(q: Tensor, k: Tensor, given: Tensor, received: Tensor) -> list[Finding]:
    off = float((given - 1).abs().max())
    low, high = float(received.min()), float(received.max())
    # A key that all queries like: what happens to its column, and to its row?
    liked = k.clone()
    liked[:, ATTRACTIVE] = 2 * q.mean(1) * TOKENS**0.5
    B = weights(q, liked)
    column = float((B.received() - received)[:, ATTRACTIVE].mean())
    row = float((B.dense().sum(-1) - given)[:, ATTRACTIVE].abs().max())
    draws = f"over {len(q)} draws"
    return [
        Finding(2, "every row sums to 1: the one farthest from it", 1.0, round(1 + off, 6), holds(off < 1e-5), draws),
        Finding(
            *(2, "a column need not: the least and the most", "not 1", [round(low, 3), round(high, 3)]),
            *(holds(low < 0.9 and high > 1.1), draws),
        ),
        Finding(
            *(2, "a column is what a token receives: a key that queries like more, and its column", "rises"),
            *(round(column, 2), holds(column > 0.5), "the change of its sum"),
        ),
        Finding(
            *(2, "and its row, which is what it gives", None, round(row, 6), BESIDE),
            "does not change, so the text that calls a column what a token gives is wrong",
        ),
    ]


def _sides(seed: int) -> list[Finding]:
    torch.manual_seed(seed)
    layer = MultiHeadAttention(WIDTH, 4)
    x, context = torch.randn(1, QUERIES, WIDTH), torch.randn(1, KEYS, WIDTH)

    def changed(z: Tensor) -> Tensor:
        other = z.clone()
        other[0, 3] = torch.randn(WIDTH)
        return other

    with torch.no_grad():
        before = {"self": layer(x), "cross": layer(x, context)}
        after = {
            "self, one token": layer(changed(x)) - before["self"],
            "cross, one token of its own": layer(changed(x), context) - before["cross"],
            "cross, one token of the other": layer(x, changed(context)) - before["cross"],
        }
    counts = [int((y[0].norm(dim=-1) > 0).sum()) for y in after.values()]
    return [
        Finding(
            *(3, f"self-attention: how many of {QUERIES} outputs an exchanged token changes", QUERIES, counts[0]),
            *(holds(counts[0] == QUERIES), "as q, k and v are all of one sequence"),
        ),
        Finding(
            *(3, "cross-attention: an exchanged token of its own, and one of the other sequence", [1, QUERIES]),
            *(counts[1:], holds(counts[1:] == [1, QUERIES]), "q is of one sequence, k and v of the other"),
        ),
    ]


def _mask(q: Tensor, k: Tensor) -> Finding:
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
