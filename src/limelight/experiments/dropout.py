"""The place of dropout in attention: claim 7."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from limelight import Dense, attention, weights
from limelight.experiments.findings import MISSING, Finding, Result, holds, mean_and_spread
from limelight.experiments.lesson import Lesson

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Dropout",
    equation="output = (A ∘ keep / (1 − p)) v,  keep ~ Bernoulli(1 − p)",
    method=(
        "With unit vectors as values, the output of attention is the matrix that reached the values. It is compared "
        "with the weights before dropout: a kept one must be the old one / (1 − p) whatever became of the others. "
        "Dropped before the softmax, the others of its row would have taken over its share. Published rates are read "
        "from the configurations in transformers."
    ),
    code="""\
import torch, limelight as ll
q, k = torch.randn(2, 1, 6, 16)
seen = ll.attention(q, k, torch.eye(6)[None], dropout=0.5)  # what reaches the values
print(seen / ll.weights(q, k).dense())                      # 0 or 2
print(seen.sum(-1))                                         # rows no longer sum to 1
""",
)
SHARES = (0.0, 0.1, 0.3, 0.5)
TOKENS = 64


def run(quick: bool = False, seed: int = 0) -> Result:
    """Look at what reaches the values, with unit vectors as values."""
    draws = 200 if quick else 1000
    g = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(1, TOKENS, 16, generator=g) for _ in range(2))
    A = weights(q, k).dense()
    torch.manual_seed(seed)
    rows = [_at(p, q, k, A, draws) for p in SHARES]
    tenth = next(row for row in rows if row["dropout"] == 0.1)
    kept = torch.rand(A.shape, generator=g) > 0.1
    before = weights(q, k, mask=Dense(kept)).dense()
    moved = float((before - A / 0.9)[kept].abs().max())
    findings = [
        Finding(
            claim=7,
            what="after softmax: a kept weight is the old one / (1 − p), a dropped one 0",
            theirs=0.0,
            measured=tenth["off"],
            verdict=holds(tenth["off"] < 1e-5 < moved),
            note=f"largest difference, at p = 0.1; dropped before the softmax it would be {moved:.2g}",
        ),
        Finding(
            claim=7,
            what="share of weights that are 0, at p = 0.1",
            theirs=0.1,
            measured=round(tenth["dropped"], 4),
            verdict=holds(abs(tenth["dropped"] - 0.1) < 0.01),
        ),
        Finding(
            claim=7,
            what="the mean over draws is what it is without dropout: relative difference, at p = 0.1",
            theirs=0.0,
            measured=round(tenth["bias"], 4),
            verdict=holds(tenth["bias"] < 3 * (0.1 / 0.9 / draws) ** 0.5),
            note=f"over {draws} draws, for which √(p / (1 − p) / {draws}) is to be expected",
        ),
        _published_rates(),
    ]
    takeaway = (
        "Dropout sets weights to 0 after the softmax and enlarges the others, so that a row sums to 1 on average and "
        f"not always: at p = 0.1 it sums to {tenth['row sum']:.2f} ± {tenth['row sum spread']:.2f}."
    )
    return Result("dropout", takeaway, findings, {"dropout": rows})


def _at(p: float, q: torch.Tensor, k: torch.Tensor, A: torch.Tensor, draws: int) -> dict[str, Any]:
    unit = torch.eye(TOKENS)[None]
    every = torch.stack([attention(q, k, unit, dropout=p) for _ in range(draws)])  # the weights that reach the values
    kept = every[0] > 0
    mean, spread = mean_and_spread(every.sum(-1).flatten().tolist())
    return {
        "dropout": p,
        "off": float((every[0] - A / (1 - p))[kept].abs().max()),
        "dropped": float((every == 0).float().mean()),
        "bias": float((every.mean(0) - A).norm() / A.norm()),
        "row sum": mean,
        "row sum spread": spread,
    }


def _published_rates() -> Finding:
    what, theirs = "typical rates: BERT, GPT-2", [0.1, 0.1]
    try:
        from transformers import BertConfig, GPT2Config
    except ImportError:
        return Finding(7, what, theirs, None, MISSING, "pip install 'limelight-attention[hf]' brings transformers")
    found = [BertConfig().attention_probs_dropout_prob, GPT2Config().attn_pdrop]
    note = "the defaults of transformers' configurations; GPT-3's is not published as one, and stays unchecked"
    return Finding(7, what, theirs, found, holds(found == theirs), note)


def draw(result: Result) -> Figure:
    """Draw the sum of a row that reaches the values, by the rate."""
    from limelight.experiments.figures import new_figure, series

    figure, axis = new_figure(height=2.9)
    rows = result.data["dropout"]
    rates, sums = [r["dropout"] for r in rows], [r["row sum"] for r in rows]
    series(axis, rates, sums, 0, "", spread=[r["row sum spread"] for r in rows])
    axis.set(xlabel="dropout p", ylabel="row sum after dropout", title="1 on average, no longer always (± σ)")
    axis.set_ylim(0, 2)
    return figure
