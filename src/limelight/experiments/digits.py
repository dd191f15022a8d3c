"""A Vision Transformer that learns handwritten digits here, and the patches that it looks at: claim 53."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import affine_grid, cross_entropy, grid_sample

from limelight import Dense, edit, rollout, watch
from limelight.experiments.findings import EXTRA, MISSING, Finding, Result, holds, rounded
from limelight.experiments.lesson import Lesson
from limelight.experiments.training import fit
from limelight.lens import Knockout, importance
from limelight.models.vit import Vision
from limelight.nn import Block, Encoder, FeedForward, MultiHeadAttention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="A Vision Transformer reads digits",
    equation="x = [class, E p₁, …, E p₁₆] + positions;  digit = W · encoder(x)₀",
    method=(
        "A Vision Transformer of three layers learns the 1,797 handwritten digits that scikit-learn carries, as 16 "
        "patches of 2 × 2 pixels and a class token, from 1,347 of them, slightly turned, moved and scaled. On the 450 "
        "others rollout tells how much each patch reaches the class token. Then patches are hidden from all queries in "
        "all layers: those that it looks at most, those that it looks at least, and as many at random. Last, "
        "lens.importance hides the most seen patches from one head at a time."
    ),
    code="""\
import limelight as ll
from limelight.experiments.digits import learn, seen_patches, handwritten
train, test = handwritten()
model = learn(train, seed=0, steps=100)              # 1700 for a good one
print((model(test.pictures).argmax(-1) == test.digits).float().mean())
heat = seen_patches(model, test.pictures[:1])[0]     # (16,): from each patch to the class token
print((100 * heat.view(4, 4)).round())
""",
)
PIXELS, PATCH, WIDTH, HEADS, LAYERS, STEPS = 8, 2, 48, 4, 3, 1700
PATCHES = (PIXELS // PATCH) ** 2
HELD_OUT = 450
HIDDEN = (0, 1, 2, 4, 6, 8)  # numbers of patches that are hidden
REMEDY = "pip install scikit-learn, which carries the digits"


class Digits:
    """Pictures ``(B, 1, 8, 8)`` from 0 (paper) to 1 (ink), and the digits ``(B,)`` that they show."""

    def __init__(self, pictures: Tensor, digits: Tensor) -> None:
        self.pictures, self.digits = pictures, digits


def handwritten() -> tuple[Digits, Digits]:
    """Return the digits to learn from, and the 450 that are held out, the same in every run."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ImportError(f"the experiment digits needs scikit-learn: {REMEDY}") from None
    found = load_digits()
    pictures = torch.tensor(found.images, dtype=torch.float32)[:, None] / 16
    digits = torch.tensor(found.target)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
    test, train = order[:HELD_OUT], order[HELD_OUT:]
    return Digits(pictures[train], digits[train]), Digits(pictures[test], digits[test])


class Reader(nn.Module):
    """``W · encoder([class, patches])₀``: pictures to logits of ten digits."""

    def __init__(self) -> None:
        super().__init__()
        blocks = (Block(MultiHeadAttention(WIDTH, HEADS), FeedForward(WIDTH, 2 * WIDTH)) for _ in range(LAYERS))
        self.vision = Vision(WIDTH, PIXELS, PATCH, 1, Encoder(blocks, nn.LayerNorm(WIDTH)))
        nn.init.normal_(self.vision.positions, std=0.02)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        """``(B, 1, 8, 8)`` to ``(B, 10)``."""
        logits: Tensor = self.head(self.vision(pictures)[:, 0])
        return logits


def learn(train: Digits, seed: int, steps: int) -> Reader:
    """Train a reader on pictures that are turned, moved and scaled a little."""
    torch.manual_seed(seed)
    model, g = Reader(), torch.Generator().manual_seed(seed)

    def batch() -> tuple[tuple[Tensor, ...], Tensor]:
        some = torch.randint(0, len(train.digits), (64,), generator=g)
        return (_moved(train.pictures[some], g),), train.digits[some]

    fit(model, batch, steps=steps, rate=4e-3, one_cycle=True)
    return model


def _moved(pictures: Tensor, g: torch.Generator) -> Tensor:
    """Turn by up to 9°, scale by up to 9% and move by up to 0.6 pixels."""
    turn, size, dx, dy = (torch.rand(4, len(pictures), generator=g) * 2 - 1) * torch.tensor(
        [[0.15], [0.09], [0.15], [0.15]]
    )
    cos, sin = (1 + size) * turn.cos(), (1 + size) * turn.sin()
    maps = torch.stack([torch.stack([cos, -sin, dx], -1), torch.stack([sin, cos, dy], -1)], 1)
    return grid_sample(pictures, affine_grid(maps, list(pictures.shape), align_corners=False), align_corners=False)


@torch.no_grad()
def seen_patches(model: Reader, pictures: Tensor) -> Tensor:
    """Return how much each patch reaches the class token through all layers, ``(B, 16)``, by rollout."""
    with watch(model) as record:
        model(pictures)
    return rollout([call.weights for call in record.log], [0])[:, 0, 1:]


def hide(patches: Tensor) -> Dense:
    """Return the mask of all pairs whose key is one of these patches, ``(B, 16)`` booleans."""
    keys = torch.cat([torch.zeros(len(patches), 1, dtype=torch.bool), patches], 1)
    return Dense(keys[:, None, None].expand(-1, 1, PATCHES + 1, -1))


def strongest(heat: Tensor, count: int) -> Tensor:
    """Mark the ``count`` patches with the most heat of each picture."""
    return torch.zeros_like(heat, dtype=torch.bool).scatter(1, heat.topk(count, dim=1).indices, True)


@torch.no_grad()
def share_right(model: Reader, test: Digits, hidden: Tensor) -> float:
    """Return the share of digits that are read right while these patches are hidden in every layer."""
    with edit(model, dict.fromkeys(range(LAYERS), Knockout(hide(hidden)))):
        return float((model(test.pictures).argmax(-1) == test.digits).float().mean())


def run(quick: bool = False, seed: int = 0) -> Result:
    """Train, look, and hide patches."""
    try:
        train, test = handwritten()
    except ImportError:
        finding = Finding(53, "handwritten digits", "attends to what matters", None, MISSING, REMEDY)
        return Result("digits", "Not measured: the digits are not installed.", [finding])
    model = learn(train, seed, STEPS // 3 if quick else STEPS)
    heat = seen_patches(model, test.pictures)
    noise = torch.rand(heat.shape, generator=torch.Generator().manual_seed(seed))
    ways = {"most seen": heat, "at random": noise, "least seen": -heat}
    hidden = [
        {"patches hidden": n} | {way: share_right(model, test, strongest(x, n)) for way, x in ways.items()}
        for n in HIDDEN
    ]
    effects = [_by_head(model, test, strongest(x, 4)) for x in (heat, -heat)]
    ink = torch.nn.functional.avg_pool2d(test.pictures, PATCH).flatten(1)
    data = {"hidden": hidden, "heads": effects[0], "examples": _examples(model, test, heat)}
    at_four = next(row for row in hidden if row["patches hidden"] == 4)
    takeaway = (
        f"It reads {hidden[0]['most seen']:.1%} of new digits right; without the four patches that it looks at most "
        f"{at_four['most seen']:.0%}, without four at random {at_four['at random']:.0%}, and without the four that it "
        f"looks at least {at_four['least seen']:.0%}."
    )
    return Result("digits", takeaway, _judge(hidden, at_four, effects, _correlation(heat, ink)), data)


def _by_head(model: Reader, test: Digits, patches: Tensor) -> list[dict[str, Any]]:
    """Measure the loss when these patches are hidden from one head at a time."""

    def loss(logits: Tensor) -> Tensor:
        return cross_entropy(logits, test.digits)

    found = importance(
        model,
        (test.pictures,),
        metric=loss,
        edit=lambda heads: Knockout(hide(patches), heads=heads),
    )
    return [{"layer": row["layer"], "head": row["head"], "effect": row["effect"]} for row in found]


def _judge(
    hidden: list[dict[str, Any]], at_four: dict[str, Any], effects: Sequence[list[dict[str, Any]]], with_ink: float
) -> list[Finding]:
    right = hidden[0]["most seen"]
    lost = {way: right - at_four[way] for way in ("most seen", "at random", "least seen")}
    most, least = (sum(row["effect"] for row in rows) / len(rows) for rows in effects)
    return [
        Finding(
            claim=53,
            what="patches as tokens are enough: share of 450 new digits that are read right",
            theirs="most",
            measured=round(right, 3),
            verdict=holds(right >= 0.97, in_part=right >= 0.9),
            note="reproduced: at least 0.97",
        ),
        Finding(
            claim=53,
            what="it looks at what matters: share lost without the 4 most seen patches of 16, at random, least seen",
            theirs="more, less, least",
            measured=rounded([lost["most seen"], lost["at random"], lost["least seen"]], 3),
            verdict=holds(
                lost["most seen"] > 2 * lost["at random"] > 2 * lost["least seen"],
                in_part=lost["most seen"] > lost["least seen"],
            ),
            note="hidden from every query in every layer; reproduced: twice as much as at random, and that the least",
        ),
        Finding(
            claim=53,
            what="one head at a time: mean rise of the loss without its 4 most seen and 4 least seen patches (nats)",
            theirs="more, less",
            measured=[round(most, 4), round(least, 4)],
            verdict=holds(most > 2 * abs(least), in_part=most > least),
            note=f"lens.importance over {len(effects[0])} heads; no single head is needed much: others see the same",
        ),
        Finding(
            claim=53,
            what="correlation between the ink in a patch and how much it is seen",
            theirs=None,
            measured=round(with_ink, 2),
            verdict=EXTRA,
            note="empty patches tell digits apart, too: the gap of a 3 is what an 8 does not have",
        ),
    ]


def _correlation(x: Tensor, y: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([x.flatten(), y.flatten()]))[0, 1])


def _examples(model: Reader, test: Digits, heat: Tensor) -> list[dict[str, Any]]:
    """Return the pixels and the heat of the first picture of each of five digits that is read right."""
    with torch.no_grad():
        right = model(test.pictures).argmax(-1) == test.digits
    rows = []
    for digit in (0, 2, 3, 4, 7):
        n = int((right & (test.digits == digit)).nonzero()[0])
        row: dict[str, Any] = {"digit": digit}
        row |= {f"pixel {m}": float(x) for m, x in enumerate(test.pictures[n].flatten())}
        rows.append(row | {f"patch {m}": float(x) for m, x in enumerate(heat[n])})
    return rows


def draw(result: Result) -> Figure:
    """Draw digits with what the class token sees of them, and what is read right as patches are hidden."""
    from matplotlib.figure import Figure

    from limelight.experiments.figures import WIDTH as INCHES
    from limelight.experiments.figures import constrained_layout, over_picture, series

    figure = Figure(figsize=(INCHES, 5.2), layout=constrained_layout())
    if not result.data:
        figure.text(0.5, 0.5, "scikit-learn is not installed", ha="center")
        return figure
    above, below = figure.subfigures(2, 1, height_ratios=(2, 3), squeeze=False)[:, 0]
    above.suptitle("What it is shown, and what it looks at", x=0.02, ha="left", fontweight="bold", fontsize=11.5)
    axes, examples = above.subplots(2, 5), result.data["examples"]
    for (top, bottom), row in zip(axes.T, examples, strict=True):
        picture = torch.tensor([row[f"pixel {m}"] for m in range(PIXELS**2)]).view(PIXELS, PIXELS)
        side = PIXELS // PATCH
        heat = torch.tensor([row[f"patch {m}"] for m in range(PATCHES)]).view(side, side)
        over_picture(top, picture, torch.ones(side, side))
        over_picture(bottom, picture, heat)
    axis = below.subplots()
    hidden = result.data["hidden"]
    for n, way in enumerate(("most seen", "at random", "least seen")):
        series(axis, HIDDEN, [row[way] for row in hidden], n, f"{way} hidden")
    axis.set(xlabel="patches hidden, of 16", ylabel="share right", ylim=(0, 1.03), title="Switching patches off")
    axis.legend(loc="lower left")
    return figure
