"""Training on a terminal."""

from __future__ import annotations

import time
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from limelight.translate.data import read_pairs
from limelight.translate.training import Progress, Recipe, split_for_training, train
from limelight.viz.tables import messages_console


def train_with_progress(
    pairs: str,
    folder: str,
    choices: dict[str, Any],
    threads: int | None,
    start: str | None = None,
    finish: bool = False,
) -> None:
    """``train`` with a bar: the loss, tokens a second and the time that is left, on the standard error."""
    recipe = Recipe(**choices)
    given = read_pairs(pairs)
    split_for_training(given, recipe)  # says what is wrong before there is a bar
    if threads is not None:
        torch.set_num_threads(threads)
    console = messages_console()
    columns = (
        TextColumn("epoch {task.fields[epoch]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}, {task.fields[speed]:.0f} tokens/s"),
        TimeRemainingColumn(),
    )
    begin = time.monotonic()
    loss = 0.0
    with Bar(*columns, console=console) as bar:
        task = bar.add_task("", total=None, epoch=f"1/{recipe.epochs}", loss=0.0, speed=0.0)

        def watch(now: Progress) -> None:
            nonlocal loss
            loss = now.loss if not loss else 0.98 * loss + 0.02 * now.loss
            bar.update(
                task,
                completed=now.epoch * now.batches + now.done,
                total=recipe.epochs * now.batches,
                epoch=f"{now.epoch + 1}/{recipe.epochs}",
                loss=loss,
                speed=now.tokens / (time.monotonic() - begin),
            )

        def scored(epoch: int, bleu: float) -> None:
            console.print(f"epoch {epoch}: BLEU {bleu:.2f}")

        best = train(given, folder, recipe, start=start, finish=finish, watch=watch, scored=scored)
    print(f"{folder}: BLEU {best:.2f} on sentences that it was not trained on")
