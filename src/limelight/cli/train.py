"""``limelight train``: a translator from pairs of sentences."""

from __future__ import annotations

from typing import Any

import click


@click.command("train")
@click.argument("pairs", type=click.Path(exists=True, dir_okay=False))
@click.option("--out", required=True, type=click.Path(file_okay=False), help="Where the model goes.")
@click.option("--epochs", type=click.IntRange(1), help="How often all pairs are seen.")
@click.option("--vocabulary", type=click.IntRange(16), help="How many pieces words are made of.")
@click.option("--width", type=click.IntRange(1), help="Of the model.")
@click.option("--heads", type=click.IntRange(1))
@click.option("--encoder-layers", type=click.IntRange(1))
@click.option("--decoder-layers", type=click.IntRange(1))
@click.option("--hidden", type=click.IntRange(1), help="Width of the feed-forward layers.")
@click.option("--dropout", type=click.FloatRange(0, 1, max_open=True))
@click.option("--tokens", type=click.IntRange(1), help="Of the targets of a batch.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="The learning rate at its highest.")
@click.option("--warm-up", type=click.IntRange(0), help="Updates until then.")
@click.option("--held-out", type=click.IntRange(1), help="Sentences to validate on.")
@click.option("--patience", type=click.IntRange(1), help="Epochs without a better BLEU until it ends.")
@click.option("--seed", type=click.IntRange(0))
@click.option("--threads", type=click.IntRange(1), help="As many as there are cores unless given.")
def command(pairs: str, out: str, threads: int | None, **choices: Any) -> None:
    """Train a translator on PAIRS: a line for each, a sentence, a tab and its translation.

    It can be stopped at any moment: the same command goes on where it was.
    """
    from limelight.translate.terminal import train_with_progress

    recipe = {name: value for name, value in choices.items() if value is not None}
    train_with_progress(pairs, out, recipe, threads)
