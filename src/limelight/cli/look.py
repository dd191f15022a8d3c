"""``limelight look``: what a model attends to in a text."""

from __future__ import annotations

from typing import TextIO

import click

from limelight.cli._shared import file_option, html_option, json_option, model_option, read_text, standard_input


@click.command("look")
@click.argument("text", required=False)
@file_option("Read the text from a file; - is standard input.")
@model_option("The folder of a model, or minilm; unless given, that of the translator.")
@click.option("--layer", type=click.IntRange(0), help="Only this layer.")
@click.option("--head", type=click.IntRange(0), help="The head to draw; the most telling one unless given.")
@click.option("--word", help="Show only this word: what it attends to and what attends to it.")
@click.option("--top", type=click.IntRange(1), default=10, show_default=True, help="How many links to list.")
@click.option("--temperature", type=click.FloatRange(0, min_open=True), help="Sharpen (below 1) or flatten (above).")
@html_option
@json_option
def command(
    text: str | None,
    file: TextIO | None,
    model: str | None,
    layer: int | None,
    head: int | None,
    word: str | None,
    top: int,
    temperature: float | None,
    html: str | None,
    as_json: bool,
) -> None:
    """See what a model attends to in TEXT (- for standard input): what its heads do, and their strongest links."""
    if (text is None) == (file is None):
        raise click.UsageError("give a text, or a file with --file")
    if text == "-":
        file = standard_input()
    text = read_text(file) if file is not None else text
    if not (text or "").strip():
        raise click.UsageError("the text is empty")
    from limelight.explorer.page import save_page
    from limelight.lens import terminal
    from limelight.translate import shipped

    reading = terminal.read_with_progress(model or shipped(), text or "")
    terminal.look(reading, layer, head, word, top, temperature, html, as_json, save_page)
