"""Statistics of the weights for autograd: their gradients are added to those of attention, or computed apart."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from limelight.backends import autograd, blocks, native
from limelight.backends.gradients import Normalisers, Term, Wanted
from limelight.backends.shared import SharedBackward
from limelight.backends.statistic import Statistic
from limelight.core.problem import LoweredSpec, Problem, Sizes, problem_from_lowered
from limelight.core.torch_modes import has_subclass, is_traced


def statistics(
    p: Problem, asked: Sequence[Statistic], known: Normalisers | None, shared: SharedBackward | None
) -> tuple[list[Any], Normalisers]:
    """Compute statistics with the kernels, differentiably, and the normalisers of each row."""
    operand = next((x.operand for x in asked if x.operand is not None), None)
    computed = differentiable(asked)
    apply: Any = _Statistics.apply
    *flat, lse, scaled = apply(computed, known, shared, operand, p.q, p.k, *p.lower())
    return unflatten(asked, computed, flat), Normalisers(lse, scaled)


def differentiable(asked: Sequence[Statistic]) -> list[Statistic]:
    """Return the differentiable forms of statistics, with masks that nobody changes before the backward pass."""
    forms = [x.differentiable() for x in asked]
    return [x if x.mask is None else dataclasses.replace(x, mask=copy.deepcopy(x.mask)) for x in forms]  # type: ignore[type-var]


def leaves_of(tensors: Sequence[Any], needed: Sequence[bool]) -> list[Any]:
    """Return tensors by which to differentiate, of which none depends on another one, as k may on q.

    Where gradients are to be differentiated themselves, the leaves still belong to the graph of the given tensors.
    """
    if torch.is_grad_enabled():
        return [x.view_as(x) if wants else x for x, wants in zip(tensors, needed, strict=True)]
    return [x.detach().requires_grad_() if wants else x for x, wants in zip(tensors, needed, strict=True)]


def unflatten(asked: Sequence[Statistic], computed: Sequence[Statistic], flat: list[Tensor]) -> list[Any]:
    """Make results of the tensors of ``computed``, the differentiable forms of what was asked."""
    return [x.of_differentiable(y.unflatten(flat)) for x, y in zip(asked, computed, strict=True)]


class _Statistics(torch.autograd.Function):
    """Statistics computed by the kernels, with the derivative of most of them."""

    @staticmethod
    def forward(
        ctx: Any,
        asked: Sequence[Statistic],
        known: Normalisers | None,
        shared: SharedBackward | None,
        operand: Tensor | None,
        q: Tensor,
        k: Tensor,
        *spec: Any,
    ) -> tuple[Tensor, ...]:
        """Return the results one after the other, and the normalisers, which have no gradient here."""
        lowered = LoweredSpec(*spec)
        results, normalisers = native.statistics(q, k, lowered, Sizes.of(q, k), asked, known)
        flat, kept = flatten(ctx, asked, results, normalisers)
        ctx.asked, ctx.shared = asked, shared
        autograd.save(ctx, (operand, q, k, *spec), (*kept, *normalisers))
        return *flat, *normalisers

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        """Add the gradients of statistics to those of attention, or compute them apart."""
        inputs, (*kept, lse, scaled) = autograd.saved(ctx)
        needed = ctx.needs_input_grad[3:]
        terms, others = split(ctx.asked, kept, gradients)
        found: list[Tensor | None] = [None] * len(inputs)
        if others:
            found = _differentiate_statistics(inputs, needed, others)
        _, needs_q, needs_k, *needs_spec = needed
        wanted = Wanted(*(needs_spec[i] for i in autograd.PLACES))
        if terms and not (ctx.shared is not None and ctx.shared.offer(terms, (needs_q, needs_k, *wanted))):
            _, q, k, *spec = inputs
            dq, dk, _, *learned = native.backward(
                None, None, q, k, None, None, Normalisers(lse, scaled), LoweredSpec(*spec), wanted, terms
            )
            of_spec: list[Tensor | None] = [None] * len(spec)
            for i, x in zip(autograd.PLACES, learned, strict=True):
                of_spec[i] = x
            found = autograd.add_gradients(found, [None, dq, dk, *of_spec])
        return None, None, None, *found


def flatten(
    ctx: Any, asked: Sequence[Statistic], results: Sequence[Any], normalisers: Normalisers
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tensors of results, and those results for whose gradient there are kernels; mark what has none."""
    ctx.set_materialize_grads(False)
    parts = [statistic.flatten(result) for statistic, result in zip(asked, results, strict=True)]
    kept = [x for statistic, part in zip(asked, parts, strict=True) if statistic.has_kernel_gradient for x in part]
    flat = [x for part in parts for x in part]
    ctx.mark_non_differentiable(*normalisers, *(x for x in flat if not x.is_floating_point()))
    return flat, kept


def split(
    asked: Sequence[Statistic], kept: list[Tensor], gradients: Sequence[Tensor | None]
) -> tuple[list[Term], list[tuple[Statistic, Any]]]:
    """Split statistics into those that the kernels differentiate and the others, with the gradients of their results.

    ``kept`` are the results of the statistics for which there are kernels. None of them differentiates a gradient that
    may be differentiated itself.
    """
    remaining: list[Any] = list(gradients)
    by_statistic = [(x, x.unflatten(remaining)) for x in asked]
    by_torch = torch.is_grad_enabled() or is_traced() or has_subclass(*(x for x in gradients if x is not None))
    terms, others = [], []
    for statistic, gradient in by_statistic:
        result = statistic.unflatten(kept) if statistic.has_kernel_gradient else None
        if all(x is None for x in statistic.flatten(gradient)):
            continue
        if result is None or by_torch:
            others.append((statistic, gradient))
        else:
            terms.append(Term(statistic, result, gradient))
    return terms, others


def _differentiate_statistics(
    inputs: Sequence[Any], needed: Sequence[bool], asked: Sequence[tuple[Statistic, Any]]
) -> list[Tensor | None]:
    """Compute statistics again, block by block, in plain torch, and differentiate that, once or twice."""
    leaves = leaves_of(inputs, needed)
    operand, q, k, *spec = leaves
    with torch.enable_grad():  # for a temperature that is learned
        p = problem_from_lowered(q, k, LoweredSpec(*spec))
    return differentiate_blocks(p, operand, leaves, needed, asked)


def differentiate_blocks(
    p: Problem,
    operand: Any,
    inputs: Sequence[Any],
    needed: Sequence[bool],
    asked: Sequence[tuple[Statistic, Any]],
) -> list[Tensor | None]:
    """Differentiate statistics of a problem that plain torch computes, by the inputs that need it."""
    twice = torch.is_grad_enabled()
    statistics = [x if x.operand is None else x.with_operand(operand) for x, _ in asked]
    with torch.enable_grad():
        results = blocks.statistics(p, statistics, True)
    used = [
        (x, g.to(x.dtype))
        for statistic, result, (_, gradient) in zip(statistics, results, asked, strict=True)
        for x, g in zip(statistic.flatten(result), statistic.flatten(gradient), strict=True)
        if g is not None and x.requires_grad
    ]
    leaves = [x for x, w in zip(inputs, needed, strict=True) if w]
    found: list[Tensor | None] = [None] * len(leaves)
    if used:
        outs, cotangents = zip(*used, strict=True)
        found = list(torch.autograd.grad(outs, leaves, cotangents, allow_unused=True, create_graph=twice))
    return [found.pop(0) if w else None for w in needed]
