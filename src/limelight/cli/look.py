"""``limelight look``: what a model attends to in a text or a picture."""

from __future__ import annotations

from typing import TextIO

import click

from limelight.cli._shared import file_option, html_option, json_option, model_option, read_text, standard_input


def _read_patch(_: click.Context, option: click.Parameter, given: str | None) -> tuple[int, int] | None:
    """Return the row and the column that ``ROW,COLUMN`` names."""
    if given is None:
        return None
    row, comma, column = given.partition(",")
    if not comma or not row.strip().isdecimal() or not column.strip().isdecimal():
        raise click.BadParameter(f"{given!r} is not ROW,COLUMN, such as 3,5", param=option)
    return int(row), int(column)


@click.command("look", short_help="See what every head of a model looks at.")
@click.argument("text", required=False)
@file_option("Read the text from a file; - is standard input.")
@model_option("The folder of a model, or minilm; unless given, that of the translator.")
@click.option("--image", type=click.Path(), help="A picture instead of a text; needs --model.")
@click.option("--patch", metavar="ROW,COLUMN", callback=_read_patch, help="The patch of the picture to look from.")
@click.option("--layer", type=click.IntRange(0), help="Only this layer.")
@click.option("--head", type=click.IntRange(0), help="The head to draw; the most telling one unless given.")
@click.option("--word", help="Show only this word: what it attends to and what attends to it.")
@click.option("--all", "every_head", is_flag=True, help="Show every head in the table, not only the most telling.")
@click.option("--top", type=click.IntRange(1), default=10, show_default=True, help="How many links to list.")
@click.option("--temperature", type=click.FloatRange(0, min_open=True), help="Sharpen (below 1) or flatten (above).")
@html_option
@json_option
def command(
    text: str | None,
    file: TextIO | None,
    model: str | None,
    image: str | None,
    patch: tuple[int, int] | None,
    layer: int | None,
    head: int | None,
    word: str | None,
    every_head: bool,
    top: int,
    temperature: float | None,
    html: str | None,
    as_json: bool,
) -> None:
    """See what a model attends to in TEXT (- for standard input): what its heads do, and their strongest links."""
    if image is not None:
        if text is not None or file is not None:
            raise click.UsageError("give a text or --image, not both")
        if model is None:
            raise click.UsageError("--image needs the folder of a model that takes pictures, with --model")
    elif patch is not None:
        raise click.UsageError("--patch is a patch of a picture, and there is no --image")
    elif (text is None) == (file is None):
        raise click.UsageError("give a text, or a file with --file, or a picture with --image")
    if text == "-":
        file = standard_input()
    text = read_text(file) if file is not None else text
    if image is None and not (text or "").strip():
        raise click.UsageError("the text is empty")
    from limelight.explorer.page import save_page
    from limelight.lens import terminal
    from limelight.translate import shipped

    if image is not None:
        from limelight.lens.picture_reading import PictureReader

        reading = PictureReader.load(model or "").read(image)
    else:
        reading = terminal.read_with_progress(model or shipped(), text or "")
    terminal.look(reading, layer, head, word, top, temperature, html, as_json, save_page, patch, every_head)
