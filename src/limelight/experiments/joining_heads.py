"""Concatenation of heads, and what W_O does with them: claims 5 and 37."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight.experiments.findings import Finding, Result, holds, mean_and_spread, plus_minus
from limelight.experiments.lesson import Lesson
from limelight.nn import MultiHeadAttention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Joining heads",
    equation="concat(head₁, …, head_h) W_O = head₁ W_O1 + … + head_h W_Oh",
    method=(
        "Random layers are computed in both ways. What is lost by adding heads is the share of their variance that "
        "no linear map finds in the sum. Then a layer learns to copy a teacher that uses two of its four heads: the "
        "size of each slice of W_O shows if it learns to ignore the others. That W_O is the same in every context is "
        "seen by taking each head's part from two different texts."
    ),
    code="""\
import torch
from limelight.nn import MultiHeadAttention
layer, x = MultiHeadAttention(32, 4, bias=False), torch.randn(1, 6, 32)
heads = layer.weights(x) @ layer.value(x).unflatten(-1, (4, 8)).transpose(1, 2)   # (1, 4, 6, 8)
parts = [heads[:, h] @ W.T for h, W in enumerate(layer.out.weight.chunk(4, dim=1))]
print((sum(parts) - layer(x)).abs().max())
print([part.norm().item() for part in parts])   # how much each head adds
""",
)
HEADS, WIDTH, TOKENS = 4, 32, 24
USED = (0, 2)  # heads of the teacher that its W_O does not ignore


def run(quick: bool = False, seed: int = 0) -> Result:
    """Compare sum and concatenation, and train a W_O to ignore heads."""
    seeds = range(seed, seed + (3 if quick else 5))
    compared = [_compare(s) for s in seeds]
    sizes = [_learned_slices(s, steps=300 if quick else 600) for s in seeds]
    off, added, concatenated = (list(x) for x in zip(*compared, strict=True))
    rows: list[dict[str, Any]] = []
    for h in range(HEADS):
        mean, spread = mean_and_spread([x[h] for x in sizes])
        rows.append({"head": h, "used": h in USED, "size of slice": mean, "spread": spread})
    findings = [*_judge_joining(off, added, concatenated), *_judge_mixing(rows, seed)]
    takeaway = (
        f"W_O adds up the heads, each through a slice of its own; added without it, {sum(added) / len(added):.0%} of "
        "what they say is lost, and a learned W_O shrinks the slices of useless heads to "
        f"{max(row['size of slice'] for row in rows if not row['used']):.2f} of the others."
    )
    return Result("joining-heads", takeaway, findings, {"slices": rows})


def _compare(seed: int, width: int = 64, tokens: int = 96) -> tuple[float, float, float]:
    """Return the difference between both ways, and the lost variance of added and of concatenated heads."""
    torch.manual_seed(seed)
    layer = MultiHeadAttention(width, HEADS)
    x = torch.randn(1, tokens, width)
    with torch.no_grad():
        heads = layer.heads(x).outputs
        slices = layer.out.weight.chunk(HEADS, dim=1)
        summed = sum(heads[:, n] @ W.T for n, W in enumerate(slices)) + layer.out.bias
        off = float((summed - layer(x)).abs().max())
        heads = (heads - heads.mean(2, keepdim=True))[0].double()  # the mean over tokens carries no information
        apart = heads.transpose(0, 1).flatten(1)

        def lost(joined: Tensor) -> float:
            best = joined @ torch.linalg.lstsq(joined, apart).solution
            return float(((apart - best).norm() / apart.norm()) ** 2)

        return off, lost(heads.sum(0)), lost(apart)


def _learned_slices(seed: int, steps: int) -> list[float]:
    """Train W_O to copy a teacher that uses two heads; return the size of each slice, relative to the largest."""
    torch.manual_seed(seed)
    layer = MultiHeadAttention(WIDTH, HEADS, bias=False)
    teacher = torch.cat([torch.randn(WIDTH, WIDTH // HEADS) * (h in USED) for h in range(HEADS)], 1)
    x = 2 * torch.randn(64, TOKENS, WIDTH)
    with torch.no_grad():
        joined = layer.heads(x).outputs.transpose(1, 2).flatten(2)
    wanted = joined @ teacher.T
    out = nn.Linear(WIDTH, WIDTH, bias=False)
    optimizer = torch.optim.Adam(out.parameters(), lr=3e-2)
    for _ in range(steps):
        loss = (out(joined) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    sizes = torch.stack([part.detach().norm() for part in out.weight.chunk(HEADS, dim=1)])
    return [float(size) for size in sizes / sizes.max()]


def _judge_joining(off: list[float], added: list[float], concatenated: list[float]) -> list[Finding]:
    mean, spread = mean_and_spread(added)
    return [
        Finding(
            claim=5,
            what="concatenated heads times W_O, against the sum of heads times slices: largest difference",
            theirs=0.0,
            measured=max(off),
            verdict=holds(max(off) < 1e-5),
            note=f"of {len(off)} layers",
        ),
        Finding(
            claim=5,
            what="adding heads makes them interfere: share of their variance that is lost",
            theirs="above 0",
            measured=round(mean, 2),
            verdict=holds(mean > 0.1 and max(concatenated) < 1e-5),
            note=f"{plus_minus([spread])} between seeds; of concatenated heads, {max(concatenated):.0e}",
        ),
    ]


def _judge_mixing(rows: list[dict[str, Any]], seed: int) -> list[Finding]:
    ignored = max(row["size of slice"] for row in rows if not row["used"])
    used = min(row["size of slice"] for row in rows if row["used"])
    torch.manual_seed(seed)
    layer = MultiHeadAttention(WIDTH, HEADS, bias=False)
    texts = torch.randn(2, TOKENS, WIDTH)
    with torch.no_grad():
        heads, contributions = layer.heads(texts)
        slices = [
            [
                torch.linalg.lstsq(heads[n, h], heads[n, h] @ W.T).solution
                for h, W in enumerate(layer.out.weight.chunk(HEADS, 1))
            ]
            for n in range(2)
        ]
    differ = max(float((a - b).norm() / a.norm()) for a, b in zip(*slices, strict=True))
    head, W_O1, added = heads[0, 0], layer.out.weight.detach()[:, : WIDTH // HEADS].T, contributions[0, 0]
    shapes = f"{tuple(W_O1.shape)} and {tuple(head.shape)}"
    as_printed = _is_product(W_O1, head, added)
    turned = "gives" if _is_product(head, W_O1, added) else "does not give"
    return [
        Finding(
            claim=37,
            what="W_O may ignore heads: size of the slices of heads that the target does not use, and of the others",
            theirs="small, large",
            measured=[round(ignored, 3), round(used, 3)],
            verdict=holds(ignored < 0.1 < 0.5 < used, in_part=ignored < used),
            note="learned by copying a teacher; relative to the largest slice",
        ),
        Finding(
            claim=37,
            what="by the context: how much a head's map into the output differs between two texts",
            theirs="above 0",
            measured=round(differ, 6),
            verdict=holds(differ > 1e-3),
            note="W_O is the same matrix in every context; what changes with the context is the heads' outputs",
        ),
        Finding(
            claim=37,
            what="the order W_O1 head₁: is it what the head adds to the output?",
            theirs="yes",
            measured="yes" if as_printed else f"no: {shapes}",
            verdict=holds(as_printed),
            note=f"head₁ W_O1 {turned} it: tokens are rows",
        ),
    ]


def _is_product(a: Tensor, b: Tensor, wanted: Tensor) -> bool:
    """Return whether ``a @ b`` exists and equals ``wanted``."""
    return a.shape[-1] == b.shape[0] and torch.allclose(a @ b, wanted, atol=1e-5)


def draw(result: Result) -> Figure:
    """Draw the learned size of each head's slice of W_O."""
    from limelight.experiments.figures import COLOURS, GREY, new_figure

    figure, axis = new_figure(height=2.8)
    rows = result.data["slices"]
    names = [f"head {row['head']}\n{'used' if row['used'] else 'not used'}" for row in rows]
    colours = [COLOURS[0] if row["used"] else COLOURS[1] for row in rows]
    hatches = ["" if row["used"] else "//" for row in rows]
    heights, spreads = [row["size of slice"] for row in rows], [row["spread"] for row in rows]
    axis.bar(names, heights, 0.6, yerr=spreads, color=colours, hatch=hatches, ecolor=GREY)
    axis.grid(False, axis="x")
    axis.set(ylabel="size of the slice of W_O", title="W_O learns to ignore heads that do not help")
    return figure
