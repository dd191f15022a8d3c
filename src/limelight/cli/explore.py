"""``limelight explore``: a page in the browser, for a text and a model."""

from __future__ import annotations

import webbrowser
from typing import TextIO, cast

import click


@click.command("explore")
@click.argument("text", required=False)
@click.option(
    "--file", type=click.File("r", encoding="utf-8-sig"), help="Read the text from a file; - is standard input."
)
@click.option(
    "--model",
    type=click.Path(exists=True, file_okay=False),
    help="The folder of a model; unless given, that of the translator.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="A free one unless given.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--no-browser", is_flag=True, help="Print the address, and open nothing.")
def command(text: str | None, file: TextIO | None, model: str | None, port: int, host: str, no_browser: bool) -> None:
    """Look at what a model attends to in TEXT (- for standard input), in a browser, at any length. Ctrl-C ends it."""
    if text is not None and file is not None:
        raise click.UsageError("give a text, or a file with --file, not both")
    if text == "-":
        file = cast(TextIO, click.open_file("-", encoding="utf-8-sig"))
    try:
        text = file.read() if file is not None else text
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{getattr(file, 'name', 'the input')} is no text in UTF-8: {error}") from None
    if text is not None and not text.strip():
        raise click.UsageError("the text is empty")
    try:
        _serve(text, model, host, port, not no_browser)
    except KeyboardInterrupt:
        click.echo("", err=True)
    except (ImportError, OSError, TypeError, ValueError) as error:
        raise click.ClickException(str(error)) from None


def _serve(text: str | None, model: str | None, host: str, port: int, browser: bool) -> None:
    from threading import Event

    from limelight.explorer.serving import Explorer, need_server
    from limelight.explorer.subject import Subject
    from limelight.lens.reading import read
    from limelight.translate import shipped
    from limelight.viz.tables import messages_console

    need_server()
    messages = messages_console()
    with messages.status("reading"):
        subject = Subject.of(read(model or shipped(), text or _EXAMPLE))
    with Explorer(subject, host=host, port=port) as explorer:
        messages.print(f"{subject.title} is open at")
        click.echo(explorer.url)
        messages.print("Ctrl-C ends it.")
        if browser:
            webbrowser.open(explorer.url)
        Event().wait()


_EXAMPLE = "The north wind and the sun argued about who was stronger, and a traveller came along in a warm coat."
