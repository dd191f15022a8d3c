"""The temperature of attention, and that of the output: claim 40."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight import translate
from limelight.experiments.findings import EXTRA, Finding, Result, holds, ordered, rounded
from limelight.experiments.lesson import Lesson
from limelight.nn import MultiHeadAttention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Two temperatures",
    equation="attention: softmax(q kᵀ / (√d τ)) v;   output: p = softmax(z / T)",
    method=(
        "The translator reads sentences and its own translations of them, once with the temperature τ of all of its "
        "attention changed, once with the temperature T of its output. For each the entropy of the next token (how "
        "diverse samples would be), the share of places where another token becomes the likeliest, and the "
        "log-probability of the translation are measured."
    ),
    code="""\
import torch
z = torch.tensor([3.0, 1.0, 0.2])                  # logits of an output
for T in (0.7, 1.0, 1.5, 2.0):
    p = (z / T).softmax(-1)
    print(T, p, "order kept:", bool(p[0] > p[1] > p[2]), "entropy", -(p * p.log()).sum())
""",
)
TEMPERATURES = (0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
TEXTS = (
    "The cat sat on the mat.",
    "She is reading a book in the garden.",
    "When he came home, his wife was already asleep.",
    "I would like a cup of tea, please.",
    "We have lived in this house for ten years.",
    "They are going to the market tomorrow.",
)


def run(quick: bool = False, seed: int = 0) -> Result:
    """Change either temperature, and measure the effect on the output."""
    translator = translate.load()
    sentences = [translator(text, beams=1).sentences[0] for text in (TEXTS[:2] if quick else TEXTS)]
    pairs = [
        (torch.tensor([translator.tokenizer.encode(s.source).ids]), _target(translator, s.tokens)) for s in sentences
    ]
    plain = [_logits(translator.model, *pair) for pair in pairs]
    rows: list[dict[str, Any]] = []
    for t in TEMPERATURES:
        with attention_temperature(translator.model, t):
            inside = [_logits(translator.model, *pair) for pair in pairs]
        rows.append({"temperature": t, "of": "attention"} | _describe(inside, plain, pairs))
        rows.append({"temperature": t, "of": "output"} | _describe([z / t for z in plain], plain, pairs))
    by = {(row["of"], row["temperature"]): row for row in rows}
    return Result("output-temperature", _takeaway(by), _findings(by), {"temperatures": rows})


def _target(translator: translate.Translator, tokens: list[str]) -> Tensor:
    ids = [translator.tokenizer.token_to_id(token) for token in ("<pad>", *tokens)]
    return torch.tensor([ids])


@contextmanager
def attention_temperature(model: nn.Module, t: float) -> Iterator[None]:
    """Divide the logits of every attention layer of a model by t inside a ``with`` block."""
    layers = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    scales = [layer.scale for layer in layers]
    try:
        for layer in layers:
            layer.scale = layer.scale / t
        yield
    finally:
        for layer, scale in zip(layers, scales, strict=True):
            layer.scale = scale


@torch.no_grad()
def _logits(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    logits: Tensor = model(source, target[:, :-1])[0]
    return logits


def _describe(logits: list[Tensor], plain: list[Tensor], pairs: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Return the entropy of the next token, the share of other likeliest tokens, and the mean log-probability."""
    entropy, other, scores = [], [], []
    for z, before, (_, target) in zip(logits, plain, pairs, strict=True):
        log_p = z.log_softmax(-1)
        entropy.append(-(log_p.exp() * log_p).sum(-1))
        other.append((z.argmax(-1) != before.argmax(-1)).float())
        scores.append(log_p.gather(1, target[0, 1:, None])[:, 0])
    named = {"entropy": entropy, "another first": other, "log-probability": scores}
    return {name: float(torch.cat(x).mean()) for name, x in named.items()}


def _findings(by: dict[tuple[str, float], dict[str, Any]]) -> list[Finding]:
    softer = [by["output", t]["entropy"] for t in TEMPERATURES]
    inside = [by["attention", t]["entropy"] for t in (0.7, 1.0, 1.5)]
    changed = {of: max(by[of, t]["another first"] for t in (1.5, 2.0, 3.0)) for of in ("attention", "output")}
    lost = by["attention", 1.0]["log-probability"] - by["attention", 2.0]["log-probability"]
    soft = [by[of, 2.0]["entropy"] / by[of, 1.0]["entropy"] for of in ("attention", "output")]
    return [
        Finding(
            claim=40,
            what="attention at τ = 0.7, 1, 1.5: entropy of the next token; focused is lower, diverse higher",
            theirs="lower, then higher",
            measured=rounded(inside),
            verdict=holds(
                ordered(inside, rising=True) and inside[2] > 1.5 * inside[1] and changed["attention"] == 0,
                in_part=ordered(inside, rising=True) and changed["attention"] < 0.05,
            ),
            note=(
                f"up to {changed['attention']:.0%} of the likeliest tokens become others above 1: the model reads "
                "differently, which is not sampling differently"
            ),
        ),
        Finding(
            claim=40,
            what="attention at τ = 2, for distillation: keeps what the model knows (likeliest tokens that change)",
            theirs=0,
            measured=round(by["attention", 2.0]["another first"], 2),
            verdict=holds(by["attention", 2.0]["another first"] == 0),
            note=(
                f"the translation loses {lost:.2f} nats a token; Hinton et al. soften the output, at which nothing "
                "changes its place"
            ),
        ),
        Finding(
            claim=40,
            what="output at T = 0.5 to 3: entropy of the next token",
            theirs=None,
            measured=rounded(softer),
            verdict=EXTRA,
            note=(
                f"rises {'all the way' if ordered(softer, rising=True) else 'in part'}, and the likeliest token "
                f"stays; at T = 2 it is {soft[1]:.1f} times that at 1, with attention's τ = 2 {soft[0]:.1f} times"
            ),
        ),
    ]


def _takeaway(by: dict[tuple[str, float], dict[str, Any]]) -> str:
    return (
        f"At temperature 2 the output keeps every likeliest token ({by['output', 2.0]['another first']:.0%} change) "
        f"and attention changes {by['attention', 2.0]['another first']:.0%} of them: the advice in texts belongs to "
        "the output."
    )


def draw(result: Result) -> Figure:
    """Draw the share of likeliest tokens that change, by either temperature."""
    from limelight.experiments.figures import legend_below, new_figure, series

    figure, axis = new_figure(height=3.0)
    for n, of in enumerate(("attention", "output")):
        mine = [row for row in result.data["temperatures"] if row["of"] == of]
        series(axis, TEMPERATURES, [row["another first"] for row in mine], n, f"temperature of {of}")
    axis.set(xlabel="temperature", ylabel="likeliest tokens that change", title="Only attention's changes what is said")
    axis.set_ylim(-0.02)
    legend_below(figure, axis, 2)
    return figure
