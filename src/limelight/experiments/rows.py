"""Rows, columns, the two sides of attention and the causal mask: claims 2, 3 and 4."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limelight import Causal, DenseBias, weights
from limelight.experiments.findings import EXTRA, Finding, Result, holds
from limelight.experiments.lesson import Lesson
from limelight.nn import MultiHeadAttention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Rows, columns and masks",
    equation="A = softmax(q kᵀ / √d + M),  Σⱼ Aᵢⱼ = 1,  Mᵢⱼ = 0 if i ≥ j else −∞",
    method=(
        "Random queries and keys give weights whose rows and columns are summed. One key is then made attractive to "
        "all queries, to see which sum follows. A layer's outputs are compared before and after one token is "
        "exchanged, in self-attention and on either side of cross-attention. The causal mask is compared with adding "
        "−∞ by hand."
    ),
    code="""\
import torch, limelight as ll
q, k = torch.randn(2, 1, 8, 16)
A = ll.weights(q, k)
print(A.dense().sum(-1))    # rows: what each query gives
print(A.received())         # columns: what each key receives
print(ll.weights(q, k, mask=ll.Causal()))
print(ll.Causal().dense(8).int())
""",
)
TOKENS, WIDTH, ATTRACTIVE = 16, 32, 5
QUERIES, CONTEXT = 7, 11


def run(quick: bool = False, seed: int = 0) -> Result:
    """Sum rows and columns, exchange tokens, and write the mask as a sum."""
    draws = 10 if quick else 50
    q, k = torch.randn(2, draws, TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed))
    A = weights(q, k)
    given, received = A.dense().sum(-1), A.received()
    rows = [{"token": n, "given": float(given[0, n]), "received": float(received[0, n])} for n in range(TOKENS)]
    findings = [*_sums(q, k, given, received), *_sides(seed), _mask(q, k)]
    takeaway = (
        "A row is what a token gives, and always sums to 1; a column is what it receives: here from "
        f"{float(received.min()):.2f} to {float(received.max()):.2f}."
    )
    return Result("rows", takeaway, findings, {"sums": rows})


def _sums(q: Tensor, k: Tensor, given: Tensor, received: Tensor) -> list[Finding]:
    off = float((given - 1).abs().max())
    low, high = float(received.min()), float(received.max())
    attractive = k.clone()
    attractive[:, ATTRACTIVE] = 2 * q.mean(1) * TOKENS**0.5  # a key that all queries like
    B = weights(q, attractive)
    column = float((B.received() - received)[:, ATTRACTIVE].mean())
    row = float((B.dense().sum(-1) - given)[:, ATTRACTIVE].abs().max())
    draws = f"over {len(q)} draws"
    return [
        Finding(2, "every row sums to 1: the one farthest from it", 1.0, round(1 + off, 6), holds(off < 1e-5), draws),
        Finding(
            claim=2,
            what="a column need not: the least and the most",
            theirs="not 1",
            measured=[round(low, 3), round(high, 3)],
            verdict=holds(low < 0.9 and high > 1.1),
            note=draws,
        ),
        Finding(
            claim=2,
            what="a column is what a token receives: change of the column of a key that is made attractive",
            theirs="rises",
            measured=round(column, 2),
            verdict=holds(column > 0.5),
            note="and its row stays as it was, so a text that calls the column “what a token gives” is wrong",
        ),
        Finding(2, "change of the row of that key", None, round(row, 6), EXTRA, "a row is what a token gives"),
    ]


def _sides(seed: int) -> list[Finding]:
    torch.manual_seed(seed)
    layer = MultiHeadAttention(WIDTH, 4)
    x, context = torch.randn(1, QUERIES, WIDTH), torch.randn(1, CONTEXT, WIDTH)

    def exchanged(z: Tensor) -> Tensor:
        other = z.clone()
        other[0, 3] = torch.randn(WIDTH)
        return other

    def count(y: Tensor, z: Tensor) -> int:
        return int(((y - z)[0].norm(dim=-1) > 0).sum())

    with torch.no_grad():
        alone, crossed = layer(x), layer(x, context)
        own = count(layer(exchanged(x)), alone)
        query_side = count(layer(exchanged(x), context), crossed)
        key_side = count(layer(x, exchanged(context)), crossed)
    return [
        Finding(
            claim=3,
            what=f"self-attention: how many of {QUERIES} outputs an exchanged token changes",
            theirs=QUERIES,
            measured=own,
            verdict=holds(own == QUERIES),
            note="q, k and v all come from one sequence",
        ),
        Finding(
            claim=3,
            what="cross-attention: the same for a token on the side of q, and for one on the side of k and v",
            theirs=[1, QUERIES],
            measured=[query_side, key_side],
            verdict=holds([query_side, key_side] == [1, QUERIES]),
            note="q comes from one sequence, k and v from the other",
        ),
    ]


def _mask(q: Tensor, k: Tensor) -> Finding:
    added = torch.zeros(TOKENS, TOKENS).masked_fill(torch.ones(TOKENS, TOKENS).triu(1).bool(), -torch.inf)
    by_sum, by_mask = weights(q, k, bias=DenseBias(added)).dense(), weights(q, k, mask=Causal()).dense()
    off = float((by_sum - by_mask).abs().max())
    above = float(by_mask.triu(1).abs().max())
    return Finding(
        claim=4,
        what="0 where i ≥ j and −∞ where i < j, against Causal(): largest difference",
        theirs=0.0,
        measured=off,
        verdict=holds(off < 1e-6 and above == 0.0),
        note="all weights above the diagonal are exactly 0",
    )


def draw(result: Result) -> Figure:
    """Draw what each token gives and receives."""
    from limelight.experiments.figures import bars, legend_below, new_figure

    figure, axis = new_figure(height=3.0)
    rows = result.data["sums"]
    heights = {
        "given: sum of the row": [row["given"] for row in rows],
        "received: sum of the column": [row["received"] for row in rows],
    }
    bars(axis, [row["token"] for row in rows], heights)
    axis.set(xlabel="token", ylabel="sum of weights", title="Rows sum to 1, columns need not")
    legend_below(figure, axis, 2)
    return figure
