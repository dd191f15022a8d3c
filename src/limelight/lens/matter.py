"""The output of ``limelight matter``: which heads matter, their labels, and whether sharp heads are the ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from limelight.lens import reading as readings
from limelight.lens import strict_json
from limelight.lens.importance import Importance, importance, rank_correlation
from limelight.lens.report import heads, real_queries
from limelight.lens.watching import watch
from limelight.models.tokenizers import readable_tokens
from limelight.viz.heatmaps import heatmap
from limelight.viz.progress import progress, tracked
from limelight.viz.tables import messages_console, wide_console
from limelight.viz.text import printable


@dataclass(frozen=True)
class Matter:
    """Effects of a model's heads, their labels, and how strong their strongest weights are.

    Attributes:
        model: the model's name.
        importance: the effects.
        labels: the label of each head, by (module, layer, head).
        looks: the mean of the largest weight of each query, by (module, layer, head): how sharply a head looks.
        agreement: the rank correlation of ``looks`` and the magnitudes of effects; None for layers.
        wrote: the text that an encoder-decoder wrote, which is the target of its log-probability.

    """

    model: str
    importance: Importance
    labels: dict[tuple[Any, ...], str]
    looks: dict[tuple[Any, ...], float]
    agreement: float | None
    wrote: str = ""


def measure(folder: str | Path, text: str, *, by: str, metric: str | None, method: str) -> Matter:
    """Measure the effects of the heads of the model in a folder on a text, and show progress."""
    folder = Path(folder)
    with progress(messages_console(), "loading") as advance:
        model, ours = readings.load_model(folder, predicts=True)
        tokenizer = readings.load_tokenizer(folder)
        ids = tokenizer.encode(text).ids
        most = readings.max_positions(model)
        source = torch.tensor([ids if most is None else ids[:most]])
        if source.shape[1] == 0:
            raise ValueError("the text has no tokens")
        with torch.no_grad():
            target = readings.write_target(model, source, ours, most, None)
        inputs = _inputs(source, target, ours)
        dense = not ours and readings.has_own_attention(model)
        found = importance(
            model,
            inputs,
            by=by,
            metric=metric,
            method=method,
            dense=dense,
            progress=lambda layers: tracked(layers, "switching off", advance),
        )
        with torch.no_grad(), watch(model, dense=dense) as record:
            model(*inputs) if isinstance(inputs, tuple) else model(**inputs)
    target_ids = source[0] if target is None else target[0]
    tokens = readable_tokens(tokenizer, {"encoder": source[0], "decoder": target_ids})
    labels = {(row["module"], row["layer"], row["head"]): row["label"] for row in heads(record, tokens)}
    looks = _strongest(record)
    agreement = None
    if by == "head":
        places = [(row["module"], row["layer"], row["head"]) for row in found]
        agreement = rank_correlation([looks[x] for x in places], [abs(row["effect"]) for row in found])
    wrote = "" if target is None else tokenizer.decode(target[0].tolist())
    return Matter(folder.resolve().name, found, labels, looks, agreement, wrote)


def _inputs(source: Tensor, target: Tensor | None, ours: bool) -> Any:
    if target is None:
        return (source,)
    return (source, target) if ours else {"input_ids": source, "decoder_input_ids": target}


def _strongest(record: Any) -> dict[tuple[Any, ...], float]:
    """Return the mean of the largest weight of each query, for every head."""
    real, found = real_queries(record), {}
    for call in record.log:
        rows = real[id(call)]
        with torch.no_grad():
            largest = (call.weights.max() * rows[:, None]).sum((0, 2)) / rows.sum()
        for head, x in enumerate(largest.tolist()):
            found[call.module, call.layer, head] = x
    return found


def show(matter: Matter, figure: str | None, as_json: bool) -> None:
    """Print the heatmap, the ten heads that matter most, and the correlation of sharp weights with effects."""
    found = matter.importance
    if figure:
        found.figure().savefig(figure, dpi=150)
        messages_console().print(printable(f"{figure} shows all of them."))
    if as_json:
        top = [{**row, "label": matter.labels.get((row["module"], row["layer"], row["head"]))} for row in found.top()]
        written = {"wrote": matter.wrote} if matter.wrote else {}
        print(
            strict_json.dumps(
                {"model": matter.model, **written, **found.as_dict(), "top": top, "agreement": matter.agreement}
            )
        )
        return
    console = wide_console()
    if matter.wrote:
        console.print(printable(f"{matter.model} writes: {matter.wrote}"))
    for picture in found.pictures():
        console.print(heatmap(picture), soft_wrap=True)
    console.print(found.table(labels=matter.labels if found.by == "head" else None))
    if found.correlation is not None:
        console.print(f"rank correlation of exact effects and gradient estimates: {found.correlation:.2f}")
    if matter.agreement is not None:
        console.print(
            f"looking and mattering: the rank correlation of a head's strongest weights and its effect is "
            f"{matter.agreement:.2f} (1: what looks important is important; 0: they have nothing to do with each other)"
        )
