"""``limelight trace``: every step of attention, on small matrices or in a layer of a model."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from limelight.cli._shared import model_option

if TYPE_CHECKING:
    from torch import Tensor

    from limelight.core.masks import Mask
    from limelight.lens.layer_trace import LayerTrace
    from limelight.matrix.steps import Trace

T = TypeVar("T")

_DIRECT, _PROJECTED = ("q", "k", "v"), ("x", "W_Q", "W_K", "W_V")
_OPTIONAL = ("W_O", "heads", "mask", "tokens")


@click.command("trace", short_help="Show every step of attention, number by number.")
@click.argument("file", type=click.File("r", encoding="utf-8"), required=False)
@click.option("--causal", is_flag=True, help="Nothing of the future: key ≤ query.")
@click.option("--window", type=int, metavar="N", help="Only keys within N positions.")
@click.option("--scale", type=float, help="1/√D unless given.")
@click.option("--softcap", type=float, metavar="C", help="C · tanh(score / C).")
@click.option("--temperature", type=float, default=1.0, show_default=True)
@click.option("--text", help="Trace a layer of a model on this text instead.")
@model_option("The folder of the model that reads the text, or minilm; unless given, that of the translator.")
@click.option("--layer", type=click.IntRange(0), default=0, show_default=True, help="With --text: the layer.")
@click.option("--head", type=click.IntRange(0), help="The head to print; with --text, 0 unless given.")
@click.option("--cross", is_flag=True, help="With --text: cross-attention of an encoder-decoder.")
@click.option("--json", "as_json", is_flag=True, help="Print all steps of all heads as JSON.")
def command(
    file: TextIO | None,
    causal: bool,
    window: int | None,
    scale: float | None,
    softcap: float | None,
    temperature: float,
    text: str | None,
    model: str | None,
    layer: int,
    head: int | None,
    cross: bool,
    as_json: bool,
) -> None:
    """Show every step of attention: scores, scaling, masking, weights, output.

    Without FILE it is the worked example "dog ate dinner". FILE (or - for standard input) is JSON with the
    matrices "q", "k" and "v", or with "x", "W_Q", "W_K" and "W_V" and perhaps "W_O" and "heads"; optionally with
    "tokens", a list of names, and "mask": "causal", or rows of true and false.

    With --text it is a layer of a model: embeddings, projections, heads, and what each head adds to the result.
    """
    from limelight.lens import strict_json
    from limelight.viz.tables import matrix_tables, wide_console

    if text is not None and file is not None:
        raise click.UsageError("give a file of matrices or --text, not both")
    if text is None and (model is not None or cross):
        raise click.UsageError("--model and --cross belong to --text")
    options = {"scale": scale, "softcap": softcap, "temperature": temperature}
    masks = _masks(causal, window)
    found: Trace | LayerTrace
    if text is not None:
        if masks or scale is not None or softcap is not None or temperature != 1.0:
            raise click.UsageError("--text shows what the model computes; its mask, scale and softcap are its own")
        found = _trace_text(model, text, layer, cross)
    else:
        found = _trace_matrices(file, masks, options)
    if as_json:
        click.echo(strict_json.dumps(found.as_dict()))
        return
    if text is not None or head is not None:
        found = _of_head(found, head or 0)
        if head is None:
            click.echo("of the heads, head 0; --head chooses another, --json has all\n", err=True)
    wide_console().print(matrix_tables(found.pictures()))


def _masks(causal: bool, window: int | None) -> list[Mask]:
    import limelight as ll

    try:
        return ([ll.Causal()] if causal else []) + ([] if window is None else [ll.Window(window)])
    except (TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from None


def _of_head(found: Trace | LayerTrace, head: int) -> LayerTrace:
    from limelight.lens.layer_trace import LayerTrace

    if not isinstance(found, LayerTrace):
        raise click.UsageError('--head belongs to --text, or to a file with "heads"')
    try:
        return found.head(head)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _trace_text(model: str | None, text: str, layer: int, cross: bool) -> LayerTrace:
    from limelight.lens.text_trace import trace_text
    from limelight.translate import shipped

    return trace_text(model or shipped(), text, layer, "cross" if cross else "self")


def _trace_matrices(file: TextIO | None, masks: list[Mask], options: dict[str, Any]) -> Trace | LayerTrace:
    import limelight as ll
    from limelight.core.examples import TOKENS, worked_example

    if file is None:
        q, k, v = worked_example()
        return _explained(lambda: ll.trace(q, k, v, tokens=TOKENS, mask=_all_of(masks), **options))
    given = _read(file)
    tokens = _tokens(given)
    mask = _all_of([*masks, *_given_mask(file, given)])
    if "x" not in given:
        q, k, v = (_matrix(file, name, given[name]) for name in _DIRECT)
        return _explained(lambda: ll.trace(q, k, v, tokens=tokens, mask=mask, **options))
    x, *projections = (_matrix(file, name, given[name]) for name in _PROJECTED)
    for name, W in zip(_PROJECTED[1:], projections, strict=True):
        if W.shape[0] != x.shape[1]:
            raise click.UsageError(f'{file.name}: "{name}" has {W.shape[0]} rows and "x" has {x.shape[1]} columns')
    if "heads" not in given and "W_O" not in given:
        q, k, v = (x @ W for W in projections)
        return _explained(lambda: ll.trace(q, k, v, tokens=tokens, mask=mask, **options))
    if options["softcap"] is not None or options["temperature"] != 1.0:
        raise click.UsageError('--softcap and --temperature do not go with "heads" and "W_O"')
    layer = _layer(file, x, projections, given, options["scale"])
    return _explained(lambda: ll.trace(layer, x[None], tokens=tokens, mask=mask))


def _explained(make: Callable[[], T]) -> T:
    """Call a function, and report its errors as errors of the arguments."""
    try:
        return make()
    except (TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from None


def _all_of(masks: list[Mask]) -> Mask | None:
    return reduce(and_, masks) if masks else None


def _layer(file: TextIO, x: Tensor, projections: list[Tensor], given: dict[str, Any], scale: float | None) -> Any:
    """Return a ``MultiHeadAttention`` with the matrices of the file."""
    import torch
    from torch import nn

    import limelight as ll

    W_Q, W_K, W_V = projections
    heads = given.get("heads", 1)
    if not isinstance(heads, int) or isinstance(heads, bool) or heads < 1:
        raise click.UsageError(f'{file.name}: "heads" is {heads!r}; give a whole number from 1 on')
    for name, W in zip(_PROJECTED[1:], projections, strict=True):
        if W.shape[1] % heads:
            raise click.UsageError(f'{file.name}: "{name}" has {W.shape[1]} columns, which {heads} heads cannot share')
    if W_Q.shape[1] != W_K.shape[1]:
        raise click.UsageError(f'{file.name}: "W_Q" has {W_Q.shape[1]} columns and "W_K" has {W_K.shape[1]}')
    W_O = _matrix(file, "W_O", given["W_O"]) if "W_O" in given else None
    if W_O is not None and W_O.shape[0] != W_V.shape[1]:
        raise click.UsageError(f'{file.name}: "W_O" has {W_O.shape[0]} rows and "W_V" has {W_V.shape[1]} columns')
    layer: Any = ll.nn.MultiHeadAttention(
        x.shape[1],
        heads,
        head_width=W_Q.shape[1] // heads,
        value_width=W_V.shape[1] // heads,
        bias=False,
        scale=scale,
    ).double()
    with torch.no_grad():
        for module, W in ((layer.query, W_Q), (layer.key, W_K), (layer.value, W_V)):
            module.weight.copy_(W.T)
    layer.out = nn.Identity()
    if W_O is not None:
        layer.out = nn.Linear(W_O.shape[0], W_O.shape[1], bias=False)
        layer.out.weight = nn.Parameter(W_O.T.contiguous())
    return layer.eval()


def _read(file: TextIO) -> dict[str, Any]:
    """Return the matrices and options of a JSON file, all of whose names are known."""
    try:
        data = json.load(file)
    except RecursionError:
        raise click.UsageError(f"{file.name} is nested too deeply") from None
    except ValueError as error:  # not JSON, not UTF-8, or a number of thousands of digits
        raise click.UsageError(f"{file.name} is not JSON: {error}") from None
    named = data if isinstance(data, dict) else {}
    direct = [n in named for n in _DIRECT]
    names = _DIRECT if all(direct) or (any(direct) and "x" not in named) else _PROJECTED
    missing = [n for n in names if n not in named]
    if missing and not set(named) - {*_DIRECT, *_PROJECTED, *_OPTIONAL}:
        raise click.UsageError(
            f'{file.name} must hold "q", "k" and "v", or "x", "W_Q", "W_K" and "W_V"; it lacks {", ".join(missing)}'
        )
    known = (*names, *(_OPTIONAL if names == _PROJECTED else ("mask", "tokens")))
    for name in named:
        if name not in known:
            plain = {n.replace("_", "").lower(): n for n in known}
            near = plain[difflib.get_close_matches(name.replace("_", "").lower(), plain, 1, 0.0)[0]]
            raise click.UsageError(
                f'{file.name}: "{name}" is unknown; the nearest is "{near}", and there are {", ".join(known)}'
            )
    return named


def _given_mask(file: TextIO, given: dict[str, Any]) -> list[Mask]:
    import torch

    import limelight as ll

    mask = given.get("mask")
    if mask is None or mask == "none":
        return []
    if mask == "causal":
        return [ll.Causal()]
    rows = isinstance(mask, list) and all(isinstance(row, list) for row in mask)
    if not rows or not all(isinstance(x, bool) for row in mask for x in row) or len({len(row) for row in mask}) != 1:
        raise click.UsageError(f'{file.name}: "mask" must be "causal", "none", or rows of true and false of one length')
    return [ll.Dense(torch.tensor(mask))]


def _matrix(file: TextIO, name: str, rows: Any) -> Tensor:
    import torch

    try:
        matrix = torch.tensor(rows, dtype=torch.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError, RecursionError) as error:
        raise click.UsageError(f'{file.name}: "{name}" is not a matrix of numbers: {error}') from None
    if matrix.ndim != 2:
        raise click.UsageError(f'{file.name}: "{name}" has shape {tuple(matrix.shape)}; give a list of rows')
    return matrix


def _tokens(named: dict[str, Any]) -> Any:
    """Return the names of the tokens; two lists are those of queries and keys."""
    tokens = named.get("tokens")
    if isinstance(tokens, list) and len(tokens) == 2 and all(isinstance(t, list) for t in tokens):
        return tuple(tokens)
    return tokens
