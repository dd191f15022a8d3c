"""Training on a terminal: progress, what was chosen, and how to go on after Ctrl-C."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from limelight.translate.data import Pair, read_pairs
from limelight.translate.defaults import advice_on, choices_for
from limelight.translate.recipe import Recipe
from limelight.translate.training import Progress, Stopped, split_for_training, train
from limelight.viz.tables import messages_console
from limelight.viz.text import printable

_EVERY = 30.0  # seconds between lines of progress, where there is no terminal


def train_with_progress(
    pairs: str,
    folder: str,
    choices: dict[str, Any],
    threads: int | None,
    start: str | None = None,
    distilled: str | None = None,
    finish: bool = False,
    command: str = "",
    quiet: bool = False,
) -> bool:
    """Train with a bar, or with lines where the standard error is a file; return whether it was completed.

    ``command`` is the command that continues a training that was stopped; with ``quiet`` nothing is shown, since
    another process shows it.
    """
    console = messages_console()
    console.quiet = quiet
    given = read_pairs(pairs, note=lambda text: console.print(printable(f"note: {text}"), style="yellow"))
    recipe = _recipe_for(given, choices, console, advise=start is None)
    if threads is not None:
        torch.set_num_threads(threads)
    console.print("Ctrl-C stops and saves.")

    def scored(epoch: int, bleu: float) -> None:
        console.print(f"epoch {epoch}: BLEU {bleu:.2f}")

    def resumed(step: int, epoch: int) -> None:
        console.print(printable(f"{folder} holds a training: going on after update {step:,}, in epoch {epoch + 1}"))

    try:
        with _progress(console, recipe.epochs) as watch, _asked_to_stop(console) as stop:
            best = train(
                given,
                folder,
                recipe,
                start=start,
                distilled=None if distilled is None else read_pairs(distilled),
                finish=finish,
                watch=watch,
                scored=scored,
                resumed=resumed,
                stop=stop,
            )
    except Stopped as where:
        console.print(printable(f"{where}: saved in {folder}. To go on: {command}"))
        return False
    if not quiet:
        print(f"{folder}: BLEU {best:.2f} on sentences that it was not trained on")
    return True


def _recipe_for(pairs: list[Pair], choices: dict[str, Any], console: Console, *, advise: bool) -> Recipe:
    """Return the recipe of these choices; settings that are not chosen suit the number of pairs, and are printed."""
    chosen = {name: value for name, value in choices_for(pairs).items() if name not in choices}
    recipe = Recipe(**choices, **chosen)
    split_for_training(pairs, recipe)  # raises, if it has to, before a progress bar is shown
    if advise and (advice := advice_on(pairs)):
        console.print(f"note: {advice}", style="yellow")
    if chosen:
        listed = ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in chosen.items())
        console.print(f"chosen for {len(pairs):,} pairs: {listed}")
    return recipe


@contextmanager
def _asked_to_stop(console: Console) -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C ask for a stop after the update that is under way; the second one stops at once."""
    asked = False

    def ask(*_: object) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, before)
        console.print("stopping after this update, and saving; Ctrl-C again stops at once")

    try:
        before = signal.signal(signal.SIGINT, ask)
    except ValueError:  # not the main thread, which gets no signals
        yield lambda: False
        return
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _progress(console: Console, epochs: int) -> Iterator[Callable[[Progress], None]]:
    """Show the loss, tokens a second and the time that is left: as a bar, or as lines."""
    columns = (
        TextColumn("epoch {task.fields[epoch]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}, {task.fields[speed]:.0f} tokens/s"),
        TimeRemainingColumn(),
    )
    begin = said = time.monotonic()
    loss, first = 0.0, -1
    with Bar(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None, epoch=f"1/{epochs}", loss=0.0, speed=0.0)

        def watch(now: Progress) -> None:
            nonlocal loss, said, first
            loss = now.loss if not loss else 0.98 * loss + 0.02 * now.loss
            spent = time.monotonic() - begin
            done, total, speed = now.epoch * now.batches + now.done, epochs * now.batches, now.tokens / spent
            epoch = f"{now.epoch + 1}/{epochs}"
            bar.update(task, completed=done, total=total, epoch=epoch, loss=loss, speed=speed)
            first = done - 1 if first < 0 else first
            if not console.is_terminal and time.monotonic() - said >= _EVERY:
                said = time.monotonic()
                left = spent / (done - first) * (total - done) / 60
                console.print(
                    f"epoch {epoch}: update {done:,} of about {total:,}, loss {loss:.3f}, {speed:.0f} tokens/s, "
                    f"about {left:.0f} minutes left"
                )

        yield watch
