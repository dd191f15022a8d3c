"""``limelight matter``: which heads of a model matter for a text."""

from __future__ import annotations

from typing import TextIO

import click

from limelight.cli._shared import file_option, json_option, model_option, read_text, standard_input


@click.command("matter", short_help="See which heads matter for a text.")
@click.argument("text", required=False)
@file_option("Read the text from a file; - is standard input.")
@model_option("The folder of a model; unless given, that of the translator.")
@click.option(
    "--by", type=click.Choice(["head", "layer"]), default="head", show_default=True, help="What to switch off."
)
@click.option(
    "--metric",
    type=click.Choice(["loss", "kl", "cosine", "logprob"]),
    help="What to measure; unless given, the loss for decoders, the cosine of the embedding for encoders and the "
    "log-probability of the translation for encoder-decoders.",
)
@click.option(
    "--method",
    type=click.Choice(["exact", "gradient", "both"]),
    default="exact",
    show_default=True,
    help="One run for each head, an estimate from one backward pass, or both with their rank correlation.",
)
@click.option("--figure", type=click.Path(dir_okay=False, writable=True), help="Write a figure, such as matter.png.")
@json_option
def command(
    text: str | None,
    file: TextIO | None,
    model: str | None,
    by: str,
    metric: str | None,
    method: str,
    figure: str | None,
    as_json: bool,
) -> None:
    """See which heads matter for TEXT (- for standard input): switch each off and measure what changes."""
    if (text is None) == (file is None):
        raise click.UsageError("give a text, or a file with --file")
    if text == "-":
        file = standard_input()
    text = read_text(file) if file is not None else text
    if not (text or "").strip():
        raise click.UsageError("the text is empty")
    from limelight.lens import matter
    from limelight.translate import shipped

    found = matter.measure(model or shipped(), text or "", by=by, metric=metric, method=method)
    matter.show(found, figure, as_json)
