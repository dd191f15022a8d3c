"""The measures of the head report for every single query of a call, before any mean is taken."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from limelight.core.masks import Dense, Window
from limelight.lens.heads_table import NEAR
from limelight.lens.record import Call
from limelight.lens.report import attends_to_itself, first_visible, is_separator, occurrences, visible_keys


def measures_by_token(call: Call, tokens: Sequence[str] | None = None) -> dict[str, Tensor]:
    """Return the measures of ``lens.report`` of one text, each ``(heads, queries)``; NaN where one has no meaning.

    ``similarity`` is left out: it compares whole heads, not single queries.
    """
    A = call.weights.batched()
    _, _, N, M = A.shape
    own = call.kind == "self"
    real = attends_to_itself(A.mask, N, M).expand(1, N) if own else torch.ones(1, N, dtype=torch.bool)
    possible = visible_keys(A.mask, N, M).expand(1, N).double().clamp(min=1).log()
    with torch.no_grad():
        seen = A.observe(entropy=True, distance=own)
        found = {"entropy": seen.entropy[0].double()}
        found["spread"] = torch.where(possible > 0, found["entropy"] / possible.clamp(min=1e-30), 0.0)
        first = int(first_visible(A.mask, N, M, real)[0])
        found["first"] = A[0, :, :, first : first + 1][..., 0].double()
        if tokens is not None:
            marks = torch.tensor([is_separator(str(x)) for x in tokens] + [False] * (M - len(tokens)))
            found["separators"] = A.mass(Dense(marks[None]))[0].double()
        if own:
            found["distance"] = seen.distance[0].double()
            found["near"] = A.mass(Window(NEAR))[0].double()
            query = torch.arange(N)
            for name, step in (("self", 0), ("previous", -1), ("next", 1)):
                key = query + (M - N) + step
                there = (key >= 0) & (key < M)
                found[name] = torch.zeros(A.shape[1], N, dtype=torch.double)
                found[name][:, there] = A[0, :, query[there], key[there]].double()
            if call.ids is not None:
                found |= _repeats(call, real)
    return {name: torch.where(real, x, torch.nan) for name, x in found.items()}


def _repeats(call: Call, real: Tensor) -> dict[str, Tensor]:
    """Return the weight of each token on its other occurrences, and on the tokens that followed earlier ones."""
    A = call.weights.batched()
    _, H, N, M = A.shape
    assert call.ids is not None
    keys = torch.nn.functional.pad(real[0], (M - N, 0), value=True)
    later, earlier = occurrences(call.ids[0].cpu(), keys.cpu())
    both = call.stack == "encoder"
    i, j = (torch.cat([later, earlier]), torch.cat([earlier, later])) if both else (later, earlier)
    follows = earlier + 1 < later
    pairs = {"duplicate": (i, j), "induction": (later[follows], earlier[follows] + 1)}
    found = {}
    for name, (queries, at) in pairs.items():
        row = queries - (M - N)
        row, at = row[row >= 0], at[row >= 0]
        sums = torch.zeros(H, N, dtype=torch.double)
        counts = torch.zeros(N)
        if len(row):
            sums.index_add_(1, row, A[0, :, row, at].double())
            counts.index_add_(0, row, torch.ones(len(row)))
        found[name] = torch.where(counts > 0, sums, torch.nan)
    return found
