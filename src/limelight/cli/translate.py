"""``limelight translate``: English to French, with the words that each word is written from."""

from __future__ import annotations

import sys
from typing import TextIO

import click

from limelight.cli._shared import file_option, html_option, json_option, model_option, read_text, standard_input


@click.command("translate", short_help="Translate English to French, and see the attention.")
@click.argument("text", required=False)
@file_option("Translate a file line by line; - is standard input.")
@model_option("The folder of a model that was trained here.")
@click.option("--beams", type=click.IntRange(1), default=4, show_default=True, help="1 takes the likeliest token.")
@click.option("--top", type=click.IntRange(1), default=8, show_default=True, help="How many links to list.")
@click.option("--as", "given", metavar="FRENCH", help="Score and align this translation of TEXT.")
@html_option
@json_option
def command(
    text: str | None,
    file: TextIO | None,
    model: str | None,
    beams: int,
    top: int,
    given: str | None,
    html: str | None,
    as_json: bool,
) -> None:
    """Translate TEXT (- for standard input) from English to French, and see which words each word is written from.

    Without TEXT, on a terminal, it translates what you type, line by line, until Ctrl-D. With --file, there is one line
    of translation for each line, and nothing else, on the standard output. With --as, it writes nothing itself: it says
    how likely the model finds each word of a translation that you give, and which words it would be written from.
    """
    if given is not None and text is None:
        raise click.UsageError("--as needs a text, of which it is the translation")
    typed = text is None and file is None and sys.stdin.isatty()
    if (text is None) == (file is None) and not typed:
        raise click.UsageError("give a text, or a file with --file")
    if typed and html:
        raise click.UsageError("--html needs a text")
    if file is not None and (html or as_json):
        raise click.UsageError("--file prints translations only; --html and --json are for a text")
    if text == "-":
        text = read_text(standard_input()).removesuffix("\n")
    if file is None and not typed and not (text or "").strip():
        raise click.UsageError("the text is empty")
    from limelight.explorer.page import save_page
    from limelight.translate import display, load

    translator = load(model)
    if file is not None:
        display.translate_lines(translator, read_text(file), beams)
    elif typed:
        display.translate_typed(translator, beams, top, as_json, save_page)
    elif given is not None:
        scored, own = translator.score(text or "", given), translator(text or "", beams=beams)
        display.show(scored, top, html, as_json, save_page, own)
    else:
        display.show(translator(text or "", beams=beams), top, html, as_json, save_page)
