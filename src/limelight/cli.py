"""The command line: thin. Nothing here imports torch until a command runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import click

if TYPE_CHECKING:
    from torch import Tensor

    from limelight.masks import Mask


def _in_a_folder(_: click.Context, option: click.Parameter, file: str | None) -> str | None:
    """Before anything is computed for a file that cannot be written."""
    if file is not None and not Path(file).resolve().parent.is_dir():
        raise click.BadParameter(f"there is no folder {Path(file).parent}", param=option)
    return file


_html = click.option(
    *("--html",),
    type=click.Path(dir_okay=False, writable=True),
    callback=_in_a_folder,
    help="Write a page with every layer and head.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="limelight")
def main() -> None:
    """Attention that you can see through."""


@main.command()
@click.argument("file", type=click.File("r", encoding="utf-8"), required=False)
@click.option("--causal", is_flag=True, help="Nothing of the future: key ≤ query.")
@click.option("--window", type=int, metavar="N", help="Only keys within N positions.")
@click.option("--scale", type=float, help="1/√D unless given.")
@click.option("--softcap", type=float, metavar="C", help="C · tanh(score / C).")
@click.option("--temperature", type=float, default=1.0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the steps as JSON.")
def trace(
    file: TextIO | None,
    causal: bool,
    window: int | None,
    scale: float | None,
    softcap: float | None,
    temperature: float,
    as_json: bool,
) -> None:
    """Show every step of attention: scores, scaling, masking, weights, output.

    Without FILE it is the worked example "dog ate dinner". FILE (or - for standard input) is JSON with the
    matrices "q", "k" and "v", or with "x", "W_Q", "W_K" and "W_V", and "tokens" if you like: a list of names.
    """
    from rich.console import Console

    import limelight as ll
    from limelight.examples import TOKENS, worked_example
    from limelight.tables import trace_tables

    if file is None:
        (q, k, v), tokens = worked_example(), TOKENS
    else:
        (q, k, v), tokens = _matrices(file)
    try:
        masks: list[Mask] = [ll.Causal()] if causal else []
        masks += [] if window is None else [ll.Window(window)]
        mask = reduce(and_, masks) if masks else None
        steps = ll.trace(q, k, v, tokens=tokens, mask=mask, scale=scale, softcap=softcap, temperature=temperature)
    except (TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        click.echo(json.dumps(steps.as_dict(), ensure_ascii=False))
    else:
        Console(highlight=False).print(trace_tables(steps))


@main.command()
@click.argument("text", required=False)
@click.option(
    "--file", type=click.File("r", encoding="utf-8-sig"), help="Read the text from a file; - is standard input."
)
@click.option(
    "--model",
    type=click.Path(exists=True, file_okay=False),
    help="The folder of a model; unless given, that of the translator.",
)
@click.option("--layer", type=click.IntRange(0), help="Only this layer.")
@click.option("--head", type=click.IntRange(0), help="The head to draw; the most telling one unless given.")
@click.option("--top", type=click.IntRange(1), default=10, show_default=True, help="How many links to list.")
@click.option("--temperature", type=click.FloatRange(0, min_open=True), help="Sharpen (below 1) or flatten (above).")
@_html
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def look(
    text: str | None,
    file: TextIO | None,
    model: str | None,
    layer: int | None,
    head: int | None,
    top: int,
    temperature: float | None,
    html: str | None,
    as_json: bool,
) -> None:
    """See what a model attends to in TEXT (- for standard input): what its heads do, and their strongest links."""
    if (text is None) == (file is None):
        raise click.UsageError("give a text, or a file with --file")
    if text == "-":
        file = cast(TextIO, click.open_file("-", encoding="utf-8-sig"))
    text = _read(file) if file is not None else text
    if not (text or "").strip():
        raise click.UsageError("the text is empty")
    from limelight.lens import looking, reading
    from limelight.tables import messages_console
    from limelight.translate import shipped

    with _failing():
        with messages_console().status("reading"):
            seen = reading.read(model or shipped(), text or "")
        looking.look(seen, layer, head, top, temperature, html, as_json)


@main.command()
@click.argument("text", required=False)
@click.option(
    "--file", type=click.File("r", encoding="utf-8-sig"), help="Translate a file line by line; - is standard input."
)
@click.option(
    "--model", type=click.Path(exists=True, file_okay=False), help="The folder of a model that was trained here."
)
@click.option("--beams", type=click.IntRange(1), default=4, show_default=True, help="1 takes the likeliest token.")
@click.option("--top", type=click.IntRange(1), default=8, show_default=True, help="How many links to list.")
@_html
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def translate(
    text: str | None, file: TextIO | None, model: str | None, beams: int, top: int, html: str | None, as_json: bool
) -> None:
    """Translate TEXT (- for standard input) from English to French, and see which words each word is written from.

    Without TEXT, on a terminal, it translates what you type, line by line, until Ctrl-D. With --file, there is one line
    of translation for each line, and nothing else, on the standard output.
    """
    typed = text is None and file is None and sys.stdin.isatty()
    if (text is None) == (file is None) and not typed:
        raise click.UsageError("give a text, or a file with --file")
    if typed and html:
        raise click.UsageError("--html needs a text")
    if file is not None and (html or as_json):
        raise click.UsageError("--file prints translations only; --html and --json are for a text")
    if text == "-":
        text = _read(cast(TextIO, click.open_file("-", encoding="utf-8-sig"))).removesuffix("\n")
    if file is None and not typed and not (text or "").strip():
        raise click.UsageError("the text is empty")
    from limelight.lens import translating
    from limelight.translate import load

    with _failing():
        translator = load(model)
        if file is not None:
            translating.translate_lines(translator, _read(file), beams)
        elif typed:
            translating.translate_typed(translator, beams, top, as_json)
        else:
            translating.show(translator(text or "", beams=beams), top, html, as_json)


@main.command()
@click.argument("pairs", type=click.Path(exists=True, dir_okay=False))
@click.option("--out", required=True, type=click.Path(file_okay=False), help="Where the model goes.")
@click.option(
    *("--from", "start"),
    type=click.Path(exists=True, file_okay=False),
    help="The folder of a model to begin with; decoder layers that it lacks are added.",
)
@click.option("--epochs", type=click.IntRange(1), help="How often all pairs are seen.")
@click.option("--vocabulary", type=click.IntRange(16), help="How many pieces words are made of.")
@click.option("--width", type=click.IntRange(1), help="Of the model.")
@click.option("--heads", type=click.IntRange(1))
@click.option("--encoder-layers", type=click.IntRange(1))
@click.option("--decoder-layers", type=click.IntRange(1))
@click.option("--hidden", type=click.IntRange(1), help="Width of the feed-forward layers.")
@click.option("--dropout", type=click.FloatRange(0, 1, max_open=True))
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
    *("--blend",),
    type=click.FloatRange(0, 1, min_open=True),
    help="Share of the trained parameters in what is kept; the rest are those of --from.",
)
@click.option("--held-out", type=click.IntRange(1), help="Sentences to test on, which training never sees.")
@click.option("--validated", type=click.IntRange(1), help="Others, for BLEU after every epoch.")
@click.option("--patience", type=click.IntRange(1), help="Epochs without a better BLEU until it ends.")
@click.option("--seed", type=click.IntRange(0))
@click.option("--threads", type=click.IntRange(1), help="As many as there are cores unless given.")
@click.option("--finish", is_flag=True, help="Train no further; leave the model of an interrupted training as it is.")
def train(pairs: str, out: str, start: str | None, threads: int | None, finish: bool, **choices: Any) -> None:
    """Train a translator on PAIRS: a line for each, a sentence, a tab and its translation.

    It can be stopped at any moment: the same command goes on where it was.
    """
    from limelight.translate.terminal import train_with_progress

    given = {name: value for name, value in choices.items() if value is not None}
    with _failing():
        train_with_progress(pairs, out, given, threads, start, finish)


@main.command()
@click.argument("name", required=False)
@click.option("--out", type=click.Path(file_okay=False), help="A folder for figures (PNG, SVG) and data (CSV, JSON).")
@click.option("--quick", is_flag=True, help="Fewer seeds and shorter texts.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
def experiment(name: str | None, out: str | None, quick: bool, seed: int) -> None:
    """Check what texts say about attention: NAME is an experiment, or "all". Without a name they are listed."""
    from limelight.experiments import EXPERIMENTS, terminal

    if name is None:
        terminal.list_experiments()
        return
    if name not in EXPERIMENTS and name != "all":
        raise click.UsageError(f"there is no experiment {name!r}; there are {', '.join(EXPERIMENTS)} and all")
    with _failing():
        terminal.run_and_show(name, out, quick, seed)


def _read(file: TextIO) -> str:
    try:
        return file.read()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{getattr(file, 'name', 'the input')} is no text in UTF-8: {error}") from None


@contextmanager
def _failing() -> Iterator[None]:
    """What goes wrong with data and files, in a line."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (ImportError, OSError, TypeError, ValueError) as error:
        raise click.ClickException(str(error)) from None


def _matrices(file: TextIO) -> tuple[tuple[Tensor, Tensor, Tensor], Any]:
    import torch

    try:
        data = json.load(file)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{file.name} is not JSON: {error}") from None
    named = data if isinstance(data, dict) else {}
    direct, projected = ("q", "k", "v"), ("x", "W_Q", "W_K", "W_V")
    names = direct if all(n in named for n in direct) else projected
    missing = [n for n in names if n not in named]
    if missing:
        raise click.UsageError(
            f'{file.name} must hold "q", "k" and "v", or "x", "W_Q", "W_K" and "W_V"; it lacks {", ".join(missing)}'
        )
    matrices = {}
    for name in names:
        try:
            matrices[name] = torch.tensor(named[name], dtype=torch.float64)
        except (TypeError, ValueError) as error:
            raise click.UsageError(f'{file.name}: "{name}" is not a matrix of numbers: {error}') from None
        if matrices[name].ndim != 2:
            shape = tuple(matrices[name].shape)
            raise click.UsageError(f'{file.name}: "{name}" has shape {shape}; give a list of rows')
    if names == direct:
        return (matrices["q"], matrices["k"], matrices["v"]), _tokens(named)
    x = matrices["x"]
    for name in projected[1:]:
        if matrices[name].shape[0] != x.shape[1]:
            raise click.UsageError(
                f'{file.name}: "{name}" has {matrices[name].shape[0]} rows and "x" has {x.shape[1]} columns'
            )
    return (x @ matrices["W_Q"], x @ matrices["W_K"], x @ matrices["W_V"]), _tokens(named)


def _tokens(named: dict[str, Any]) -> Any:
    tokens = named.get("tokens")
    if isinstance(tokens, list) and len(tokens) == 2 and all(isinstance(t, list) for t in tokens):
        return tuple(tokens)
    return tokens
