"""The rank of attention matrices: claim 51."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limelight import weights
from limelight.experiments.findings import EXTRA, MISSING, Finding, Result, holds
from limelight.experiments.lesson import Lesson
from limelight.experiments.real_models import HOW_TO_GET, minilm

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Low rank",
    equation="A = U Σ Vᵀ;   rank for 90 % = least r with Σᵢ≤r σᵢ ≥ 0.9 Σᵢ σᵢ",
    method=(
        "MiniLM reads a text of about 250 tokens, and the singular values of each of its 72 attention matrices are "
        "taken. The number that holds 90 % of their sum (the measure of Wang et al.) is compared with that of "
        "weights from random queries and keys of the same width, and with the width of a head, which bounds the rank "
        "of the scores and not that of the weights."
    ),
    code="""\
import torch, limelight as ll
q, k = torch.randn(2, 1, 256, 32)
s = torch.linalg.svdvals(ll.weights(q, k).dense()[0])
print((s.cumsum(0) < 0.9 * s.sum()).sum() + 1, "of", len(s))
""",
)
TEXT = (
    "The old ferry left the harbour before sunrise, and the few passengers on its deck pulled their coats closer as "
    "the wind turned. Nobody spoke. A girl with a red scarf counted the lights along the shore until the fog "
    "swallowed the last of them. Her grandfather had crossed this water every week for forty years, first with salt "
    "and nets, later with letters, and he knew the rocks by the sound that the waves made against them. When the "
    "engine stopped in the middle of the strait, he was the only one who smiled. “Listen,” he said, “she wants to "
    "tell us something.” The captain came out of the wheelhouse, wiped his hands on a rag and looked at the grey "
    "wall ahead. Somewhere behind it lay the island, with its white chapel, its three shops and the school where the "
    "girl would spend the winter. She thought of her mother's kitchen, of bread and oranges, and of the map on the "
    "wall in which she had marked every place that she meant to see. Then the engine coughed, the deck began to "
    "tremble again, and the ferry moved on, slowly, as if it were feeling its way along a dark corridor with one "
    "hand on the wall."
)
SHARE, LOW = 0.9, 0.25  # low rank: a quarter of the singular values hold 90 % of their sum


def run(quick: bool = False, seed: int = 0) -> Result:
    """Measure the rank for 90 % of every head of MiniLM, and of random weights."""
    model = minilm()
    if model is None:
        finding = Finding(
            51, "share of singular values that hold 90 % of their sum", f"below {LOW}", None, MISSING, HOW_TO_GET
        )
        return Result("low-rank", f"Not measured: {HOW_TO_GET}.", [finding], {"spectra": [], "heads": []})
    A = model.matrices(TEXT)
    n, width = A.shape[-1], 32
    q, k = torch.randn(2, 8, n, width, generator=torch.Generator().manual_seed(seed))
    spectra = {"random": torch.linalg.svdvals(weights(q, k).dense())}
    for layer, heads in enumerate(A):
        spectra[f"layer {layer}"] = torch.linalg.svdvals(heads)
    shares = {name: (rank(found) / n).tolist() for name, found in spectra.items()}
    heads = [{"matrix": name, "share": share} for name, found in shares.items() for share in found]
    trained = [row["share"] for row in heads if row["matrix"] != "random"]
    low, random = sum(share < LOW for share in trained) / len(trained), fmean(shares.pop("random"))
    takeaway = (
        f"{low:.0%} of MiniLM's heads have 90 % of their sum in a quarter of {n} singular values; a head takes "
        f"{fmean(trained):.0%} of them on average, and random weights {random:.0%}."
    )
    findings = _findings(n, trained, low, [round(fmean(found), 2) for found in shares.values()], random)
    return Result("low-rank", takeaway, findings, {"spectra": _curves(spectra), "heads": heads})


def _findings(n: int, trained: list[float], low: float, by_layer: list[float], random: float) -> list[Finding]:
    return [
        Finding(
            claim=51,
            what=f"share of {len(trained)} heads of which a quarter of the singular values hold 90 % of the sum",
            theirs="most",
            measured=round(low, 2),
            verdict=holds(low > 0.75, in_part=low > 0.25),
            note=f"{n} tokens; least {min(trained):.2f}, most {max(trained):.2f} of the singular values",
        ),
        Finding(
            claim=51,
            what="share of singular values for 90 %, mean by layer",
            theirs="falls with depth",
            measured=by_layer,
            verdict=holds(by_layer[-1] < by_layer[0], in_part=min(by_layer[1:]) < by_layer[0]),
            note="Wang et al. find the spectra of higher layers more skewed",
        ),
        Finding(
            claim=51,
            what="the same for weights from random queries and keys",
            theirs=None,
            measured=round(random, 2),
            verdict=EXTRA,
            note="their mean row is one strong direction, and the rest is spread over all others",
        ),
    ]


def rank(singular_values: Tensor) -> Tensor:
    """Count the largest singular values that hold 90 % of their sum, for each matrix."""
    total = singular_values.sum(-1, keepdim=True)
    return (singular_values.cumsum(-1) < SHARE * total).sum(-1) + 1


def _curves(spectra: dict[str, Tensor]) -> list[dict[str, Any]]:
    rows = []
    for name, s in spectra.items():
        held = (s.cumsum(-1) / s.sum(-1, keepdim=True)).mean(0)
        places = torch.linspace(0, len(held) - 1, 41).round().long()
        rows += [{"matrix": name, "share of values": (int(i) + 1) / len(held), "held": float(held[i])} for i in places]
    return rows


def draw(result: Result) -> Figure:
    """Draw how much of the sum the largest singular values hold, layer by layer."""
    from limelight.experiments.figures import COLOURS, GREY, LINES, chance_line, legend_below, new_figure

    figure, axis = new_figure(height=3.4)
    names = list(dict.fromkeys(row["matrix"] for row in result.data["spectra"]))
    for n, name in enumerate(names):
        mine = [row for row in result.data["spectra"] if row["matrix"] == name]
        colour, line = (GREY, "-.") if name == "random" else (COLOURS[n - 1], LINES[n % 4])
        axis.plot(
            [r["share of values"] for r in mine], [r["held"] for r in mine], color=colour, linestyle=line, label=name
        )
    chance_line(axis, SHARE, "90 %")
    axis.set(xlabel="share of the singular values", ylabel="share of their sum", title="A few directions hold most")
    legend_below(figure, axis, 4)
    return figure
