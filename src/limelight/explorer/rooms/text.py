"""Text: the tokens themselves, tinted by how much a chosen one attends to them, or they to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from limelight.explorer.questions import QUICK, SLOW, Answer, Arguments, RefusedError, question
from limelight.explorer.subject import Matrix, Subject
from limelight.explorer.tiles import Floats
from limelight.lens.next_tokens import NextTokens
from limelight.matrix.base import Weights
from limelight.matrix.flow import rollout

_TOGETHER = 8  # sources that are overlaid, at most
_SMALL = 256  # a matrix of up to so many tokens on a side is sent whole
_RESIDUAL = 0.5  # share of the residual connection in the rollout


def _layers(subject: Subject, matrix: Matrix) -> list[Matrix]:
    """Return the self-attention of every layer of the same stack and pass."""
    if matrix.call.kind != "self" or matrix.N != matrix.M:
        raise RefusedError("rollout follows self-attention over all tokens; this is not one")
    same = [
        m
        for m in subject.matrices
        if m.call.kind == "self" and m.call.stack == matrix.call.stack and _shape(matrix) == (m.B, m.N, m.M)
    ]
    latest: dict[str, Matrix] = {m.call.name: m for m in same}
    return list(latest.values())


def _shape(matrix: Matrix) -> tuple[int, int, int]:
    return matrix.B, matrix.N, matrix.M


def _line(A: Weights, batch: int, place: int, side: str) -> Tensor:
    """Return the row of a query, or the column of a key, of every head."""
    return A[batch, :, place] if side == "query" else A[batch, :, :, place]


def _rollout_line(layers: list[Matrix], batch: int, place: int, side: str) -> Tensor:
    """Return what reaches a token from each position, or what a position sends to each token, through all layers."""
    weights = [m.call.weights for m in layers]
    if side == "query":
        return rollout(weights, [place], residual=_RESIDUAL)[batch, 0]
    B, _, N, _ = weights[0].shape
    u = torch.zeros(B, N, 1, dtype=weights[0].dtype)
    u[:, place] = 1.0
    for A in weights:
        sent = (A @ u[:, None].expand(B, A.shape[1], N, 1).contiguous()).mean(1)
        u = _RESIDUAL * u + (1 - _RESIDUAL) * sent
    return u[batch, :, 0]


def _source(subject: Subject, given: Any) -> tuple[Matrix, str, int]:
    """Return the matrix, the kind (head, layer, stack or rollout) and the head of a source."""
    source = Arguments(given)
    matrix = source.matrix(subject)
    kind = source.choice("of", ("head", "layer", "stack", "rollout"), "head")
    return matrix, kind, source.whole("head", 0, matrix.H - 1, 0)


def _lane(subject: Subject, arguments: Arguments) -> str:
    kinds = {_source(subject, x)[1] for x in arguments.items("sources", _TOGETHER)}
    return SLOW if kinds & {"stack", "rollout"} else QUICK


@question("attention", _lane)
def attention(subject: Subject, arguments: Arguments) -> Answer:
    """Return, for each source, the weights of a query on all keys or those of all queries on a key.

    A source is a head, the mean over the heads of its layer or of its stack, or the rollout over the stack's layers.
    """
    side = arguments.choice("side", ("query", "key"), "query")
    found: dict[str, Floats] = {}
    for n, given in enumerate(arguments.items("sources", _TOGETHER)):
        matrix, kind, head = _source(subject, given)
        batch = arguments.batch(matrix)
        place = arguments.whole("token", 0, (matrix.N if side == "query" else matrix.M) - 1)
        if kind == "head":
            one = subject.head(matrix.number, batch, head)
            found[str(n)] = one.row(place) if side == "query" else one.column(place)
            continue
        with torch.no_grad():
            if kind == "layer":
                line = _line(matrix.call.weights, batch, place, side).float().mean(0)
            elif kind == "stack":
                lines = [
                    _line(m.call.weights, batch, place, side).float().mean(0) for m in _calls_of_stack(subject, matrix)
                ]
                line = torch.stack(lines).mean(0)
            else:
                line = _rollout_line(_layers(subject, matrix), batch, place, side)
        found[str(n)] = line.float().cpu().numpy()
    return Answer({}, found)


def _calls_of_stack(subject: Subject, matrix: Matrix) -> list[Matrix]:
    """Return the calls of the same stack and kind with the same queries and keys."""
    call = matrix.call
    same = [m for m in subject.matrices if (m.call.stack, m.call.kind) == (call.stack, call.kind)]
    return [m for m in same if _shape(m) == _shape(matrix)]


@question("matrix")
def matrix(subject: Subject, arguments: Arguments) -> Answer:
    """Return all weights of a head, or the mean over the heads of its layer, of a short text."""
    found, kind, head = _source(subject, arguments._given)
    if max(found.N, found.M) > _SMALL:
        raise RefusedError(f"{found.N} × {found.M} weights are too many; at most {_SMALL} on a side are sent at once")
    batch = arguments.batch(found)
    with torch.no_grad():
        A = found.call.weights
        if kind == "head":
            whole = A[batch, head]
        elif kind == "layer":
            whole = A[batch].mean(0)
        elif kind == "stack":
            whole = torch.stack([m.call.weights[batch].mean(0) for m in _calls_of_stack(subject, found)]).mean(0)
        else:
            whole = rollout([m.call.weights for m in _layers(subject, found)], residual=_RESIDUAL)[batch]
    return Answer({}, {"weights": whole.float().cpu().numpy().astype(np.float32)})


@question("next")
def next_tokens(subject: Subject, arguments: Arguments) -> Answer:
    """Return the likeliest tokens after a token of a decoder's text, and the actual next token with its rank."""
    found = arguments.matrix(subject).next_tokens
    if found is None:
        raise RefusedError("this attention is not that of a decoder that predicts tokens")
    return Answer(expected(found, arguments.whole("token", found.first, found.end - 1)))


def expected(found: NextTokens, place: int) -> dict[str, Any]:
    """Return the predictions after a token, as the page shows them."""
    return {"likeliest": found.likeliest(place), "came": found.actual(place)}


QUESTIONS = (attention, matrix, next_tokens)
