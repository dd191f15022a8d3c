"""Attention on the first token, with and without a sink logit: claim 46."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight import Causal, Weights, attention, translate, weights
from limelight.experiments.findings import EXTRA, Finding, Result, holds, rounded
from limelight.experiments.lesson import Lesson
from limelight.experiments.training import fit
from limelight.nn import FeedForward
from limelight.positions import sinusoids

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Attention sinks",
    equation="Aᵢⱼ = exp sᵢⱼ / (exp(sink) + Σₖ exp sᵢₖ): a logit that takes weight and gives no value",
    method=(
        "A causal model of three layers learns a language in which attention is needed after two words only: they "
        "repeat the word before them; all others are followed by one of three words of a table. Every text begins "
        "with the same token. The weight on that first token is measured in every layer for queries where attention "
        "is not needed, for a model with plain softmax and for one whose heads have a learned sink logit."
    ),
    code="""\
import torch, limelight as ll
q, k = torch.randn(2, 1, 2, 6, 8)
for sink in (None, torch.zeros(2), torch.full((2,), 4.0)):
    A = ll.weights(q, k, mask=ll.Causal(), sink=sink)
    print(A.dense().sum(-1)[0, 0])      # what is missing from 1 rests in the sink
""",
)
WORDS, TRIGGERS, WIDTH, HEADS, LAYERS, TOKENS = 16, 2, 48, 2, 3, 32
FIRST = WORDS  # the token that every text begins with


class Layer(nn.Module):
    """Causal attention with a sink logit if wanted, and a feed-forward part."""

    def __init__(self, has_sink: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed_forward = FeedForward(WIDTH, 2 * WIDTH)
        self.sink = nn.Parameter(torch.zeros(HEADS)) if has_sink else None

    def operands(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v ``(B, H, N, D)``."""
        q, k, v = self.qkv(self.norms[0](x)).chunk(3, -1)
        return _heads(q), _heads(k), _heads(v)

    def weights(self, x: Tensor) -> Weights:
        """Return the weights of this layer for its input."""
        q, k, _ = self.operands(x)
        return weights(q, k, mask=Causal(), sink=self.sink)

    def forward(self, x: Tensor) -> Tensor:
        """Add attention and feed-forward to ``x (B, N, width)``."""
        q, k, v = self.operands(x)
        x = x + self.out(attention(q, k, v, mask=Causal(), sink=self.sink).transpose(1, 2).flatten(2))
        out: Tensor = x + self.feed_forward(self.norms[1](x))
        return out


def _heads(x: Tensor) -> Tensor:
    return x.view(*x.shape[:-1], HEADS, -1).transpose(1, 2)


class Model(nn.Module):
    """Embeddings with sinusoidal positions, three layers and a linear map to the words."""

    def __init__(self, has_sink: bool) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(WORDS + 1, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers = nn.ModuleList(Layer(has_sink) for _ in range(LAYERS))

    def embed(self, ids: Tensor) -> Tensor:
        """Return embeddings with positions."""
        x: Tensor = self.table(ids) + 0.3 * sinusoids(torch.arange(ids.shape[1]), WIDTH)
        return x

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits ``(B, N, words)``."""
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.out(x)
        return logits


def texts(count: int, table: Tensor, g: torch.Generator) -> Tensor:
    """Draw texts: after a trigger the word before it again, else one of three followers."""
    ids = [torch.full((count,), FIRST), torch.randint(TRIGGERS, WORDS, (count,), generator=g)]
    for _ in range(TOKENS - 1):
        follower = table[ids[-1], torch.randint(0, 3, (count,), generator=g)]
        ids.append(torch.where(ids[-1] < TRIGGERS, ids[-2], follower))
    return torch.stack(ids, 1)


def _trained(has_sink: bool, seed: int, steps: int) -> list[dict[str, Any]]:
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    table = torch.randint(0, WORDS, (WORDS + 1, 3), generator=g)
    table[TRIGGERS:WORDS:4, 0] = torch.arange(len(table[TRIGGERS:WORDS:4])) % TRIGGERS  # so that triggers are frequent
    model = Model(has_sink)

    def batch() -> tuple[tuple[Tensor, ...], Tensor]:
        ids = texts(32, table, g)
        target = ids[:, 1:].clone()
        target[:, 0] = -100
        return (ids[:, :-1],), target

    losses = fit(model, batch, steps=steps, rate=3e-3)
    ids = texts(64, table, g)[:, :-1]
    idle = ids[:, 8:] >= TRIGGERS  # queries that need no attention, at positions with enough keys
    rows = []
    with torch.no_grad():
        x = model.embed(ids)
        for n, layer in enumerate(model.layers):
            A = layer.weights(x).dense()[:, :, 8:]  # type: ignore[operator]
            first = A[..., 0].mean(1)[idle]
            sink = (1 - A.sum(-1)).mean(1)[idle]
            even = (1 / torch.arange(9, ids.shape[1] + 1)).expand(len(ids), -1)[idle]
            row = {"sink logit": has_sink, "layer": n, "first": float(first.mean()), "sink": float(sink.mean())}
            rows.append(row | {"equal weights": float(even.mean()), "loss": sum(losses[-20:]) / 20})
            x = layer(x)
    return rows


def run(quick: bool = False, seed: int = 0) -> Result:
    """Train a model without and with sink logits, and look at the first token."""
    steps = 200 if quick else 500
    plain, sunk = (_trained(has_sink, seed, steps) for has_sink in (False, True))
    first, instead = [row["first"] for row in plain], [row["first"] for row in sunk]
    even = plain[0]["equal weights"]
    deep = max(range(LAYERS), key=lambda n: first[n])
    findings = [
        Finding(
            claim=46,
            what="weight on the first token where attention is not needed, layer by layer",
            theirs=f"well above {even:.2f}",
            measured=rounded(first),
            verdict=holds(max(first[1:]) > 4 * even, in_part=max(first) > 2 * even),
            note=f"equal weights would give {even:.2f}",
        ),
        Finding(
            claim=46,
            what="deeper layers do it more than the first",
            theirs="rises",
            measured=rounded([first[0], max(first[1:])]),
            verdict=holds(max(first[1:]) > first[0] + 0.05, in_part=max(first[1:]) > first[0]),
        ),
        Finding(
            claim=46,
            what=f"a sink logit takes its place: weight on the first token of layer {deep} without and with it",
            theirs="falls",
            measured=rounded([first[deep], instead[deep]]),
            verdict=holds(instead[deep] < 0.5 * first[deep], in_part=instead[deep] < 0.8 * first[deep]),
            note=f"the sink logits take {rounded([row['sink'] for row in sunk])} of the weight instead",
        ),
        Finding(
            claim=46,
            what="loss without and with a sink logit (nats)",
            theirs=None,
            measured=rounded([plain[0]["loss"], sunk[0]["loss"]], 3),
            verdict=EXTRA,
            note="what cannot be known costs ln 3 = 1.1 where a word is followed by three different ones",
        ),
        _real_decoder(),
    ]
    takeaway = (
        f"Where attention has nothing to do, layer {deep} puts {first[deep]:.0%} of it on the first token (equal "
        f"weights: {even:.0%}); with a sink logit {instead[deep]:.0%} stays there and {sunk[deep]['sink']:.0%} goes "
        "into the sink."
    )
    return Result("sinks", takeaway, findings, {"layers": [*plain, *sunk]})


def _real_decoder() -> Finding:
    """Measure the weight on the first token in every layer of the translator's decoder."""
    record = translate.load()("When he came home, his wife was already asleep.", beams=1).sentences[0].record
    calls = [call for call in record.log if call.stack == "decoder" and call.kind == "self"]
    first = [float(call.weights.dense()[0, :, 4:, 0].mean()) for call in calls]
    n = calls[0].shape[-1]
    even = sum(1 / (i + 1) for i in range(4, n)) / (n - 4)
    return Finding(
        claim=46,
        what="the translator's decoder: weight on the first token, layer by layer",
        theirs=None,
        measured=rounded(first),
        verdict=EXTRA,
        note=f"equal weights would give {even:.2f}; {len(calls)} layers, {n} tokens",
    )


def draw(result: Result) -> Figure:
    """Draw the weight on the first token by layer, without and with a sink logit."""
    from limelight.experiments.figures import bars, chance_line, legend_below, new_figure

    figure, axis = new_figure(height=3.0)
    layers = result.data["layers"]
    plain, sunk = ([row for row in layers if row["sink logit"] == has_sink] for has_sink in (False, True))
    heights = {
        "plain: first token": [row["first"] for row in plain],
        "with sink logit: first token": [row["first"] for row in sunk],
        "with sink logit: in the sink": [row["sink"] for row in sunk],
    }
    bars(axis, [f"layer {row['layer']}" for row in plain], heights)
    chance_line(axis, plain[0]["equal weights"], "equal weights")
    axis.set(ylabel="share of the weight", ylim=(0, 1.02), title="Where idle attention rests")
    legend_below(figure, axis, 2)
    return figure
