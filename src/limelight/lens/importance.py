"""Importance: how much a metric of the output changes when heads, or layers, are edited one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from limelight.lens.editing import CallInputs, LayerEdits
from limelight.lens.edits import Edit, Mean, Off, Only
from limelight.lens.importance_table import Importance, rank_correlation
from limelight.lens.layers import Layer
from limelight.lens.metrics import Metric, as_metric, is_decoder
from limelight.lens.recorder import Recorder, arguments_of
from limelight.lens.restarting import CannotRepeat, Restart, accepts, evaluating, part, repeat
from limelight.lens.watching import watch_with
from limelight.matrix.base import Weights

_TOKENS = 4096  # tokens that run together, over all copies of the batch

__all__ = ["Importance", "importance", "rank_correlation"]


def importance(
    model: nn.Module,
    inputs: Any,
    *,
    metric: Metric | str | Callable[[Any], Any] | None = None,
    by: str = "head",
    edit: Callable[..., Edit] = Off,
    method: str = "exact",
    layers: Iterable[int | str] | None = None,
    dense: bool = False,
    progress: Callable[[Sequence[Any]], Any] = iter,
) -> Importance:
    """Measure how much a metric changes when each head, or each layer, is edited, one at a time.

    Heads of one layer share the computation of all blocks below it, and run as one batch.

    Args:
        model: any model that ``watch`` can record.
        inputs: the inputs of the model: token ids, a tuple of arguments, or a dict of them.
        metric: ``"loss"`` (of the next token, default for decoders), ``"kl"``, ``"cosine"`` (default for encoders),
            ``"logprob"`` (of the target, default for encoder-decoders), a metric of ``limelight.lens`` such as
            ``LogitDifference(a, b)``, or any function of the model's output.
        by: ``"head"`` or ``"layer"``.
        edit: makes the edit of a head from its number, or that of all heads from ``slice(None)``: ``Off``, or for
            example ``lambda heads: Mean(heads, reference)``.
        method: ``"exact"``; ``"gradient"``, an estimate to first order of all heads from one backward pass; or
            ``"both"``, with the rank correlation between the two.
        layers: which layers, as ``watch`` takes them; all unless given.
        dense: for models that compute attention themselves, as in ``watch``; exact only.
        progress: wraps the list of layers while they are worked through, such as ``tqdm.tqdm``.

    Returns:
        A list of one dict for each head (or layer), with ``module``, ``stack``, ``kind``, ``layer``, ``head`` and
        ``effect``, the metric with the edit minus the metric without; with ``"both"`` also ``estimate``.

    >>> import torch, limelight as ll
    >>> layer = ll.nn.MultiHeadAttention(32, 4)
    >>> found = importance(layer, torch.randn(1, 7, 32), metric=lambda y: y[0, -1, 0])
    >>> [row["head"] for row in found], found.metric
    ([0, 1, 2, 3], '<lambda>')

    """
    if by not in ("head", "layer"):
        raise ValueError(f"importance: by = {by!r}; there are 'head' and 'layer'")
    if method not in ("exact", "gradient", "both"):
        raise ValueError(f"importance: method = {method!r}; there are 'exact', 'gradient' and 'both'")
    if dense and method != "exact":
        raise ValueError("importance: models that compute attention themselves (dense=True) have the exact method only")
    wanted: list[int | str] | None = None
    if layers is not None:
        wanted = [layers] if isinstance(layers, (int, str)) else list(layers)
    with evaluating(model):
        study = _Study(model, inputs, edit, by, dense)
        with study.installed():
            study.survey(metric, wanted)
            exact = None if method == "gradient" else study.exact(progress)
            estimate = None if method == "exact" else study.gradient()
    rows = study.rows(exact, estimate)
    return Importance(rows, metric=study.metric.name, clean=float(study.clean_metric), by=by, method=method)


@dataclass
class _Target:
    """One attention call of the run without edits."""

    layer: Layer
    stack: str
    kind: str
    heads: int
    call: int  # its number among the attention calls
    block: int  # the number of the block call that it is in, or -1


class _Editor(Recorder):
    """Edits single attention calls, by their number in the run; records nothing."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, is_wanted=lambda layer: False)
        self.plans: dict[int, Any] = {}  # by the number of the call
        self.calls = 0
        self.notice: Callable[[nn.Module, Layer, int], None] | None = None

    def _plan(self, module: nn.Module, layer: Layer, heads: int) -> Any:
        number = self.calls
        self.calls += 1
        if self.notice is not None:
            self.notice(module, layer, heads)
        return self.plans.get(number, self.plans.get(-1))


class _Copies:
    """Applies a different edit to each copy of the batch; for edits that change the output alone."""

    def __init__(self, plans: list[LayerEdits], batch: int) -> None:
        self.plans, self.batch = plans, batch

    def run(self, call: CallInputs) -> tuple[Weights, Tensor]:
        """Compute the call as it is."""
        return call.attend()

    def finish(self, out: Tensor) -> Tensor:
        """Edit the output of each copy."""
        return torch.cat([plan.finish(x) for plan, x in zip(self.plans, out.split(self.batch), strict=True)])


class _Tangent:
    """Keeps the output of each call, and the change that the edits of all its heads would make to it."""

    def __init__(self, plan_of: Callable[[int], LayerEdits]) -> None:
        self.plan_of = plan_of
        self.outs: list[Tensor] = []
        self.changes: list[Tensor] = []

    def run(self, call: CallInputs) -> tuple[Weights, Tensor]:
        """Compute the call as it is, and keep its output."""
        plan = self.plan_of(len(self.outs))
        found, out = call.attend()
        out = out if out.requires_grad else out.detach().requires_grad_()
        with torch.no_grad():
            edited = out.detach() if _edits_output_alone(plan) else plan.run(call)[1]
            self.changes.append(plan.finish(edited) - out.detach())
        self.outs.append(out)
        return found, out

    def finish(self, out: Tensor) -> Tensor:
        """Leave the output as it is."""
        return out


def _edits_output_alone(plan: LayerEdits) -> bool:
    return all(type(x) in (Off, Only, Mean) for x in plan.edits)


class _Study:
    """One model with its inputs, run once without edits and then with them."""

    def __init__(self, model: nn.Module, inputs: Any, edit: Callable[..., Edit], by: str, dense: bool) -> None:
        self.model, self.edit, self.by, self.dense = model, edit, by, dense
        self.args: tuple[Any, ...] = inputs if isinstance(inputs, tuple) else ()
        self.kwargs: dict[str, Any] = dict(inputs) if isinstance(inputs, Mapping) else {}
        if not isinstance(inputs, (tuple, Mapping)):
            self.args = (inputs,)
        if accepts(model, "use_cache"):
            self.kwargs["use_cache"] = False
        self.inputs = arguments_of(model, self.args, self.kwargs)
        tensors = [x for x in self.inputs.values() if isinstance(x, Tensor) and x.ndim]
        if not tensors:
            raise ValueError(
                "importance: the inputs hold no tensor; give token ids, or a dict of the model's arguments"
            )
        self.batch = len(tensors[0])
        self.tokens = tensors[0].shape[1] if tensors[0].ndim > 1 else 1
        self.recorder, self.restart = _Editor(model), Restart(model, self.batch)
        self.targets: list[_Target] = []
        self.metric: Metric
        self.clean: Any = None
        self.clean_metric: Tensor

    def installed(self) -> Any:
        """Return the context in which the attention of the model goes through the recorder."""
        from contextlib import ExitStack

        stack = ExitStack()
        stack.enter_context(self.restart.installed())
        stack.enter_context(watch_with(self.model, self.recorder, dense=self.dense, all_layers=False))
        return stack

    def survey(self, metric: Any, layers: list[int | str] | None) -> None:
        """Run the model without edits: find its attention calls, keep its blocks' outputs and the metric."""

        def notice(module: nn.Module, layer: Layer, heads: int) -> None:
            kind, stack = self.recorder._kind(module), self.recorder._stack(layer.module, module)
            block = self.restart.calls - 1
            self.targets.append(_Target(layer, stack, kind, heads, len(self.targets), block))

        self.recorder.notice = notice
        with torch.no_grad():
            output = self.restart.run(lambda: self._forward(1), keep=True)
        self.recorder.notice = None
        if not self.targets:
            raise ValueError(f"importance: no attention of this {type(self.model).__name__} was seen")
        self.metric = as_metric(metric, output, self.inputs, is_decoder(self.model))
        if self.metric.last_only():
            self._keep_last_logits()
            with torch.no_grad():
                output = self.restart.run(lambda: self._forward(1), start=len(self.restart.outputs))
        self.clean = output
        self.clean_metric = self._metric_of(output).detach()
        if not bool(self.clean_metric.isfinite()):
            raise ValueError(f"importance: the metric without edits is {float(self.clean_metric)}; it must be finite")
        self.all_targets = self.targets
        if layers is not None:
            self.targets = [target for target in self.targets if any(target.layer.matches(x) for x in layers)]
            if not self.targets:
                raise ValueError(f"importance: layers = {layers} match none of the layers that ran")

    def _keep_last_logits(self) -> None:
        """Compute the logits of the last token alone, where that token is not padding."""
        mask = self.inputs.get("attention_mask")
        unpadded = self.inputs.get("mask") is None and (mask is None or bool(mask[:, -1].all()))
        for name, value in (("logits_to_keep", 1), ("last", True)):
            if unpadded and accepts(self.model, name) and name not in self.inputs:
                self.kwargs[name] = value
                return

    def exact(self, progress: Callable[[Sequence[Any]], Any]) -> list[list[float]]:
        """Return the effect of every edit, by running the model from the edited layer on."""
        with torch.no_grad():
            return [self._effects(target) for target in progress(self.targets)]

    def _effects(self, target: _Target) -> list[float]:
        plans = [LayerEdits(target.layer, x.parts(), target.heads) for x in self._edits(target)]
        room = max(1, _TOKENS // max(1, self.batch * self.tokens))
        size = room if all(map(_edits_output_alone, plans)) and not self.dense else 1
        effects: list[float] = []
        for first in range(0, len(plans), size):
            some = plans[first : first + size]
            try:
                effects += self._run_edited(target, some)
            except CannotRepeat:
                effects += [effect for plan in some for effect in self._run_edited(target, [plan])]
        return effects

    def _edits(self, target: _Target) -> list[Edit]:
        made = [self.edit(x) for x in ([slice(None)] if self.by == "layer" else range(target.heads))]
        for x in made:
            if not isinstance(x, Edit):
                raise TypeError(f"importance: edit makes {x!r}, which is not an edit of limelight.lens")
        return made

    def _run_edited(self, target: _Target, plans: list[LayerEdits]) -> list[float]:
        copies = len(plans)
        start = max(target.block, 0)
        self.recorder.calls = 0
        skipped = sum(x.block < start for x in self.all_targets)
        plan = plans[0] if copies == 1 else _Copies(plans, self.batch)
        self.recorder.plans = {target.call - skipped: plan}
        try:
            output = self.restart.run(lambda: self._forward(copies), start=start, copies=copies)
        finally:
            self.recorder.plans = {}
        parts = [part(output, self.batch, n, copies) for n in range(copies)]
        return [float(self._metric_of(x) - self.clean_metric) for x in parts]

    def gradient(self) -> list[list[float]]:
        """Return the estimate of every effect: the gradient by a head's output times the change of that output."""
        if self.metric.flat:
            raise ValueError(
                f"importance: the gradient of the {self.metric.name} is 0 where nothing is edited, so it cannot "
                "estimate anything; use method='exact', or the metric 'loss', LogitDifference(a, b) or 'logprob'"
            )
        every = self.all_targets
        edits = [[part for head in range(target.heads) for part in self.edit(head).parts()] for target in every]
        tangent = _Tangent(lambda n: LayerEdits(every[n].layer, edits[n], every[n].heads))
        self.recorder.plans, self.recorder.calls = {-1: tangent}, 0
        try:
            value = self._metric_of(self.restart.run(lambda: self._forward(1)))
        finally:
            self.recorder.plans = {}
        if not value.requires_grad:
            raise ValueError("importance: no gradient flows from the metric to the heads; use method='exact'")
        gradients = torch.autograd.grad(value, tangent.outs, allow_unused=True)
        effects = []
        for target in self.targets:
            gradient, change = gradients[target.call], tangent.changes[target.call]
            one = torch.zeros(target.heads) if gradient is None else (gradient * change).sum((0, 2, 3))
            effects.append([float(one.sum())] if self.by == "layer" else one.tolist())
        return effects

    def rows(self, exact: list[list[float]] | None, estimate: list[list[float]] | None) -> list[dict[str, Any]]:
        """Return a dict for each head or layer."""
        rows = []
        for n, target in enumerate(self.targets):
            for h in range(1 if self.by == "layer" else target.heads):
                row: dict[str, Any] = {"module": target.layer.module, "stack": target.stack, "kind": target.kind}
                row |= {"layer": target.layer.number, "head": None if self.by == "layer" else h}
                row["effect"] = (estimate if exact is None else exact)[n][h]  # type: ignore[index]
                if exact is not None and estimate is not None:
                    row["estimate"] = estimate[n][h]
                rows.append(row)
        return rows

    def _forward(self, copies: int) -> Any:
        args = tuple(repeat(x, self.batch, copies) for x in self.args)
        return self.model(*args, **{name: repeat(x, self.batch, copies) for name, x in self.kwargs.items()})

    def _metric_of(self, output: Any) -> Tensor:
        return self.metric(output, self.clean if self.clean is not None else output, self.inputs)
