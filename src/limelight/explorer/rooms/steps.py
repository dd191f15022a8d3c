"""Steps: attention number by number, in the worked example and in a real head for any text."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limelight.core.examples import EMBEDDINGS, TOKENS, W_K, W_Q, W_V
from limelight.core.masks import Causal, Mask, Window
from limelight.explorer.head import strongest
from limelight.explorer.questions import SLOW, Answer, Arguments, RefusedError, question
from limelight.explorer.subject import Subject
from limelight.lens.text_trace import trace_call
from limelight.matrix.lazy import LazyWeights
from limelight.matrix.steps import trace

_LARGEST = 8  # rows and columns of a matrix that can be edited
_VALUE = 1e3  # largest number that can be entered
_SHOWN = 12  # keys of a query of a real head
_LONGEST, _TOKENS = 400, 48  # characters and tokens of a text whose steps are shown, at most
_MASKS: dict[str, Mask | None] = {"none": None, "causal": Causal(), "window": Window(1)}
_MATRICES = ("x", "W_Q", "W_K", "W_V")


@question("example")
def example(subject: Subject, arguments: Arguments) -> Answer:
    """Return the numbers that the worked example begins with."""
    return Answer({"tokens": TOKENS, "x": EMBEDDINGS, "W_Q": W_Q, "W_K": W_K, "W_V": W_V, "masks": list(_MASKS)})


def _matrix(arguments: Arguments, name: str) -> Tensor:
    rows = arguments.items(name, _LARGEST)
    wide = len(rows[0]) if isinstance(rows[0], list) else 0
    if not 1 <= wide <= _LARGEST or not all(isinstance(row, list) and len(row) == wide for row in rows):
        raise RefusedError(f"{name} must be rows of 1 to {_LARGEST} numbers, all of one length")
    numbers = [Arguments({name: cell}).number(name, -_VALUE, _VALUE) for row in rows for cell in row]
    return torch.tensor(numbers, dtype=torch.float64).reshape(len(rows), wide)


@question("trace")
def steps(subject: Subject, arguments: Arguments) -> Answer:
    """Return every step of attention for matrices that the page sends, as ``trace`` computes them."""
    x, *projections = (_matrix(arguments, name) for name in _MATRICES)
    for name, W in zip(_MATRICES[1:], projections, strict=True):
        if len(W) != x.shape[1]:
            raise RefusedError(f"{name} has {len(W)} rows and x has {x.shape[1]} columns")
    if projections[0].shape[1] != projections[1].shape[1]:
        raise RefusedError(f"W_Q has {projections[0].shape[1]} columns and W_K has {projections[1].shape[1]}")
    heads = arguments.whole("heads", 1, 2, 1)
    if any(W.shape[1] % heads for W in projections):
        raise RefusedError(f"{heads} heads share the columns of W_Q, W_K and W_V, whose number must be a multiple")
    q, k, v = ((x @ W).unflatten(1, (heads, -1)).transpose(0, 1) for W in projections)  # (heads, tokens, width)
    found = trace(
        q,
        k,
        v,
        mask=_MASKS[arguments.choice("mask", list(_MASKS), "none")],
        scale=arguments.number("scale", -100, 100) if arguments.has("scale") else None,
        temperature=arguments.number("temperature", 0.01, 100, 1.0),
    )
    names = ("q", "k", "v", "scores", "scaled", "masked", "weights", "output")
    scale = arguments.number("scale", -100, 100) if arguments.has("scale") else q.shape[-1] ** -0.5
    return Answer({**{name: _listed(getattr(found, name)) for name in names}, "scale": scale})


def _listed(x: Tensor) -> Any:
    """Return plain lists; None for −∞, which JSON cannot write."""
    if x.ndim:
        return [_listed(part) for part in x]
    number = float(x)
    return number if math.isfinite(number) else None


@question("query")
def query(subject: Subject, arguments: Arguments) -> Answer:
    """Return every step of one query of a real head, for its strongest keys and for chosen ones."""
    head = arguments.head(subject)
    if not isinstance(head.A, LazyWeights):
        raise RefusedError("of this head only the weights are known, not the queries and keys that they come from")
    N, M = head.size
    i = arguments.whole("query", 0, N - 1)
    weights = head.row(i)
    listed = [n for n, _ in strongest(weights, _SHOWN)]
    if arguments.has("key"):
        listed = [*dict.fromkeys([*listed, arguments.whole("key", 0, M - 1)])]
    p = head.A._problem
    row, keys = torch.tensor([[i]]), torch.tensor([listed])
    with torch.no_grad():
        q, k = p.q[0, 0, i].double(), p.k[0, 0, listed].double()
        scores = k @ q
        scaled = scores * p.scale
        capped = scaled if p.softcap is None else p.softcap * torch.tanh(scaled / p.softcap)
        bias = torch.zeros(1) if p.bias is None else p.bias.values(row, keys, N, M, torch.float64)
        biased = capped + bias.reshape(-1)
        lse = float(head.A.logsumexp()[0, 0, i])
    temperature = float(p.temperature)
    return Answer(
        {
            "keys": listed,
            "weights": [max(0.0, float(weights[n])) for n in listed],
            "masked": [bool(weights[n] < 0) for n in listed],
            "scale": p.scale,
            "softcap": p.softcap,
            "bias": p.bias is not None,
            "temperature": temperature,
            "logsumexp": lse if math.isfinite(lse) else None,
            "others": int((weights >= 0).sum()) - sum(bool(weights[n] >= 0) for n in listed),
            "rest": max(0.0, 1.0 - float(sum(np.clip(weights[listed], 0, None)))) if p.sink is None else None,
            "scores": scores.tolist(),
            "scaled": scaled.tolist(),
            "capped": capped.tolist(),
            "biased": biased.tolist(),
        },
        {"q": q.float().numpy(), "k": k.float().numpy()},
    )


@question("own", SLOW)
def own(subject: Subject, arguments: Arguments) -> Answer:
    """Run the model on a text, and return every step of a layer; steps that differ by head are those of one head."""
    if subject.reader is None:
        raise RefusedError("the model is not at hand, only what it attended to; limelight explore --model has it")
    matrix = arguments.matrix(subject)
    head = arguments.whole("head", 0, matrix.H - 1)
    text = arguments.text("text", _LONGEST)
    if (count := subject.reader.count(text)) > _TOKENS:
        raise RefusedError(f"the text has {count} tokens; write at most {_TOKENS}")
    with subject.running:
        try:
            traced = trace_call(subject.reader, text, matrix.call.name)
        except ValueError as error:
            raise RefusedError(str(error)) from None
    steps, arrays = [], {}
    for step, whole in zip(traced.head(head).steps, traced.steps, strict=True):
        described = {"name": step.name, "title": whole.title, "sizes": whole.sizes, "each": whole.value.ndim == 3}
        steps.append({**described, "rows": list(step.rows), "square": step.cols is not None, "of": step.of})
        arrays[step.name] = step.value
        if step.name == "contributions":
            lengths = whole.value.double().norm(dim=-1).T  # (tokens, heads)
            names = [str(h) for h in range(len(whole.value))]
            told = {"name": "lengths", "title": "length of each head's part", "sizes": f"{len(lengths)} × {len(names)}"}
            steps.append({**told, "each": False, "rows": list(step.rows), "square": False, "of": ["contributions"]})
            arrays["lengths"] = lengths
    return Answer(
        {
            "queries": traced.queries,
            "keys": traced.keys,
            "module": traced.module,
            "steps": steps,
            "scale": traced.scale,
        },
        {name: x.detach().float().cpu().numpy() for name, x in arrays.items()},
    )


QUESTIONS = (example, steps, query, own)
