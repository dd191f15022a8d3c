"""``limelight train``: a translator from pairs of sentences."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

import click

from limelight.cli._processes import how_it_was_started, processes
from limelight.cli._shared import F

_INTERRUPTED = 130  # exit code of a command that Ctrl-C ended
_CHOSEN = "chosen for the pairs"


def _setting(name: str, kind: click.ParamType[Any], default: str, help: str) -> Callable[[F], F]:
    """Return an option of the recipe; ``default`` is only shown, since the recipe has the defaults."""
    return click.option(name, type=kind, metavar="NUMBER", help=f"{help}  [default: {default}]")


@click.command("train", short_help="Train a translator on a file of pairs.")
@click.argument("pairs", type=click.Path(exists=True, dir_okay=False))
@click.option("--out", required=True, type=click.Path(file_okay=False), help="Where the model goes.")
@click.option(
    "--from",
    "start",
    type=click.Path(exists=True, file_okay=False),
    help="The folder of a model to begin with; decoder layers that it lacks are added.",
)
@click.option(
    "--distilled",
    type=click.Path(exists=True, dir_okay=False),
    help="Pairs to train on instead, of python -m limelight.translate.distillation; PAIRS say what is held out.",
)
@_setting("--epochs", click.IntRange(1), _CHOSEN, "How often all pairs are seen.")
@_setting("--vocabulary", click.IntRange(16), "5800", "How many pieces words are made of.")
@_setting("--width", click.IntRange(1), "256", "Width of the model.")
@_setting("--heads", click.IntRange(1), "8", "Heads of each attention.")
@_setting("--encoder-layers", click.IntRange(1), "4", "Layers that read the sentence.")
@_setting("--decoder-layers", click.IntRange(1), "2", "Layers that write its translation.")
@_setting("--hidden", click.IntRange(1), "768", "Width of the feed-forward layers.")
@_setting("--dropout", click.FloatRange(0, 1, max_open=True), "0.1", "Share of the activations that are dropped.")
@_setting("--label-smoothing", click.FloatRange(0, 1, max_open=True), "0.1", "Probability spread over all words.")
@_setting(
    "--merges-dropped",
    click.FloatRange(0, 1),
    "0.0",
    "Share of the merges that are left out, so that words come in many different pieces (BPE-dropout).",
)
@_setting(
    "--consistency",
    click.FloatRange(0),
    "0.0",
    "Weight of the divergence between two passes with different dropout (R-Drop); with 0 there is one pass.",
)
@_setting("--part", click.FloatRange(0, 1, min_open=True), "1.0", "Share of the pairs that an epoch has.")
@_setting("--tokens", click.IntRange(1), _CHOSEN, "Tokens of the translations in a batch.")
@click.option("--muon", is_flag=True, default=None, help="Orthogonal steps for matrices: fewer, slower updates.")
@_setting("--rate", click.FloatRange(0, min_open=True), "0.001", "The learning rate at its highest.")
@_setting("--warm-up", click.IntRange(0), _CHOSEN, "Updates until the learning rate is at its highest.")
@_setting("--falling", click.FloatRange(0, 1, min_open=True), "1.0", "Share of the training in which it falls.")
@_setting("--names", click.FloatRange(0, 1), "0.6", "Share of the pairs with a name that get another one.")
@_setting("--numbers", click.FloatRange(0, 1), "0.6", "Share of the pairs with a number that get another one.")
@_setting("--phrases", click.FloatRange(0, 1), "0.06", "Share of the pairs that get a date, time, price or name.")
@_setting("--quotes", click.FloatRange(0, 1), "0.02", "Share of the pairs that get quotation marks.")
@_setting("--joined", click.FloatRange(0, 1), "0.45", "Share of the pairs that are joined to long sentences.")
@_setting("--longest", click.IntRange(1), "65", "Words of a joined sentence, at most.")
@click.option("--bfloat16", is_flag=True, default=None, help="Twice as fast where the processor has bfloat16 products.")
@_setting(
    "--blend",
    click.FloatRange(0, 1, min_open=True),
    "1.0",
    "Share of the trained parameters in what is kept; the rest are those of --from.",
)
@_setting("--held-out", click.IntRange(1), _CHOSEN, "Sentences to test on, which training never sees.")
@_setting("--validated", click.IntRange(1), _CHOSEN, "Other sentences, for BLEU after every epoch.")
@_setting("--patience", click.IntRange(1), _CHOSEN, "Epochs without a better BLEU until it ends.")
@_setting("--seed", click.IntRange(0), "1", "Of everything that is drawn at random.")
@click.option(
    "--threads", type=click.IntRange(1), metavar="NUMBER", help="Threads.  [default: as many as there are cores]"
)
@click.option("--finish", is_flag=True, help="Train no further; leave the model of an interrupted training as it is.")
def command(
    pairs: str,
    out: str,
    start: str | None,
    distilled: str | None,
    threads: int | None,
    finish: bool,
    **choices: Any,
) -> None:
    """Train a translator on PAIRS: a line for each, a sentence, a tab and its translation.

    Ctrl-C stops and saves; the same command goes on. Sizes of batches, epochs, warm-up and what is held out are chosen
    from the number of pairs unless given.

    With torchrun several processes share every batch: torchrun --nproc-per-node 2 -m limelight train PAIRS --out FOLDER
    is faster than two threads.
    """
    from limelight.translate.terminal import train_with_progress

    recipe = {name: value for name, value in choices.items() if value is not None}
    given = {"out": out, "from": start, "distilled": distilled, "threads": threads, **recipe}
    again = [*how_it_was_started(), "train", pairs]
    for name, value in given.items():
        if value is not None:
            again += [f"--{name.replace('_', '-')}"] if value is True else [f"--{name.replace('_', '-')}", str(value)]
    with processes() as rank:
        completed = train_with_progress(
            pairs, out, recipe, threads, start, distilled, finish, command=shlex.join(again), quiet=rank > 0
        )
    if not completed:
        click.get_current_context().exit(_INTERRUPTED)
