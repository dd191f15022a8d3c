"""``limelight translate``: English to French, with the words that each word is written from."""

from __future__ import annotations

from typing import TextIO

import click

from limelight.cli._shared import file_option, html_option, json_option, model_option, read_text, standard_input


@click.command("translate")
@click.argument("text", required=False)
@file_option("Translate a file line by line; - is standard input.")
@model_option("The folder of a model that was trained here.")
@click.option("--beams", type=click.IntRange(1), default=4, show_default=True, help="1 takes the likeliest token.")
@click.option("--top", type=click.IntRange(1), default=8, show_default=True, help="How many links to list.")
@html_option
@json_option
def command(
    text: str | None, file: TextIO | None, model: str | None, beams: int, top: int, html: str | None, as_json: bool
) -> None:
    """Translate TEXT (- for standard input) from English to French, and see which words each word is written from.

    With --file, there is one line of translation for each line, and nothing else, on the standard output.
    """
    if (text is None) == (file is None):
        raise click.UsageError("give a text, or a file with --file")
    if file is not None and (html or as_json):
        raise click.UsageError("--file prints translations only; --html and --json are for a text")
    if text == "-":
        text = read_text(standard_input()).removesuffix("\n")
    if file is None and not (text or "").strip():
        raise click.UsageError("the text is empty")
    from limelight.explorer.page import save_page
    from limelight.translate import display, load

    translator = load(model)
    if file is not None:
        display.translate_lines(translator, read_text(file), beams)
    else:
        display.show(translator(text or "", beams=beams), top, html, as_json, save_page)
