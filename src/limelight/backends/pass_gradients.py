"""Gradients of statistics of the weights in several passes, as pass_statistics.py computes the statistics themselves.

Statistics give the weights a of a row the gradient d, and the logits of the row get ``a ∘ (d - Σ a d)``. The sums of
whole rows come first: they follow from the results, or are added up over the passes. Then each pass adds its part to
the gradients of its queries, its keys and its bias. The weight on the keys that another mask allows has the same
gradient for all of these keys and none for the others: it is differentiated in the passes of both masks.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from limelight.backends import native, pass_statistics, passes
from limelight.backends.autograd import PLACES, add_gradients, attention
from limelight.backends.gradients import Normalisers, Term, Wanted, sink_gradient, sum_terms, temperature_gradient
from limelight.backends.pass_statistics import parts_of, restricted, rows_at
from limelight.backends.statistic import Statistic, add_at
from limelight.backends.statistic_autograd import (
    differentiable,
    differentiate_blocks,
    flatten,
    leaves_of,
    split,
    unflatten,
)
from limelight.core.masks.passes import Pass
from limelight.core.problem import LoweredSpec, Problem, Sizes


def statistics(p: Problem, asked: Sequence[Statistic], known: Normalisers | None) -> tuple[list[Any], Normalisers]:
    """Compute statistics in passes, differentiably, and the normalisers of each row."""
    operand = next((x.operand for x in asked if x.operand is not None), None)
    computed = differentiable(asked)
    # The mask is lowered again in the backward pass, and its lengths or blocks may have changed by then.
    p = Problem(p.q, p.k, p.spec._replace(mask=copy.deepcopy(p.mask)))
    apply: Any = _Statistics.apply
    *flat, lse, scaled = apply(p, computed, known, operand, p.q, p.k, *_learned(p))
    return unflatten(asked, computed, flat), Normalisers(lse, scaled)


def _learned(p: Problem) -> list[Tensor]:
    """The tensors of biases, sink and temperature, each once."""
    return list({id(x): x for x in p.tensors()[2:]}.values())


def _with_leaves(p: Problem, tensors: Sequence[Tensor]) -> Problem:
    """Return the problem with other tensors in place of q, k and the learned ones."""
    q, k, *learned = tensors
    other = {id(x): y for x, y in zip(_learned(p), learned, strict=True)}
    spec = p.spec._replace(
        bias=copy.deepcopy(p.bias, other),  # where a tensor is known under another name, that is taken
        sink=other.get(id(p.sink), p.sink),
        temperature=other.get(id(p.temperature), p.temperature),
    )
    with torch.enable_grad():
        return Problem(q, k, spec)


class _Statistics(torch.autograd.Function):
    """Statistics computed in passes, with the derivative of most of them."""

    @staticmethod
    def forward(
        ctx: Any,
        p: Problem,
        asked: Sequence[Statistic],
        known: Normalisers | None,
        operand: Tensor | None,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return the results one after the other, and the normalisers, which have no gradient here."""
        results, normalisers = pass_statistics.statistics(p, asked, known)
        flat, kept = flatten(ctx, asked, results, normalisers)
        ctx.p, ctx.asked, ctx.has_operand = p, asked, operand is not None
        ctx.save_for_backward(*tensors, *(() if operand is None else (operand,)), *kept, *normalisers)
        return *flat, *normalisers

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        """Run the kernels of the gradient, and plain torch for statistics that have none."""
        needed = ctx.needs_input_grad[3:]
        saved = list(ctx.saved_tensors)
        tensors, saved = saved[: len(needed) - 1], saved[len(needed) - 1 :]
        operand = saved.pop(0) if ctx.has_operand else None
        *kept, lse, scaled = saved
        terms, others = split(ctx.asked, kept, gradients)
        inputs = operand, *tensors = leaves_of([operand, *tensors], needed)
        p = _with_leaves(ctx.p, tensors)
        found: list[Tensor | None] = [None] * len(inputs)
        if operand is not None and not torch.is_grad_enabled():
            of_products = [gradient for statistic, gradient in others if statistic.operand is not None]
            others = [x for x in others if x[0].operand is None]
            for gradient in of_products:
                found = add_gradients(found, _differentiate_product(p, operand, gradient, inputs, needed))
        if others:
            found = add_gradients(found, differentiate_blocks(p, operand, inputs, needed, others))
        if terms:
            backward = _Backward(p, Normalisers(lse, scaled), terms)
            found = add_gradients(found, [None, *backward.gradients(needed[1:])])
        return None, None, None, *found


def _differentiate_product(
    p: Problem, u: Tensor, gradient: Tensor, inputs: Sequence[Any], needed: Sequence[bool]
) -> list[Tensor | None]:
    """Differentiate ``Aᵀ u``: the sum of ``g ∘ Aᵀ u`` is that of ``u ∘ A g``, which is attention to values g."""
    with torch.enable_grad():
        group = p.sizes.Hq // p.sizes.Hkv  # each head of A has values of its own
        each = p if group == 1 else Problem(p.q, p.k.repeat_interleave(group, 1), p.spec)
        values, found = gradient.to(p.q.dtype), passes.passes_of(each)
        out = _attend(each, values)[0] if found is None else passes.attention(each, values, found, _attend)[0]
    leaves = [x for x, wants in zip(inputs[1:], needed[1:], strict=True) if wants]
    grads: list[Tensor | None] = []
    if leaves:
        grads = list(torch.autograd.grad(out, leaves, u.to(out.dtype), allow_unused=True))
    return [out.detach().to(u.dtype) if needed[0] else None, *(grads.pop(0) if wants else None for wants in needed[1:])]


def _attend(p: Problem, v: Tensor) -> tuple[Tensor, Tensor]:
    return attention(p.q, p.k, v, p.lower())


@dataclass(frozen=True)
class _PartOfStatistic(Statistic):
    """A statistic in one pass; the gradient of its term are the tensors that the kernel takes for the pass."""

    whole: Statistic
    sizes: Sizes  # of the whole

    @property
    def kernel(self) -> str:  # type: ignore[override]
        """The name of its kernel."""
        return self.whole.kernel

    def weighted_gradient(self, gradient: Tensor, result: Tensor, total: Tensor | float) -> None:
        """Return None: the sums of whole rows are known already."""
        return None

    def gradient_tensors(self, gradient: Any, result: Any, sizes: Sizes) -> list[Tensor]:
        tensors: list[Tensor] = gradient
        return tensors

    def gradient_numbers(self, sizes: Sizes) -> list[float]:
        return self.whole.gradient_numbers(self.sizes)

    def in_pass(self, term: Term, x: Pass) -> Term:
        """A term of this statistic with what belongs to a pass."""
        return term._replace(gradient=self.whole.tensors_of_pass(term.gradient, x, self.sizes))


class _Backward:
    """The gradients of a problem from those of statistics, added up pass by pass."""

    def __init__(self, p: Problem, normalisers: Normalisers, terms: Sequence[Term]) -> None:
        self._normalisers, self._dtype = normalisers, p.compute_dtype
        self._p = Problem(p.q.detach(), p.k.detach(), p.spec)
        self._biases = [] if p.bias is None else [x for x in p.bias.tensors() if x.requires_grad]
        self._biases = list({id(x): x for x in self._biases}.values())
        self._dq, self._dk = (torch.zeros(x.shape, dtype=self._dtype) for x in (p.q, p.k))
        self._d_biases: list[Tensor | None] = [None] * len(self._biases)
        self._d_temperature: Tensor | None = None
        self._terms = terms
        # Without the mask, which would become its spans.
        self._plain = Problem(self._p.q, self._p.k, p.spec._replace(mask=None, bias=None)).lower()

    def gradients(self, needed: Sequence[bool]) -> list[Tensor | None]:
        """Return the gradients of q, k and the learned tensors, in the order of the function's inputs."""
        p, normalisers = self._p, self._normalisers
        shares = [x for x in self._terms if x.statistic.mask is not None]
        terms = [
            Term(_PartOfStatistic(y, p.sizes), result, y.gradient_tensors(gradient, result, p.sizes))
            for y, result, gradient in self._terms
            if y.mask is None
        ]
        sums = sum_terms(self._terms, normalisers, self._plain)
        sums = torch.zeros_like(normalisers.lse) if sums is None else sums.to(self._dtype)
        with torch.enable_grad():  # for biases, from which those of the passes are made
            parts = parts_of(p)
            parts_of_shares = [(x.gradient, part) for x in shares for part in parts_of(restricted(p, x.statistic))]
        if any(x.statistic.weighted_gradient(x.gradient, x.result, 1.0) is None for x in self._terms):
            for part, x in parts:
                rows = rows_at(normalisers, x.queries)
                add_at(sums, x.queries, native.row_sums(part.q, part.k, rows, part.lower(), _at_pass(terms, x)))
        for part, x in parts:
            self._add(part, x, -sums, _at_pass(terms, x))
        for gradient, (part, x) in parts_of_shares:
            self._add(part, x, gradient, ())
        return self._results(needed, sums)

    def _add(self, part: Problem, x: Pass, dlse: Tensor, terms: Sequence[Term]) -> None:
        """Add the gradients of one pass; ``dlse`` is given for all rows."""
        with torch.enable_grad():
            lowered = part.lower()
        wanted = Wanted(*(isinstance(y, Tensor) and y.requires_grad for y in (lowered[i] for i in PLACES)))
        dq = self._dq if x.queries is None else torch.zeros(part.q.shape, dtype=self._dtype)
        dk = self._dk if x.keys is None else torch.zeros(part.k.shape, dtype=self._dtype)
        rows = dlse if x.queries is None else dlse.index_select(2, x.queries)
        found = native.backward(
            None,
            rows,
            part.q,
            part.k,
            None,
            None,
            rows_at(self._normalisers, x.queries),
            lowered,
            wanted,
            terms,
            into=(dq, dk, part.k[..., :0]),
        )
        if x.queries is not None:
            add_at(self._dq, x.queries, dq)
        if x.keys is not None:
            add_at(self._dk, x.keys, dk)
        if found.temperature is not None:
            so_far = self._d_temperature
            self._d_temperature = found.temperature if so_far is None else so_far + found.temperature
        self._add_to_biases(lowered, found)

    def _add_to_biases(self, lowered: LoweredSpec, found: Any) -> None:
        """Send the gradients of lowered biases back to the tensors that they are made of."""
        pairs = [(lowered.slopes, found.slopes), (lowered.offsets, found.offsets), (lowered.bias, found.bias)]
        used = [(x, g) for x, g in pairs if x is not None and g is not None]
        if used:
            outputs, gradients = zip(*used, strict=True)
            more = torch.autograd.grad(outputs, self._biases, gradients, allow_unused=True)
            self._d_biases = add_gradients(self._d_biases, more)

    def _results(self, needed: Sequence[bool], sums: Tensor) -> list[Tensor | None]:
        p, plain = self._p, self._plain
        found = {id(x): g for x, g in zip(self._biases, self._d_biases, strict=True)}

        def add(x: Tensor, gradient: Tensor) -> None:
            so_far = found.get(id(x))
            found[id(x)] = gradient if so_far is None else so_far + gradient

        if isinstance(p.temperature, Tensor) and p.temperature.requires_grad:
            so_far = torch.zeros((), dtype=self._dtype) if self._d_temperature is None else self._d_temperature
            add(p.temperature, so_far + temperature_gradient(self._normalisers, sums, torch.zeros(()), plain))
        if p.sink is not None and p.sink.requires_grad:
            add(p.sink, sink_gradient(self._normalisers, sums, plain))
        needs_q, needs_k, *others = needed
        return [
            self._dq.to(p.q.dtype) if needs_q else None,
            self._dk.to(p.k.dtype) if needs_k else None,
            *(found.get(id(x)) if wants else None for x, wants in zip(_learned(p), others, strict=True)),
        ]


def _at_pass(terms: Sequence[Term], x: Pass) -> list[Term]:
    """Terms with what belongs to a pass."""
    return [term.statistic.in_pass(term, x) for term in terms]  # type: ignore[attr-defined]
