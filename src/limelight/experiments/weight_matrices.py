"""A weight matrix as a function, and which of its numbers hold a rule: claim 34."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight.experiments.embeddings import KINDS, first_queries, known_words
from limelight.experiments.findings import EXTRA, Finding, Result, holds, rounded
from limelight.experiments.lesson import Lesson
from limelight.experiments.real_models import minilm, translator
from limelight.nn import MultiHeadAttention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="A weight matrix is a function",
    equation="W = U Σ Vᵀ: rotation, scaling, rotation;   (x W)ⱼ = Σᵢ xᵢ Wᵢⱼ = x · column j",
    method=(
        "A projection of shape (512, 64) is taken apart by its singular values and put together again. One entry of "
        "the input and then one of the matrix is changed, to see which outputs follow. A 2 × 2 matrix learns a "
        "rotation by 45° from pairs of points alone. The units of PyTorch's Linear, which keeps Wᵀ, are compared "
        "with both readings. Last, 70 words of seven kinds go through the first W_Q of a real model, to see which of "
        "them each column asks for."
    ),
    code="""\
import torch
W = torch.randn(512, 64)
U, S, V = torch.linalg.svd(W, full_matrices=False)
print((U * S @ V - W).abs().max())               # rotation, scaling, rotation
x = torch.randn(512)
print((x @ W)[0], x @ W[:, 0])                    # output 0 asks column 0
x[42] += 1                                        # one more of input 42 …
print((x @ W)[0] - (x[:] - torch.eye(512)[42]) @ W[:, 0], W[42, 0])   # … adds W[42, 0]
""",
)
INPUTS, OUTPUTS, INPUT, OUTPUT = 512, 64, 42, 0
ANGLE = math.radians(45)


def run(quick: bool = False, seed: int = 0) -> Result:
    """Take a matrix apart, find its rules, and learn a rotation."""
    asked, about_words = _find_words()  # before the seed, because loading a model draws random numbers
    torch.manual_seed(seed)
    layer = MultiHeadAttention(INPUTS, 1, head_width=OUTPUTS, bias=False)
    W = layer.query.weight.detach().T  # (inputs, outputs), as x @ W has it
    U, S, V = torch.linalg.svd(W.double(), full_matrices=False)
    apart = float((U * S @ V - W).abs().max())
    turns = max(float((x.mT @ x - torch.eye(OUTPUTS)).abs().max()) for x in (U, V.mT))
    learned, losses = _learn_rotation(steps=150 if quick else 400)
    matrix = torch.tensor([[math.cos(ANGLE), math.sin(ANGLE)], [-math.sin(ANGLE), math.cos(ANGLE)]])
    off = float((learned - matrix).abs().max())
    findings = [
        Finding(
            claim=34,
            what="rotation, scaling, rotation: largest difference between U Σ Vᵀ and W",
            theirs=0.0,
            measured=f"{apart:.0e}",
            verdict=holds(apart < 1e-6 and turns < 1e-6),
            note=f"U and V are orthogonal to {turns:.0e}; singular values from {float(S[-1]):.2f} to {float(S[0]):.2f}",
        ),
        *_find_rules(W),
        about_words,
        Finding(
            claim=34,
            what="training finds it: largest difference between a learned matrix and the rotation by 45°",
            theirs=0.0,
            measured=round(off, 4),
            verdict=holds(off < 0.01),
            note=f"learned from pairs of points; found {rounded(learned.flatten().tolist())}",
        ),
    ]
    takeaway = (
        f"In x @ W the rule of an output is a column of W, and input {INPUT} reaches output {OUTPUT} through "
        f"W[{INPUT}, {OUTPUT}]; a matrix learns to rotate by 45° to within {off:.0e} from examples alone."
    )
    rows = [{"step": n, "loss": x} for n, x in enumerate(losses)]
    grid = [{"x": a, "y": b, "x turned": c, "y turned": d} for a, b, c, d in _grid(learned)]
    return Result("weight-matrices", takeaway, findings, {"learning": rows, "grid": grid, "columns": asked})


def _find_rules(W: Tensor) -> list[Finding]:
    """Find the entries that an output depends on, by changing each input, and a row and a column of W."""
    x = torch.randn(INPUTS, dtype=torch.float64)
    y = x @ W.double()
    moved = torch.stack([(x + e) @ W.double() - y for e in torch.eye(INPUTS, dtype=torch.float64)])  # (inputs, outputs)
    influence = moved[:, OUTPUT]  # of every input on output 0
    column = float((influence - W[:, OUTPUT]).abs().max())
    entry = float(moved[INPUT, OUTPUT])
    by_row, by_column = (_changed_outputs(x, W.double(), place) for place in ((OUTPUT, slice(None)), (..., OUTPUT)))
    return [
        Finding(
            claim=34,
            what=f"the rule of an output is a row of W: outputs of {OUTPUTS} that change with row {OUTPUT}",
            theirs=1,
            measured=by_row,
            verdict=holds(by_row == 1),
            note=(
                f"with column {OUTPUT}: {by_column}; its {W.shape[0]} entries are what output {OUTPUT} does with each "
                f"input (largest difference {column:.0e}); PyTorch's Linear stores Wᵀ, where the rules are rows"
            ),
        ),
        Finding(
            claim=34,
            what=f"what one more of input {INPUT} adds to output {OUTPUT}",
            theirs=f"W[{OUTPUT}, {INPUT}] = {float(W[OUTPUT, INPUT]):.4f}",
            measured=round(entry, 4),
            verdict=holds(abs(entry - float(W[OUTPUT, INPUT])) < 1e-5),
            note=f"it is W[{INPUT}, {OUTPUT}] = {float(W[INPUT, OUTPUT]):.4f}",
        ),
        Finding(
            claim=34,
            what="the same entry in PyTorch's Linear, whose weight is Wᵀ",
            theirs=None,
            measured=f"weight[{OUTPUT}, {INPUT}] = {float(W.T[OUTPUT, INPUT]):.4f}",
            verdict=EXTRA,
            note="there the texts' reading is right",
        ),
    ]


def _changed_outputs(x: Tensor, W: Tensor, place: Any) -> int:
    """Count the outputs of x W that change when a part of W is doubled."""
    doubled = W.clone()
    doubled[place] *= 2
    return int(((x @ doubled - x @ W).abs() > 1e-9).sum())


def _find_words(count: int = 3) -> tuple[list[dict[str, Any]], Finding]:
    """Find the words that the columns of a real W_Q ask for: those with the largest x · column.

    MiniLM's, where it is installed, else the translator's.
    """
    model = minilm() or translator()
    words, kinds, E = known_words(model)
    Q = first_queries(model, E)
    best = (Q - Q.mean(0)).topk(count, dim=0)  # (count, columns), against the mean word
    one_kind = (kinds[best.indices] == kinds[best.indices[0]]).all(0)
    names = list(KINDS)
    rows: list[dict[str, Any]] = [
        {
            "column": j,
            "words": ", ".join(words[i] for i in best.indices[:, j].tolist()),
            "kind": names[int(kinds[best.indices[0, j]])] if one_kind[j] else "several",
            "least": float(best.values[-1, j]),
        }
        for j in range(best.indices.shape[1])
    ]
    sizes, total = kinds.bincount().tolist(), len(words)
    chance = sum(math.comb(n, count) for n in sizes) / math.comb(total, count)
    clearest = sorted((row for row in rows if row["kind"] != "several"), key=lambda row: -row["least"])[:4]
    listed = "; ".join(f"column {row['column']}: {row['words']}" for row in clearest)
    finding = Finding(
        claim=34,
        what=f"{model.name}'s first W_Q: columns whose {count} most wanted words are of one kind, and by chance",
        theirs=None,
        measured=[round(float(one_kind.float().mean()), 3), round(chance, 3)],
        verdict=EXTRA,
        note=f"of {total} words in seven kinds; {listed}",
    )
    return rows, finding


def _learn_rotation(steps: int) -> tuple[Tensor, list[float]]:
    """Learn W from points and the same points turned by 45°."""
    x = torch.randn(64, 2)
    turn = torch.tensor([[math.cos(ANGLE), math.sin(ANGLE)], [-math.sin(ANGLE), math.cos(ANGLE)]])
    W = nn.Parameter(torch.randn(2, 2))
    optimizer, losses = torch.optim.Adam([W], lr=0.05), []
    for _ in range(steps):
        loss = (x @ W - x @ turn).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return W.detach(), losses


def _grid(W: Tensor) -> list[list[float]]:
    points = torch.tensor([[a / 2, b / 2] for a in range(-2, 3) for b in range(-2, 3)])
    found: list[list[float]] = torch.cat([points, points @ W], 1).tolist()
    return found


def draw(result: Result) -> Figure:
    """Draw points, and where the learned matrix puts them."""
    from limelight.experiments.figures import COLOURS, GREY, legend_below, new_figure

    figure, axis = new_figure(height=3.6)
    rows: list[dict[str, Any]] = result.data["grid"]
    for row in rows:
        axis.plot([row["x"], row["x turned"]], [row["y"], row["y turned"]], color=GREY, linewidth=0.6, alpha=0.6)
    axis.scatter([r["x"] for r in rows], [r["y"] for r in rows], marker="s", color=COLOURS[1], label="before", s=26)
    axis.scatter([r["x turned"] for r in rows], [r["y turned"] for r in rows], color=COLOURS[0], label="times W", s=26)
    axis.set(aspect="equal", title="A matrix that learned to turn by 45°")
    legend_below(figure, axis, 2)
    return figure
