"""Generation with and without a KV cache: claim 20."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight import models
from limelight.experiments.findings import Finding, Result, holds
from limelight.experiments.lesson import Lesson
from limelight.experiments.measuring import Ratio, judge_ratio, time_ratio
from limelight.nn import MultiHeadAttention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="The KV cache",
    equation="step t with a cache: qₜ, kₜ, vₜ;   without: q, k, v of all t tokens",
    method=(
        "A small GPT-2 with random weights writes tokens after a beginning of 64, with a cache and without. The tokens "
        "that go through the first layer's projections are counted at every step, what is written is compared, and the "
        "times of both are measured in turns."
    ),
    code="""\
import torch
from limelight import models
sizes = {"vocab_size": 256, "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 128, "initializer_range": 0.2}
model = models.build({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]} | sizes).eval()
ids = torch.randint(0, 256, (1, 16))
a, b = (models.generate(model, ids, cache=cached, max_new_tokens=16, stop=[]) for cached in (True, False))
print(torch.equal(a, b))
""",
)
BEGINNING = 64  # tokens of the prompt
CONFIG = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 256,
    "n_embd": 128,
    "n_head": 4,
    "n_layer": 2,
    "n_positions": 1024,
    "initializer_range": 0.2,
}


def run(quick: bool = False, seed: int = 0) -> Result:
    """Count projected tokens, compare the generated texts, and take the ratio of the times."""
    torch.manual_seed(seed)
    model = models.build(CONFIG).eval()
    ids = torch.randint(0, 256, (1, BEGINNING))
    new = 24 if quick else 128

    def written(cached: bool) -> Tensor:
        return models.generate(model, ids, cache=cached, max_new_tokens=new, stop=[])

    outputs = [written(cached) for cached in (True, False)]
    counts = [_projected_tokens(model, partial(written, cached)) for cached in (True, False)]
    ratio = time_ratio(partial(written, False), partial(written, True), least=5, most=15)
    rows = [{"step": n + 1, "with": a, "without": b} for n, (a, b) in enumerate(zip(*counts, strict=True))]
    totals = [sum(x) for x in counts]
    takeaway = (
        f"To write {new} tokens after {BEGINNING}, {totals[0]} tokens go through the projections with a cache and "
        f"{totals[1]} without, and the same text is written."
    )
    findings = _findings(rows[-1], same=torch.equal(*outputs), totals=totals, ratio=ratio)
    return Result("cache", takeaway, findings, {"projected": rows})


def _projected_tokens(model: nn.Module, call: Callable[[], Any]) -> list[int]:
    """Count the tokens that the first layer makes queries of, step by step."""
    layer = next(module for module in model.modules() if isinstance(module, MultiHeadAttention))
    rows: list[int] = []
    handle = layer.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0].shape[1]))
    try:
        call()
    finally:
        handle.remove()
    return rows


def _findings(last: dict[str, Any], *, same: bool, totals: list[int], ratio: Ratio) -> list[Finding]:
    step = last["step"]
    wanted, measured = [1, BEGINNING + step - 1], [last["with"], last["without"]]
    saved = totals[1] / totals[0]
    return [
        Finding(
            claim=20,
            what=f"tokens that q, k and v are computed for in step {step}: with a cache, without",
            theirs=wanted,
            measured=measured,
            verdict=holds(measured == wanted),
            note=f"over all steps {totals[0]} and {totals[1]}: {saved:.0f} times as many",
        ),
        Finding(20, "what is written with and without", "the same", "the same" if same else "other", holds(same)),
        Finding(
            claim=20,
            what="so without a cache it takes longer: times as long",
            theirs="above 1",
            measured=round(ratio.median, 1),
            verdict=judge_ratio(ratio, 1.0, float("inf"), same_way=False),
            note=(
                f"quartiles {ratio.low:.1f} to {ratio.high:.1f}, a small model on one thread; less than counted, "
                "since a step also costs what does not depend on the number of tokens"
            ),
        ),
    ]


def draw(result: Result) -> Figure:
    """Draw the tokens that have gone through the projections, step by step."""
    from itertools import accumulate

    from limelight.experiments.figures import COLOURS, LINES, new_figure

    figure, axis = new_figure(height=3.1)
    rows = result.data["projected"]
    steps = [row["step"] for row in rows]
    for n, name in enumerate(("with", "without")):
        totals = list(accumulate(row[name] for row in rows))
        axis.plot(steps, totals, linestyle=LINES[n], color=COLOURS[n], label=f"{name} a cache: {totals[-1]:,}")
    axis.set(yscale="log", xlabel="tokens written", ylabel="tokens projected so far", title="Work for q, k and v")
    axis.legend()
    return figure
