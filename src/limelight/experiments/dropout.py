"""Where dropout acts: claim 7.

After the softmax and before the values: weights that reach the values are 0 or larger by 1 / (1 − p), whatever became
of the others, and right on average. Were it before the softmax, what is dropped would go to the others of its row.
Texts give 0.1 for BERT and GPT-2 and 0 for GPT-3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from limelight.core.masks import Dense
from limelight.experiments.findings import BESIDE, Finding, Result, holds, mean_and_spread
from limelight.functional import attention, weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Dropout"
SHARES = (0.0, 0.1, 0.3, 0.5)
TOKENS = 64


def run(quick: bool = False, seed: int = 0) -> Result:
    """What reaches the values, seen with values that are the unit vectors."""
    draws = 200 if quick else 1000
    g = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(1, TOKENS, 16, generator=g) for _ in range(2))
    A = weights(q, k).dense()
    torch.manual_seed(seed)
    rows = [_at(p, q, k, A, draws) for p in SHARES]
    by = {row["dropout"]: row for row in rows}
    some = by[0.1]
    kept = torch.rand(A.shape, generator=g) > 0.1
    before = weights(q, k, mask=Dense(kept)).dense()
    moved = float((before - A / 0.9)[kept].abs().max())
    findings = [
        Finding(
            *(7, "after softmax: a kept weight is the old one / (1 − p), a dropped one 0", 0.0, some["off"]),
            *(holds(some["off"] < 1e-5 < moved), f"largest difference, at p = 0.1; dropped before, {moved:.2g}"),
        ),
        Finding(
            7,
            "share of weights that are 0, at p = 0.1",
            0.1,
            round(some["dropped"], 4),
            holds(abs(some["dropped"] - 0.1) < 0.01),
        ),
        Finding(
            *(7, "the mean over draws is what it is without dropout: relative difference, at p = 0.1", 0.0),
            *(round(some["bias"], 4), holds(some["bias"] < 3 * (0.1 / 0.9 / draws) ** 0.5)),
            f"over {draws} draws, of which √(p / (1 − p) / {draws}) is to be expected",
        ),
    ]
    findings += _typical()
    return Result("dropout", TITLE, findings, {"dropout": rows}, __doc__ or "")


def _at(p: float, q: torch.Tensor, k: torch.Tensor, A: torch.Tensor, draws: int) -> dict[str, Any]:
    unit = torch.eye(TOKENS)[None]
    every = torch.stack([attention(q, k, unit, dropout=p) for _ in range(draws)])  # each is what reached the values
    kept = every[0] > 0
    off = float((every[0] - A / (1 - p))[kept].abs().max())
    error = (every.mean(0) - A).norm() / A.norm()
    rows = every.sum(-1).flatten().tolist()
    mean, spread = mean_and_spread(rows)
    return {
        **{"dropout": p, "off": off, "dropped": float((every == 0).float().mean()), "bias": float(error)},
        **{"row sum": mean, "row sum spread": spread},
    }


def _typical() -> list[Finding]:
    """The published configurations, as transformers has them, where it is installed."""
    unknown = "GPT-3's is not published as a configuration, and stays unchecked"
    try:
        from transformers import BertConfig, GPT2Config
    except ImportError:
        how = "needs transformers: pip install 'limelight[hf]'"
        return [Finding(7, "typical: BERT, GPT-2, GPT-3", None, "not checked", BESIDE, how)]
    found = [BertConfig().attention_probs_dropout_prob, GPT2Config().attn_pdrop]
    note = f"the defaults of transformers' configurations; {unknown}"
    return [Finding(7, "typical: BERT, GPT-2", [0.1, 0.1], found, holds(found == [0.1, 0.1]), note)]


def draw(result: Result) -> Figure:
    """What dropout does to the sum of a row that reaches the values."""
    from limelight.experiments.figures import COLOURS, new_figure

    figure, axis = new_figure(width=5.2)
    rows = result.data["dropout"]
    axis.errorbar(
        [r["dropout"] for r in rows],
        [r["row sum"] for r in rows],
        [r["row sum spread"] for r in rows],
        fmt="-o",
        color=COLOURS[0],
        capsize=3,
    )
    axis.set(
        xlabel="dropout p",
        ylabel="sum of a row that reaches the values",
        title="1 on average, and no longer always (bars: ± σ)",
    )
    return figure
