"""The recorder: turns the attention calls of a model's modules into a ``Record``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from limelight.backends import Int8Rows
from limelight.core.biases import Bias
from limelight.core.masks import Mask
from limelight.core.problem import AttentionSpec
from limelight.lens.editing import CallInputs, Editor, LayerEdits
from limelight.lens.hf import arguments as hf_arguments
from limelight.lens.layers import Layer, Passes
from limelight.lens.patches import Grids, PictureGrids
from limelight.lens.record import Call, Record, Values
from limelight.matrix.base import Weights
from limelight.nn.attention import MultiHeadAttention
from limelight.nn.language_model import Seq2Seq
from limelight.nn.stack import Decoder, Encoder

# Names of arguments of forward(), in limelight's models and in those of transformers.
_CONTEXTS = ("context", *hf_arguments.CONTEXTS)
_SOURCE_IDS = ("ids", "source", *hf_arguments.SOURCE_IDS)
_TARGET_IDS = ("target", *hf_arguments.TARGET_IDS)
_CACHES = ("cache", *hf_arguments.CACHES)


# The recorder of every module that is being watched or edited.
recorders: WeakKeyDictionary[nn.Module, Recorder] = WeakKeyDictionary()


class Recorder:
    """Records the attention calls that the modules of a model report.

    Args:
        model: the model; calls are recorded under the names of its modules.
        is_wanted: takes a layer and returns whether its calls are recorded.
        statistics: arguments of ``Weights.observe``; if given, their results are kept instead of q and k.
        limit: bytes that may be kept; later calls are counted in ``record.missed`` and dropped.
        values: keep the values, and the gradient of the output, of each call.
        edits: what to change in which layers.

    """

    def __init__(
        self,
        model: nn.Module,
        is_wanted: Callable[[Layer], bool] = lambda layer: True,
        statistics: dict[str, Any] | None = None,
        limit: float = float("inf"),
        values: bool = False,
        edits: Editor | None = None,
    ) -> None:
        self.model, self.is_wanted, self.statistics, self.limit = model, is_wanted, statistics, limit
        self.values = values
        self.editors = [] if edits is None else [edits]  # edits of this block and of enclosing ones
        self.enclosing: list[Recorder] = []  # recorders of enclosing blocks, which do not record these calls
        self.record = Record()
        self.kept_bytes = 0
        self.ran: set[nn.Module] = set()
        self._passes = Passes(model)
        self._plans: dict[tuple[nn.Module, str, int], LayerEdits | None] = {}
        self._rows: dict[str, int] = {}  # the number of the first query's token in each stack's latest self-attention
        self._names = self._passes.names
        self._cross_attending: set[nn.Module] = set()  # modules whose current call has a context
        self._phase = "prefill"
        self._ids: dict[str, Tensor] = {}  # token ids so far, by stack
        self._reported: set[str] = set()  # names of modules that reported a call, recorded or not
        self.pictures = PictureGrids(model)  # how queries and keys lie on a picture

    def add(self, module: nn.Module, found: Weights, layer: Layer | None = None, values: Values | None = None) -> None:
        """Record one attention call of a module."""
        layer = self._begin(module, found.shape)[0] if layer is None else layer
        if torch._C._current_graph_task_id() != -1:  # activation checkpointing runs it again in the backward pass
            return
        if not self.is_wanted(layer):
            return
        if self.kept_bytes >= self.limit:
            self.record.missed += 1
            return
        kept = found if self.statistics is None else found.observe(**self.statistics)
        self.kept_bytes += sum(x.untyped_storage().nbytes() for x in _tensors(kept))
        self.kept_bytes += 0 if values is None else values.v.untyped_storage().nbytes()
        kind, stack = self._kind(module), self._stack(layer.module, module)
        call = Call(
            name=layer.name,
            kind=kind,
            stack=stack,
            phase=self._phase,
            seen=kept,
            shape=found.shape,
            ids=self._key_ids(kind, stack, found),
            values=values,
            module=layer.module,
            number=layer.number,
            grids=self.grids(module, found.shape),
        )
        self.record.add(call)

    def grids(self, module: nn.Module, shape: tuple[int, ...]) -> Grids:
        """Return how the queries and the keys of a module's call lie on a picture."""
        return self.pictures.of(module, self._names[module], self._kind(module), shape)

    def _kind(self, module: nn.Module) -> str:
        return "cross" if module in self._cross_attending else "self"

    def _begin(self, module: nn.Module, shape: tuple[int, ...]) -> tuple[Layer, int]:
        """Begin an attention call: return its layer, and the number of the first query's token in its text."""
        for recorder in (self, *self.enclosing):
            if module in recorder._names:
                recorder._reported.add(recorder._names[module])
        *_, N, M = shape
        kind = self._kind(module)
        stack = self._stack(self._names[module], module)
        if kind == "self":
            self._phase = "prefill" if N == M else "decode"
            self._rows[stack] = M - N
        layer = self._passes.next(module, kind)
        while self._passes.found_shared:
            self.record.number_passes(*self._passes.found_shared.popitem())
        return layer, self._rows.get(stack, 0) if kind == "cross" else M - N

    def _plan(self, module: nn.Module, layer: Layer, heads: int) -> LayerEdits | None:
        """Return the edits of a layer, or None."""
        if not self.editors:
            return None
        key = module, layer.name, heads
        if key not in self._plans:
            edits = [edit for editor in self.editors for edit in editor.of(module, layer)]
            self._plans[key] = LayerEdits(layer, edits, heads) if edits else None
        return self._plans[key]

    def edit_dense(self, module: nn.Module, found: Weights) -> Weights | None:
        """Record dense weights that a module computed itself; return the edited weights, or None without edits."""
        layer, first = self._begin(module, found.shape)
        plan = self._plan(module, layer, found.shape[1])
        edited = found if plan is None else Weights.from_dense(plan.run_dense(found.dense(), first))
        self.add(module, edited, layer)
        return None if plan is None else edited

    def attend(
        self,
        module: nn.Module,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        dropout: float = 0.0,
        mask: Mask | None = None,
        bias: Bias | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sink: Tensor | None = None,
    ) -> Tensor:
        """Compute the attention of a module, edited, and record it; later statistics reuse what is computed here."""
        if self.pictures.joins_text(module, v) and q.shape[2] == k.shape[2]:
            self._cross_attending.discard(module)
        layer, first = self._begin(module, (*q.shape[:3], k.shape[2]))
        kept = self.statistics is None and self.is_wanted(layer)
        if kept:
            # A cache goes on writing into the memory of its keys, and statistics of contiguous rows are faster.
            k = k.clone(memory_format=torch.contiguous_format)
        values = Values(v.clone() if kept else v) if self.values else None
        spec = AttentionSpec(mask=mask, bias=bias, scale=scale, softcap=softcap, sink=sink)
        call = CallInputs(q, k, v, spec, dropout, first, module)
        plan = self._plan(module, layer, q.shape[1])
        found, out = call.attend() if plan is None else plan.run(call)
        if values is not None and out.requires_grad:
            out.register_hook(values.keep_gradient)
        self.add(module, found, layer, values)
        return out if plan is None else plan.finish(out)

    def before_module(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forward pre-hook of every module: keep track of cross-attention and of the encoder's token ids."""
        self._passes.begin(module)
        bound = arguments_of(module, args, kwargs)
        if any(bound.get(name) is not None for name in _CONTEXTS):
            self._cross_attending.add(module)
        else:
            self._cross_attending.discard(module)
        self.ran.add(module)
        self.pictures.notice(module, bound)
        # generate() of an encoder-decoder runs the encoder alone first.
        if self._names[module].endswith("encoder") and (ids := _token_ids(bound, _SOURCE_IDS)) is not None:
            self._ids["encoder"] = ids

    def before_model(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forward pre-hook of the whole model: keep track of the token ids of both stacks."""
        if self.values:
            self.record.run, self.record.editors = (model, args, kwargs), self.editors
        self.before_module(model, args, kwargs)
        bound = arguments_of(model, args, kwargs)
        sources, targets = _token_ids(bound, _SOURCE_IDS), _token_ids(bound, _TARGET_IDS)
        if sources is not None:
            self._ids["encoder"] = sources
        new = sources if targets is None and not _is_encoder_decoder(model) else targets
        earlier, past = self._ids.pop("decoder", None), _cached_tokens(bound)
        if past == 0:
            earlier = None if new is None else new[:, :0]
        # Beam search may permute the sequences inside a cache, so ids are only tracked for a batch of one.
        if new is not None and earlier is not None and earlier.shape[1] == past and (past == 0 or len(new) == 1):
            self._ids["decoder"] = torch.cat([earlier, new], 1)
        if sources is None and targets is None and past == 0:
            self._ids.clear()

    def unrecorded(self) -> list[str]:
        """Return the names of modules that ran, have "attention" in their class name and reported no call."""
        covered = self._reported | {parent for name in self._reported for parent in ["", *_parents(name)]}
        names = [self._names[m] for m in self.ran if "attention" in type(m).__name__.lower()]
        return sorted(n for n in names if n not in covered and not any(p in self._reported for p in _parents(n)))

    def _key_ids(self, kind: str, stack: str, found: Weights) -> Tensor | None:
        """Return the token ids of the keys; a cache may have dropped the first ones."""
        ids, shape = self._ids.get("encoder" if kind == "cross" else stack), found.shape
        M = shape[-1]
        if ids is not None and hasattr(found, "all_tokens"):  # each of several processes has a part of them
            ids = found.all_tokens(ids)
        if ids is None or len(ids) != shape[0] or ids.shape[1] < M or (kind == "cross" and ids.shape[1] != M):
            return None
        return ids[:, ids.shape[1] - M :]

    def _stack(self, name: str, module: nn.Module) -> str:
        """Return "encoder" or "decoder": by the class of a parent, by its name, or by whether the module is causal."""
        parts = name.split(".")
        for end in range(len(parts), -1, -1):
            parent = self.model.get_submodule(".".join(parts[:end]))
            if isinstance(parent, (Encoder, Decoder)):
                return "encoder" if isinstance(parent, Encoder) else "decoder"
        found = [stack for stack in ("decoder", "encoder") if any(stack in part.lower() for part in parts[:-1])]
        return found[0] if found else "decoder" if getattr(module, "is_causal", False) else "encoder"


@contextmanager
def recording(model: nn.Module, recorder: Recorder | None = None) -> Iterator[Record]:
    """Record every attention call of the ``MultiHeadAttention`` layers of a model inside a ``with`` block.

    >>> model = Encoder([])
    >>> with recording(model) as record:
    ...     _ = model(torch.randn(1, 5, 32))
    >>> record
    Record of 0 attention calls in 0 modules
    """
    recorder = Recorder(model) if recorder is None else recorder
    with ExitStack() as stack:
        stack.enter_context(recorded_by(model, recorder))
        for module in model.modules():
            if isinstance(module, MultiHeadAttention):
                stack.enter_context(_reporting(module, recorder))
            if isinstance(module, Encoder):
                stack.enter_context(_without_packing(module))
            hook = recorder.before_model if module is model else recorder.before_module
            stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        yield recorder.record


@contextmanager
def recorded_by(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Send the attention calls of a model's modules to a recorder, which takes over the edits of enclosing blocks."""
    before = {module: recorders[module] for module in model.modules() if module in recorders}
    recorder.enclosing = [each for outer in dict.fromkeys(before.values()) for each in (outer, *outer.enclosing)]
    for outer in dict.fromkeys(before.values()):
        recorder.editors = [*(x for x in outer.editors if x not in recorder.editors), *recorder.editors]
    for module in model.modules():
        recorders[module] = recorder
    try:
        yield
    finally:
        for module in model.modules():
            recorders.pop(module, None)
        recorders.update(before)


@contextmanager
def _reporting(module: MultiHeadAttention, recorder: Recorder) -> Iterator[None]:
    """Route the attention of a layer through a recorder."""

    def attend(q: Tensor, k: Any, v: Any, *, mask: Mask | None, bias: Bias | None) -> Tensor:
        k, v = (x.dequantise(q.dtype) if isinstance(x, Int8Rows) else x for x in (k, v))
        dropout = module.dropout if module.training else 0.0
        return recorder.attend(module, q, k, v, dropout=dropout, mask=mask, bias=bias, scale=module.scale)

    outer = vars(module).get("attend")  # set by an enclosing recording of the same model
    module.attend = attend  # type: ignore[method-assign]
    try:
        yield
    finally:
        del module.attend
        if outer is not None:
            module.attend = outer  # type: ignore[method-assign]


@contextmanager
def _without_packing(encoder: Encoder) -> Iterator[None]:
    """Keep the sequences of a batch apart, so that each has its own weights."""
    before, encoder._packs = encoder._packs, False
    try:
        yield
    finally:
        encoder._packs = before


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts))]


def arguments_of(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a forward call by name."""
    try:
        bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    except TypeError:  # the call itself raises the better error
        return {}
    return {**bound, **bound.get("kwargs", {})}


def _token_ids(bound: dict[str, Any], names: tuple[str, ...]) -> Tensor | None:
    """Return the first of the named arguments that is a tensor of token ids, ``(batch, length)``."""
    tensors = (bound[n].detach() for n in names if isinstance(bound.get(n), Tensor))
    return next((x for x in tensors if x.ndim == 2 and not x.is_floating_point()), None)


def _cached_tokens(bound: dict[str, Any]) -> int:
    """Return how many tokens the cache of a call holds already."""
    cache = next((bound[n] for n in _CACHES if bound.get(n) is not None), None)
    if cache is None:
        return 0
    return int(cache.get_seq_length()) if hasattr(cache, "get_seq_length") else int(getattr(cache, "count", 0))


def _is_encoder_decoder(model: nn.Module) -> bool:
    return isinstance(model, Seq2Seq) or hf_arguments.is_encoder_decoder(model)


def _tensors(kept: Any) -> Iterator[Tensor]:
    """Yield the tensors that ``Weights`` or an ``Observation`` holds."""
    if isinstance(kept, Weights):
        yield from kept.tensors()
        return
    for x in vars(kept).values():
        yield from x if isinstance(x, tuple) else [x] if isinstance(x, Tensor) else []
