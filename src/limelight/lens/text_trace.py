"""Traces of a layer of a model in a folder, for a text."""

from __future__ import annotations

import itertools
from pathlib import Path

import torch

from limelight.lens.layer_steps import layer_trace
from limelight.lens.layer_trace import LayerTrace
from limelight.lens.layers import layer_number
from limelight.lens.reading import Reader, load_model, load_tokenizer, write_target
from limelight.lens.tracing import LayerTracer, trace
from limelight.models.tokenizers import readable_tokens

_LONGEST = 512  # tokens; every step is kept, and the scores of all heads are tokens × tokens


def trace_text(folder: str | Path, text: str, layer: int = 0, kind: str = "self") -> LayerTrace:
    """Run the model in a folder on a text, and return every step of one of its layers.

    An encoder-decoder first writes its own target; ``kind="cross"`` shows its cross-attention, and ``kind="self"`` that
    of the encoder.
    """
    folder = Path(folder)
    model, ours = load_model(folder)
    tokenizer = load_tokenizer(folder)
    ids = tokenizer.encode(text).ids
    if not ids:
        raise ValueError("the text has no tokens")
    if len(ids) > _LONGEST:
        raise ValueError(f"the text has {len(ids)} tokens; a trace keeps every step, and takes {_LONGEST} at most")
    source = torch.tensor([ids])
    with torch.no_grad():
        target = write_target(model, source, ours)
    read = {"source": source[0]} if target is None else {"source": source[0], "target": target[0]}
    readable = readable_tokens(tokenizer, read)
    names = {side: [token.lstrip("▁") or "␣" for token in tokens] for side, tokens in readable.items()}
    if target is None:
        return trace(model, source, tokens=names["source"], layer=layer, kind=kind)
    # The decoder reads a token and writes the next one.
    writing = [f"{token}→{following}" for token, following in itertools.pairwise(names["target"])]
    tokens = names["source"] if kind == "self" else (writing, names["source"])
    if ours:
        return trace(model, source, target[:, :-1], tokens=tokens, layer=layer, kind=kind)
    inputs = {"input_ids": source, "decoder_input_ids": target[:, :-1]}
    return trace(model, tokens=tokens, layer=layer, kind=kind, **inputs)


def trace_call(reader: Reader, text: str, name: str) -> LayerTrace:
    """Run a model that has been loaded on a text, and return every step of the layer of one attention call.

    ``name`` is that of the call in a record of the model, such as ``decoder.layers.1.cross`` or ``layers.0#3``.
    """
    tracer = LayerTracer(reader.model, layer_number(name), wanted=name)
    reading = reader.read(text, watching=tracer.watching())
    if tracer.chosen is None:
        raise ValueError(f"{name} did not run, or computes its attention where it cannot be seen")
    return layer_trace(tracer.events, tracer.chosen, reading.names(reading.record.log[-1]))
