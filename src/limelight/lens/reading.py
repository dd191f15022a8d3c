"""A reading: a model's attention to a text, with the tokens, from the folder of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn

from limelight import models
from limelight.lens.heads_table import Heads
from limelight.lens.next_tokens import NextTokens, predict
from limelight.lens.record import Call, Record
from limelight.lens.replay import Replay
from limelight.lens.report import heads, is_separator
from limelight.lens.sizes import model_sizes
from limelight.lens.watching import watch
from limelight.models.checkpoint import ARCHITECTURES, read_config
from limelight.models.tokenizers import read_tokenizer, readable_tokens
from limelight.nn import Seq2Seq
from limelight.nn.positions import Learned

_MAX_WRITTEN = 512  # tokens that an encoder-decoder writes at most
_TOP_KEYS = 8  # strongest keys of a query that are looked at; some of them may be trivial

# Called with a description of what is going on, and how many steps of how many are done.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Link:
    """A strong weight between two tokens."""

    call: Call
    head: int
    query: int
    key: int
    weight: float


@dataclass(frozen=True)
class _TopKeys:
    """The strongest keys of each query of a call."""

    weight: Tensor  # (H, N, k)
    nontrivial: Tensor  # the same with 0 for trivial keys: the query, its neighbours, the first token, separators
    key: Tensor  # (H, N, k)


@dataclass(frozen=True)
class Reading:
    """A model's attention to a text: the tokens by stack, and the record.

    Attributes:
        model: the model's name.
        tokens: the tokens by stack: ``"encoder"``, ``"decoder"``, and ``"written"`` for those that the decoder writes.
        record: the record of the forward pass.
        left_out: how many tokens were cut off because the model has no positions for them.
        wrote: the text that an encoder-decoder wrote.
        sizes: the model's sizes by their usual names; ``limelight.lens.sizes.MEANINGS`` has what each means.
        next_tokens: what a decoder expects after each token; None for models that predict none.
        replay: runs the model on the text again, with edits.
        reader: the model that read the text, to read other texts with.
        picture: the picture that was looked at, ``(height, width, 3)`` bytes, cropped to what the model saw.

    """

    model: str
    tokens: dict[str, list[str]]
    record: Record
    left_out: int = 0
    wrote: str = ""
    sizes: dict[str, int] = field(default_factory=dict)
    next_tokens: NextTokens | None = field(default=None, repr=False, compare=False)
    replay: Replay | None = None
    reader: Reader | None = field(default=None, repr=False, compare=False)
    picture: NDArray[np.uint8] | None = field(default=None, repr=False, compare=False)
    _top_keys: dict[int, _TopKeys] = field(default_factory=dict, repr=False, compare=False)

    @property
    def following(self) -> list[tuple[str, float]]:
        """The likeliest tokens after the text, with their probabilities; empty for models that predict none."""
        return [] if self.next_tokens is None else self.next_tokens.likeliest(self.next_tokens.end - 1)

    def names(self, call: Call) -> tuple[list[str], list[str]]:
        """Return the tokens of a call's queries and keys; the queries of cross-attention are the written tokens."""
        if call.kind == "cross":
            return self.tokens["written"], self.tokens["encoder"]
        return self.tokens[call.stack], self.tokens[call.stack]

    def changed(self, **options: Any) -> Reading:
        """Return the same reading with other options of ``weights``, such as a temperature."""
        record = Record()
        for call in self.record.log:
            record.add(replace(call, seen=call.weights.changed(**options)))
        return replace(self, record=record, _top_keys={})

    def only(self, layer: int | None, kind: str | None = None) -> Reading:
        """Return the part of the reading that belongs to one layer or one kind of attention."""
        record = Record()
        for call in self.record.log:
            if layer in (None, call.layer) and kind in (None, call.kind):
                record.add(call)
        if not record.log:
            if layer is None:
                raise ValueError(f"{self.model}: no {kind or ''} attention was recorded".replace("  ", " "))
            known = sorted({n for call in self.record.log if (n := call.layer) is not None})
            there = f"there are {known[0]} to {known[-1]}" if known else "there are none"
            raise ValueError(f"there is no layer {layer}; {there}")
        return replace(self, record=record)

    def heads(self, progress: Callable[[Sequence[str]], Any] = iter) -> Heads:
        """Report on every head."""
        return heads(self.record, self.tokens, progress=progress)

    def links(self, call: Call, head: int, count: int, trivial: bool = False) -> list[Link]:
        """Return the strongest links of a head.

        Links of a token to itself, its neighbours, the first token and separators are trivial and left out unless
        ``trivial`` is true.
        """
        top = self._top(call)
        weight = top.weight if trivial else top.nontrivial
        best = weight[head].flatten().sort(descending=True, stable=True).indices[:count].tolist()
        found = [(n // weight.shape[2], n % weight.shape[2]) for n in best]
        links = [Link(call, head, i, int(top.key[head, i, n]), float(weight[head, i, n])) for i, n in found]
        return [link for link in links if link.weight > 0]

    def most_telling(
        self, head: int | None = None, progress: Callable[[Sequence[Call]], Any] = iter
    ) -> tuple[Call, int]:
        """Return the call and head whose queries have the strongest nontrivial links; of one head if it is given."""
        wanted = [call for call in self.record.log if head is None or head < call.shape[1]]
        if not wanted:
            most = max(call.shape[1] for call in self.record.log)
            raise ValueError(f"there is no head {head}; there are 0 to {most - 1}")
        scores = [self._top(call).nontrivial.amax(-1).mean(-1) for call in progress(wanted)]
        best = [float(score.max() if head is None else score[head]) for score in scores]
        n = best.index(max(best))
        return wanted[n], int(scores[n].argmax()) if head is None else head

    def _top(self, call: Call) -> _TopKeys:
        if id(call) not in self._top_keys:
            self._top_keys[id(call)] = self._find_top_keys(call)
        return self._top_keys[id(call)]

    def _find_top_keys(self, call: Call) -> _TopKeys:
        queries, keys = self.names(call)
        with torch.no_grad():
            top = call.weights.top(min(_TOP_KEYS, len(keys)))
        weight, key = top.values[0].nan_to_num(), top.indices[0]
        trivial = torch.tensor([is_separator(token) for token in keys])[key]
        if call.kind == "self":
            trivial |= (key == 0) | ((key - torch.arange(len(queries))[:, None]).abs() <= 1)
        return _TopKeys(weight=weight, nontrivial=weight.masked_fill(trivial, 0.0), key=key)


def read(folder: str | Path, text: str, progress: Progress | None = None) -> Reading:
    """Run the model in a folder on a text and record what it attends to.

    An encoder-decoder first writes its own target by beam search, and then reads source and target.

    Args:
        folder: the folder of a model.
        text: the text.
        progress: called after every layer and every written token.

    """
    return Reader(folder).read(text, progress)


class Reader:
    """A model from a folder with its tokenizer, which reads texts."""

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder)
        self.name = folder.resolve().name
        self.model, self.ours = load_model(folder, predicts=True)
        self.tokenizer = load_tokenizer(folder)
        self._dense = not self.ours and has_own_attention(self.model)

    def read(
        self,
        text: str,
        progress: Progress | None = None,
        watching: AbstractContextManager[Record] | None = None,
    ) -> Reading:
        """Run the model on a text and record what it attends to: all of it, or what ``watching`` records."""
        ids = self.tokenizer.encode(text).ids
        if not ids:
            raise ValueError("the text has no tokens")
        most = max_positions(self.model)
        left_out = 0 if most is None else max(0, len(ids) - most)
        source = torch.tensor([ids if most is None else ids[:most]])
        with torch.no_grad():
            target = write_target(self.model, source, self.ours, most, progress)
            watching = watching or watch(self.model, dense=self._dense)
            with watching as record, _reporting(_layers(self.model), f"reading {source.shape[1]} tokens", progress):
                expected = predict(self.model, source, target, self.tokenizer, self.ours)
        wrote = "" if target is None else self.tokenizer.decode(target[0].tolist())
        return Reading(
            model=self.name,
            tokens=self._tokens(source, target),
            record=record,
            left_out=left_out,
            wrote=wrote,
            sizes=model_sizes(self.model, record, source.shape[1]),
            next_tokens=expected,
            replay=Replay(self.model, self.tokenizer, source, target, self.ours, self._dense, most),
            reader=self,
        )

    def count(self, text: str) -> int:
        """Return the number of tokens of a text."""
        return len(self.tokenizer.encode(text).ids)

    def _tokens(self, source: Tensor, target: Tensor | None) -> dict[str, list[str]]:
        """Return the tokens by stack."""
        by_stack = {"encoder": source, "decoder": source}
        if target is not None:
            by_stack |= {"decoder": target[:, :-1], "written": target[:, 1:]}
        return readable_tokens(self.tokenizer, {stack: x[0] for stack, x in by_stack.items()})


def has_own_attention(model: nn.Module) -> bool:
    """Return whether a model of transformers computes attention itself."""
    from limelight.lens.hf.registration import part_with_own_attention

    return part_with_own_attention(model) is not None


def write_target(
    model: Any, source: Tensor, ours: bool, positions: int | None = None, progress: Progress | None = None
) -> Tensor | None:
    """Return the target that an encoder-decoder writes, or None for other models."""
    is_ours = isinstance(model, Seq2Seq)
    if not is_ours and (ours or not getattr(model.config, "is_encoder_decoder", False)):
        return None
    most = min(2 * source.shape[1] + 10, _MAX_WRITTEN)
    most = most if positions is None else min(most, positions - 1)
    decoder = model.decoder if is_ours else model.get_decoder()
    with _reporting([decoder] * most, "writing", progress):
        if is_ours:
            return models.generate(model, source, beams=4, max_new_tokens=most)
        written: Tensor = model.generate(source, num_beams=4, max_new_tokens=most)
        return written


def _layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a model: the elements of its outermost ``ModuleList`` containers."""
    found: list[nn.Module] = []
    for child in model.children():
        found += list(child) if isinstance(child, nn.ModuleList) else _layers(child)
    return found


@contextmanager
def _reporting(steps: list[nn.Module], what: str, progress: Progress | None) -> Iterator[None]:
    """Call ``progress`` whenever one of these modules has run; a module listed several times may run as often."""
    done = 0

    def advance(*_: Any) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(what, min(done, len(steps)), len(steps))

    with ExitStack() as stack:
        if progress is not None:
            progress(what, 0, len(steps))
            for module in set(steps):
                stack.callback(module.register_forward_hook(advance).remove)
        yield


def load_model(folder: Path, predicts: bool = False) -> tuple[nn.Module, bool]:
    """Return the model in a folder, and whether its architecture is one of limelight's own.

    With ``predicts`` a decoder of transformers comes with the head that predicts the next token.
    """
    config = read_config(folder)
    kind = config.get("model_type")
    if kind == "vit":
        raise ValueError(f"{folder} holds a {kind} model, which does not read text; give it a picture with --image")
    if isinstance(kind, str) and kind in ARCHITECTURES:
        return models.load(folder), True
    from limelight.lens.hf import loading

    model = loading.load_model(folder, config, predicts)
    if getattr(model, "main_input_name", "input_ids") != "input_ids" or hasattr(model.config, "vision_config"):
        raise ValueError(f"{folder} holds a {kind} model, which does not read text alone; try --image")
    return model, False


def load_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer in a folder, which neither cuts nor pads."""
    if (folder / "tokenizer.json").is_file():
        tokenizer = read_tokenizer(folder)
    elif any(file for pattern in ("vocab*", "*.model", "tokenizer*") for file in folder.glob(pattern)):
        from limelight.lens.hf import loading

        tokenizer = loading.load_tokenizer(folder)
    else:
        raise FileNotFoundError(f"{folder} has no tokenizer.json")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def max_positions(model: nn.Module) -> int | None:
    """Return how many positions the model has learned embeddings for; None if it computes its positions."""
    configured = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    for name, module in model.named_modules():
        if isinstance(module, Learned):
            return module.table.num_embeddings - module.offset
        if isinstance(module, nn.Embedding) and "position" in name and "relative" not in name:
            count = module.num_embeddings if configured is None else min(module.num_embeddings, configured)
            return count if module.padding_idx is None else count - module.padding_idx - 1
    return None
