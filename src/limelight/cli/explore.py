"""``limelight explore``: a page in the browser, for a text and a model."""

from __future__ import annotations

import os
import sys
import webbrowser
from typing import TextIO

import click

from limelight.cli._shared import file_option, model_option, read_text, standard_input

_EXAMPLE = "The north wind and the sun argued about who was stronger, and a traveller came along in a warm coat."


@click.command("explore", short_help="Look at attention in a browser, at any length.")
@click.argument("text", required=False)
@file_option("Read the text from a file; - is standard input.")
@model_option("The folder of a model, or minilm; unless given, that of the translator.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on; a free one unless given.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--no-browser", is_flag=True, help="Print the address, and open nothing.")
def command(text: str | None, file: TextIO | None, model: str | None, port: int, host: str, no_browser: bool) -> None:
    """Look at what a model attends to in TEXT (- for standard input), in a browser, at any length. Ctrl-C ends it."""
    if text is not None and file is not None:
        raise click.UsageError("give a text, or a file with --file, not both")
    if text == "-":
        file = standard_input()
    text = read_text(file) if file is not None else text
    if text is not None and not text.strip():
        raise click.UsageError("the text is empty")
    try:
        _serve(text or _EXAMPLE, model, host, port, not no_browser)
    except KeyboardInterrupt:
        click.echo("", err=True)
        _leave()


def _leave() -> None:
    """End the process at once if a pass over a long text is under way, which cannot be interrupted."""
    from limelight.explorer.workers import wait_for_all

    if not wait_for_all(seconds=1.0):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # nothing is left to be saved


def _serve(text: str, model: str | None, host: str, port: int, browser: bool) -> None:
    from threading import Event

    from limelight.explorer.serving import Explorer, need_server
    from limelight.explorer.subject import Subject
    from limelight.lens.terminal import read_with_progress
    from limelight.translate import load, shipped

    need_server()
    subject = Subject.of(read_with_progress(model or shipped(), text))
    if model is None:
        subject.translator = load()
    with Explorer(subject, host=host, port=port) as explorer:
        click.echo(explorer.url)
        click.echo("Ctrl-C ends it.", err=True)
        if browser:
            webbrowser.open(explorer.url)
        Event().wait()
