"""``limelight train``: a translator from pairs of sentences."""

from __future__ import annotations

import shlex
from typing import Any

import click

_INTERRUPTED = 130  # what a shell reports for a command that Ctrl-C ended


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
@click.option("--epochs", type=click.IntRange(1), help="How often all pairs are seen.")
@click.option("--vocabulary", type=click.IntRange(16), help="How many pieces words are made of.")
@click.option("--width", type=click.IntRange(1), help="Of the model.")
@click.option("--heads", type=click.IntRange(1))
@click.option("--encoder-layers", type=click.IntRange(1))
@click.option("--decoder-layers", type=click.IntRange(1))
@click.option("--hidden", type=click.IntRange(1), help="Width of the feed-forward layers.")
@click.option("--dropout", type=click.FloatRange(0, 1, max_open=True))
@click.option("--label-smoothing", type=click.FloatRange(0, 1, max_open=True))
@click.option(
    "--consistency",
    type=click.FloatRange(0),
    help="Weight of the divergence between two passes with different dropout (R-Drop); 0, one pass, unless given.",
)
@click.option("--part", type=click.FloatRange(0, 1, min_open=True), help="Share of the pairs that an epoch has.")
@click.option("--tokens", type=click.IntRange(1), help="Of the targets of a batch.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="The learning rate at its highest.")
@click.option("--warm-up", type=click.IntRange(0), help="Updates until then.")
@click.option("--falling", type=click.FloatRange(0, 1, min_open=True), help="Share of the training in which it falls.")
@click.option("--names", type=click.FloatRange(0, 1), help="Share of the pairs with a name that get another one.")
@click.option("--numbers", type=click.FloatRange(0, 1), help="The same of numbers.")
@click.option("--phrases", type=click.FloatRange(0, 1), help="Share of the pairs that get a date, time, price or name.")
@click.option("--quotes", type=click.FloatRange(0, 1), help="Share of the pairs that get quotation marks.")
@click.option("--joined", type=click.FloatRange(0, 1), help="Share of the pairs that are joined to long sentences.")
@click.option("--longest", type=click.IntRange(1), help="Words of a joined sentence.")
@click.option("--bfloat16", is_flag=True, default=None, help="Twice as fast where the processor has bfloat16 products.")
@click.option(
    "--blend",
    type=click.FloatRange(0, 1, min_open=True),
    help="Share of the trained parameters in what is kept; the rest are those of --from.",
)
@click.option("--held-out", type=click.IntRange(1), help="Sentences to test on, which training never sees.")
@click.option("--validated", type=click.IntRange(1), help="Others, for BLEU after every epoch.")
@click.option("--patience", type=click.IntRange(1), help="Epochs without a better BLEU until it ends.")
@click.option("--seed", type=click.IntRange(0))
@click.option("--threads", type=click.IntRange(1), help="As many as there are cores unless given.")
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
    """
    from limelight.translate.terminal import train_with_progress

    recipe = {name: value for name, value in choices.items() if value is not None}
    given = {"out": out, "from": start, "distilled": distilled, "threads": threads, **recipe}
    again = ["limelight", "train", pairs]
    for name, value in given.items():
        if value is not None:
            again += [f"--{name.replace('_', '-')}"] if value is True else [f"--{name.replace('_', '-')}", str(value)]
    if not train_with_progress(pairs, out, recipe, threads, start, distilled, finish, command=shlex.join(again)):
        click.get_current_context().exit(_INTERRUPTED)
