"""A model reads a text, and what it attended to is there to look at."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from limelight import models
from limelight.lens.calls import Call, Record
from limelight.lens.heads import Heads, heads, is_separator
from limelight.lens.watching import watch
from limelight.models.checkpoint import ARCHITECTURES
from limelight.nn import Seq2Seq
from limelight.nn.positions import Learned
from limelight.translate import vocabulary

_WRITTEN = 512  # tokens that an encoder-decoder writes at most
_LINKS = 8  # keys of a query, of which some may be trivial


@dataclass(frozen=True)
class Link:
    """A strong weight between two tokens."""

    call: Call
    head: int
    query: int
    key: int
    weight: float


@dataclass(frozen=True)
class Reading:
    """What a model attended to in a text: its tokens by stack, and the record."""

    model: str
    tokens: dict[str, list[str]]
    record: Record
    left_out: int = 0  # tokens that the model has no positions for
    wrote: str = ""  # by an encoder-decoder

    def names(self, call: Call) -> tuple[list[str], list[str]]:
        """The tokens of the queries and of the keys; those of a cross-attention are the ones that are written."""
        if call.kind == "cross":
            return self.tokens["written"], self.tokens["encoder"]
        return self.tokens[call.stack], self.tokens[call.stack]

    def changed(self, **options: Any) -> Reading:
        """The same with other options of ``weights``, such as a temperature."""
        record = Record()
        for call in self.record.log:
            record.add(replace(call, seen=call.weights.changed(**options)))
        return replace(self, record=record)

    def only(self, layer: int | None, kind: str | None = None) -> Reading:
        """One layer of it, or one kind of attention."""
        record = Record()
        for call in self.record.log:
            if layer in (None, call.layer) and kind in (None, call.kind):
                record.add(call)
        if not record.log:
            if layer is None:
                raise ValueError(f"{self.model} has no {kind or ''} attention that could be seen".replace("  ", " "))
            known = sorted({n for call in self.record.log if (n := call.layer) is not None})
            there = f"there are {known[0]} to {known[-1]}" if known else "there are none"
            raise ValueError(f"there is no layer {layer}; {there}")
        return replace(self, record=record)

    def heads(self, progress: Callable[[Sequence[str]], Any] = iter) -> Heads:
        """The report on its heads."""
        return heads(self.record, self.tokens, progress=progress)

    def links(self, call: Call, head: int, count: int, trivial: bool = False) -> list[Link]:
        """The strongest links of a head, without those to itself, its neighbours, the first one and separators."""
        told, weight, key = self._strong[id(call)]
        weight = weight if trivial else told
        best = weight[head].flatten().sort(descending=True, stable=True).indices[:count].tolist()
        found = [(n // weight.shape[2], n % weight.shape[2]) for n in best]
        links = [Link(call, head, i, int(key[head, i, n]), float(weight[head, i, n])) for i, n in found]
        return [link for link in links if link.weight > 0]

    def most_telling(self, head: int | None = None) -> tuple[Call, int]:
        """The head whose queries have the strongest links that are not trivial, or the call in which this head has."""
        scores = {id(call): self._strong[id(call)][0].amax(-1).mean(-1) for call in self.record.log}
        wanted = [call for call in self.record.log if head is None or head < call.shape[1]]
        if not wanted:
            most = max(call.shape[1] for call in self.record.log)
            raise ValueError(f"there is no head {head}; there are 0 to {most - 1}")
        best = max(wanted, key=lambda call: float(scores[id(call)].max() if head is None else scores[id(call)][head]))
        return best, int(scores[id(best)].argmax()) if head is None else head

    @cached_property
    def _strong(self) -> dict[int, tuple[Tensor, Tensor, Tensor]]:
        """By call: each query's strongest weights ``(H, N, few)``, first with 0 where they are trivial, and keys."""
        found = {}
        with torch.no_grad():
            for call in self.record.log:
                queries, keys = self.names(call)
                top = call.weights.top(min(_LINKS, len(keys)))
                trivial = torch.tensor([is_separator(token) for token in keys])
                weight, key = top.values[0], top.indices[0]
                idle = trivial[key]
                if call.kind == "self":
                    idle |= (key == 0) | ((key - torch.arange(len(queries))[:, None]).abs() <= 1)
                found[id(call)] = weight.masked_fill(idle, 0.0), weight, key
        return found


def read(folder: str | Path, text: str) -> Reading:
    """What the model in a folder attends to in a text.

    An encoder-decoder writes its own target first, by beam search, and reads both.
    """
    folder = Path(folder)
    model, known = _model(folder)
    tokenizer = _tokenizer(folder)
    ids = tokenizer.encode(text).ids
    if not ids:
        raise ValueError("the text has no tokens")
    most = _positions(model)
    left_out = 0 if most is None else max(0, len(ids) - most)
    source = torch.tensor([ids if most is None else ids[:most]])
    dense = not known and _on_its_own(model)
    with torch.no_grad():
        target = _written(model, source, known, most)
        with watch(model, dense=dense) as record:
            if target is not None:
                before = target[:, :-1]
                model(source, before) if known else model(input_ids=source, decoder_input_ids=before)
            elif known:
                model(source, last=True)  # the logits of all tokens are larger than all else
            else:
                model(source)
    wrote = ""
    tokens = {"encoder": source, "decoder": source}
    if target is not None:
        tokens |= {"decoder": target[:, :-1], "written": target[:, 1:]}
        wrote = tokenizer.decode(target[0].tolist())
    names = {stack: [tokenizer.id_to_token(i) or str(i) for i in x[0].tolist()] for stack, x in tokens.items()}
    return Reading(folder.resolve().name, _readable(tokenizer, names), record, left_out, wrote)


def _on_its_own(model: nn.Module) -> bool:
    from limelight.lens.hf.registration import on_its_own

    return on_its_own(model) is not None


def _written(model: Any, source: Tensor, known: bool, positions: int | None) -> Tensor | None:
    """The target of an encoder-decoder."""
    most = min(2 * source.shape[1] + 10, _WRITTEN)
    most = most if positions is None else min(most, positions - 1)
    if isinstance(model, Seq2Seq):
        return models.generate(model, source, beams=4, max_new_tokens=most)
    if not known and getattr(model.config, "is_encoder_decoder", False):
        written: Tensor = model.generate(source, num_beams=4, max_new_tokens=most)
        return written
    return None


def _readable(tokenizer: Tokenizer, names: dict[str, list[str]]) -> dict[str, list[str]]:
    """Tokens as a person reads them: those of bytes decoded, with a mark where a word begins."""
    bytelike = any("Ġ" in token for tokens in names.values() for token in tokens)
    if not bytelike:
        return names

    def plain(token: str) -> str:
        number = tokenizer.token_to_id(token)
        found = None if number is None else tokenizer.decode([number])
        return (found or token).replace(" ", "▁")

    return {stack: [plain(token) for token in tokens] for stack, tokens in names.items()}


def _model(folder: Path) -> tuple[nn.Module, bool]:
    """The model of a folder, and whether it is one of ours."""
    config = folder / "config.json"
    if not config.is_file():
        raise FileNotFoundError(f"{folder} has no config.json; give the folder of a model")
    try:
        kind = json.loads(config.read_text(encoding="utf-8")).get("model_type")
    except (ValueError, AttributeError):
        kind = None  # the loaders say it better
    if kind == "vit":
        raise ValueError(f"{folder} holds a {kind} model, which does not read text")
    if kind in ARCHITECTURES:
        return models.load(folder), True
    try:
        from transformers import AutoModel, AutoModelForSeq2SeqLM
    except ImportError:
        raise ValueError(
            f"{folder} holds a {kind} model, which limelight reads with transformers: pip install 'limelight[hf]'"
        ) from None
    seq2seq = json.loads(config.read_text(encoding="utf-8")).get("is_encoder_decoder", False)
    loader = AutoModelForSeq2SeqLM if seq2seq else AutoModel
    found: nn.Module = loader.from_pretrained(folder).eval()
    if getattr(found, "main_input_name", "input_ids") != "input_ids" or hasattr(found.config, "vision_config"):
        raise ValueError(f"{folder} holds a {kind} model, which does not read text alone")
    return found, False


def _tokenizer(folder: Path) -> Tokenizer:
    file = folder / "tokenizer.json"
    if file.is_file():
        tokenizer = vocabulary.read(folder)
    elif not any(file for pattern in ("vocab*", "*.model", "tokenizer*") for file in folder.glob(pattern)):
        raise FileNotFoundError(f"{folder} has no tokenizer.json")
    else:
        try:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(folder).backend_tokenizer
        except Exception as error:  # transformers raises many kinds
            raise FileNotFoundError(
                f"{folder} has no tokenizer.json, and its other files do not help: {error}"
            ) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _positions(model: nn.Module) -> int | None:
    """How many tokens the model has positions for, where it learned them one by one."""
    known = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    for name, module in model.named_modules():
        if isinstance(module, Learned):
            return module.table.num_embeddings - module.offset
        if isinstance(module, nn.Embedding) and "position" in name and "relative" not in name:
            count = module.num_embeddings if known is None else min(module.num_embeddings, known)
            return count if module.padding_idx is None else count - module.padding_idx - 1
    return None
