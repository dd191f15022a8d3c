"""``limelight trace``: every step of attention on small matrices."""

from __future__ import annotations

import json
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from torch import Tensor

    from limelight.core.masks import Mask

_DIRECT, _PROJECTED = ("q", "k", "v"), ("x", "W_Q", "W_K", "W_V")


@click.command("trace")
@click.argument("file", type=click.File("r", encoding="utf-8"), required=False)
@click.option("--causal", is_flag=True, help="Nothing of the future: key ≤ query.")
@click.option("--window", type=int, metavar="N", help="Only keys within N positions.")
@click.option("--scale", type=float, help="1/√D unless given.")
@click.option("--softcap", type=float, metavar="C", help="C · tanh(score / C).")
@click.option("--temperature", type=float, default=1.0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the steps as JSON.")
def command(
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
    matrices "q", "k" and "v", or with "x", "W_Q", "W_K" and "W_V", and optionally "tokens": a list of names.
    """
    from rich.console import Console

    import limelight as ll
    from limelight.core.examples import TOKENS, worked_example
    from limelight.lens import strict_json
    from limelight.viz.tables import matrix_tables

    if file is None:
        (q, k, v), tokens = worked_example(), TOKENS
    else:
        (q, k, v), tokens = _read_matrices(file)
    try:
        masks: list[Mask] = [ll.Causal()] if causal else []
        masks += [] if window is None else [ll.Window(window)]
        mask = reduce(and_, masks) if masks else None
        steps = ll.trace(q, k, v, tokens=tokens, mask=mask, scale=scale, softcap=softcap, temperature=temperature)
    except (TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        click.echo(strict_json.dumps(steps.as_dict()))
    else:
        Console(highlight=False, markup=False, emoji=False).print(matrix_tables(steps.pictures()))


def _read_matrices(file: TextIO) -> tuple[tuple[Tensor, Tensor, Tensor], Any]:
    """Return q, k, v and the tokens from a JSON file."""
    try:
        data = json.load(file)
    except RecursionError:
        raise click.UsageError(f"{file.name} is nested too deeply") from None
    except ValueError as error:  # not JSON, not UTF-8, or a number of thousands of digits
        raise click.UsageError(f"{file.name} is not JSON: {error}") from None
    named = data if isinstance(data, dict) else {}
    names = _DIRECT if all(n in named for n in _DIRECT) else _PROJECTED
    missing = [n for n in names if n not in named]
    if missing:
        raise click.UsageError(
            f'{file.name} must hold "q", "k" and "v", or "x", "W_Q", "W_K" and "W_V"; it lacks {", ".join(missing)}'
        )
    matrices = {name: _matrix(file, name, named[name]) for name in names}
    if names == _DIRECT:
        return (matrices["q"], matrices["k"], matrices["v"]), _tokens(named)
    x = matrices["x"]
    for name in _PROJECTED[1:]:
        if matrices[name].shape[0] != x.shape[1]:
            raise click.UsageError(
                f'{file.name}: "{name}" has {matrices[name].shape[0]} rows and "x" has {x.shape[1]} columns'
            )
    return (x @ matrices["W_Q"], x @ matrices["W_K"], x @ matrices["W_V"]), _tokens(named)


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
