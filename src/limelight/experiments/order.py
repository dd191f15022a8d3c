"""Order without positions, and where each scheme puts them: claims 35 and 36."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limelight import Causal, Window
from limelight.experiments.findings import EXTRA, Finding, Result, holds
from limelight.experiments.lesson import Lesson
from limelight.experiments.position_schemes import HEADS, WIDTH, schemes
from limelight.nn import MultiHeadAttention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Order",
    equation="attend(P x) = P attend(x)?   embeddings: x + p;   rotary: R_p q, R_p k;   bias: logits + b(i − j)",
    method=(
        "A random layer without positions reads tokens and the same tokens shuffled: with no mask, a causal mask and "
        "a window. How far the size of an output tells the position of its token is measured, too (R²). Then each of "
        "six schemes is asked what it changes: the embeddings before the layer, the queries and keys inside it, or "
        "the logits."
    ),
    code="""\
import torch, limelight as ll
from limelight.nn import MultiHeadAttention
layer, x, order = MultiHeadAttention(32, 4), torch.randn(1, 9, 32), torch.randperm(9)
for mask in (None, ll.Causal(), ll.Window(2)):
    print(mask, (layer(x[:, order], mask=mask) - layer(x, mask=mask)[:, order]).abs().max())
""",
)
TOKENS = 32
MASKS: dict[str, Any] = {"none": None, "causal": Causal(), "window of 5": Window(2)}


def run(quick: bool = False, seed: int = 0) -> Result:
    """Measure equivariance under masks, and find where schemes act."""
    torch.manual_seed(seed)
    texts = 40 if quick else 200
    rows: list[dict[str, Any]] = [{"mask": name} | _with_mask(mask, texts) for name, mask in MASKS.items()]
    by = {row["mask"]: row for row in rows}
    acts = {name: _acts_on(scheme) for name, scheme in schemes().items()}
    added = [name for name, where in acts.items() if where == "embeddings"]
    findings = [
        Finding(
            claim=35,
            what="full attention: difference between shuffled outputs and outputs of shuffled tokens",
            theirs=0.0,
            measured=f"{by['none']['error']:.0e}",
            verdict=holds(by["none"]["error"] < 1e-5),
            note="relative to the outputs",
        ),
        Finding(
            claim=35,
            what="causal attention: the same",
            theirs=0.0,
            measured=round(by["causal"]["error"], 2),
            verdict=holds(by["causal"]["error"] < 1e-5),
            note="a causal mask is about order: self-attention in a decoder knows some of it without any positions",
        ),
        Finding(
            claim=35,
            what="share of the position that the size of an output explains, R²: full, causal",
            theirs=None,
            measured=[round(by[name]["R²"], 2) for name in ("none", "causal")],
            verdict=EXTRA,
            note="in a causal layer a later token is a mean of more values, and so smaller",
        ),
        Finding(
            claim=36,
            what="schemes that are added to the embeddings, of six",
            theirs=len(acts),
            measured=len(added),
            verdict=holds(len(added) == len(acts), in_part=len(added) > len(acts) / 2),
            note="; ".join(f"{name}: {where}" for name, where in acts.items()),
        ),
    ]
    takeaway = (
        f"Without positions full attention is blind to order (difference {by['none']['error']:.0e}), causal attention "
        f"is not ({by['causal']['error']:.2f}); and only {' and '.join(added)} positions are added to the embeddings."
    )
    where = [{"scheme": name, "acts on": x} for name, x in acts.items()]
    return Result("order", takeaway, findings, {"masks": rows, "schemes": where})


def _with_mask(mask: Any, texts: int) -> dict[str, float]:
    layer = MultiHeadAttention(WIDTH, HEADS)
    x, order = torch.randn(texts, TOKENS, WIDTH), torch.randperm(TOKENS)
    with torch.no_grad():
        y, shuffled = layer(x, mask=mask), layer(x[:, order], mask=mask)
    return {"error": float((shuffled - y[:, order]).norm() / y.norm()), "R²": _explained(y)}


def _explained(y: Tensor) -> float:
    """Return the share R² of log position that the log size of an output explains, over all tokens and texts."""
    size = y.norm(dim=-1).log().flatten()
    position = torch.arange(1, TOKENS + 1).log().expand(len(y), TOKENS).flatten()
    return float(torch.corrcoef(torch.stack([size, position]))[0, 1] ** 2)


def _acts_on(scheme: Any) -> str:
    x, q = torch.randn(1, 5, WIDTH), torch.randn(1, HEADS, 5, WIDTH // HEADS)
    if not torch.equal(scheme.embed(x), x):
        return "embeddings"
    placed, _, bias = scheme.place(q, q, keys=5, scale=1.0)
    return "logits" if bias is not None else "queries and keys" if not torch.equal(placed, q) else "nothing"


def draw(result: Result) -> Figure:
    """Draw how much shuffling changes the output under each mask."""
    from limelight.experiments.figures import horizontal_bars, new_figure

    figure, axis = new_figure(height=2.2)
    rows = result.data["masks"]
    horizontal_bars(axis, [f"mask: {row['mask']}" for row in rows], [max(row["error"], 0.0) for row in rows])
    axis.set(xlabel="difference after shuffling", title="Only full attention is blind to order")
    return figure
