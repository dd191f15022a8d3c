"""``weights`` over several processes: the attention matrix of a sequence of which each holds a part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limelight.backends import Normalisers, Statistic, grouped_matmul, masked_logits, weights_of
from limelight.core.checks import reject_options
from limelight.core.masks import Mask
from limelight.core.problem import AttentionOptions, AttentionSpec, batched, spec_of
from limelight.matrix.base import Weights
from limelight.matrix.statistics.cover import Cover
from limelight.matrix.statistics.transposed import TransposedMatmul
from limelight.matrix.transposed import Transposed
from limelight.parallel import gathered, statistics
from limelight.parallel.agreement import agree
from limelight.parallel.collectives import place_rows, sum_over, total
from limelight.parallel.layouts import Layout, positions_of, unshard
from limelight.parallel.partials import KEYS, WHOLE
from limelight.parallel.ring_attention import attend, ring_forward
from limelight.parallel.shards import Shards

if TYPE_CHECKING:
    from typing_extensions import Unpack

_GATHERED = 2**22  # elements of keys that are gathered at a time for pairs of a query and a key
_COARSE = 2.0**10  # beyond this, a log-sum-exp in float32 is too inexact to compute weights from it


def weights(
    q: Tensor,
    k: Tensor,
    *,
    group: Any = None,
    layout: Layout | None = None,
    key_layout: Layout | None = None,
    **options: Unpack[AttentionOptions],
) -> ParallelWeights:
    """``softmax((softcap(scale · q kᵀ) + bias) / temperature)`` of queries and keys that several processes share.

    The arguments are those of ``limelight.parallel.attention``. Every process makes the same calls on the result.
    ``A @ v``, ``logsumexp``, ``entropy``, ``mass``, ``distance``, ``max``, ``cover`` and ``top`` are of the process's
    own queries, ``received`` and ``A.T @ u`` of its own keys; ``profile``, ``pool``, ``similarity`` and parts ``A[…]``
    are whole on every process. Indices of queries and keys count the whole sequence. ``A.whole()`` gives
    every process all results in full.
    """
    spec = spec_of("parallel.weights()", options)
    shards = Shards("parallel.weights", q, k, None, spec, group=group, layout=layout, key_layout=key_layout)
    return ParallelWeights(shards)


class ParallelWeights(Weights):
    """The attention matrix of a sequence that several processes share; made by ``limelight.parallel.weights``.

    It has the methods of ``limelight.Weights``, which every process calls in the same order.
    """

    __slots__ = ("_is_whole", "_kept", "_shards")

    def __init__(self, shards: Shards, whole: bool = False) -> None:
        self._shards, self._is_whole = shards, whole
        self._kept: tuple[Normalisers, list[int]] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """``(…, heads, queries, keys)`` of the whole matrix."""
        return self._shards.problem.shape

    @property
    def own_shape(self) -> tuple[int, ...]:
        """``(…, heads, queries, keys)`` that this process holds."""
        return (*self.shape[:-2], self._shards.q.shape[2], self._shards.k.shape[2])

    @property
    def dtype(self) -> torch.dtype:
        """The accumulation dtype."""
        return self._shards.problem.compute_dtype

    @property
    def device(self) -> torch.device:
        """The device of queries and keys."""
        return self._shards.q.device

    @property
    def mask(self) -> Mask | None:
        """The keys that a query may attend to, in the whole sequence; None for all."""
        return self._shards.problem.mask

    def whole(self) -> ParallelWeights:
        """Return the same matrix with statistics of all queries and keys on every process; products are unchanged."""
        found = ParallelWeights(self._shards, whole=True)
        found._kept = self._kept
        return found

    def changed(self, **options: Any) -> ParallelWeights:
        """The same queries and keys with other options of ``weights``."""
        shards = self._shards
        if unknown := options.keys() - set(AttentionSpec._fields):
            reject_options("changed()", unknown, AttentionSpec._fields)
        q, k = (shards.with_lead(x) for x in (shards.q, shards.k))
        return self._rebuilt(q, k, shards.problem.spec._replace(**options))

    def batched(self) -> ParallelWeights:
        """The same matrix with exactly one batch axis."""
        if len(self.shape) == 4:
            return self
        return self._rebuilt(self._shards.q, self._shards.k, self._shards.problem.spec)

    def _rebuilt(self, q: Tensor, k: Tensor, spec: AttentionSpec) -> ParallelWeights:
        """The weights of the same processes and layouts."""
        shards = self._shards
        again = Shards(
            "parallel.weights",
            q,
            k,
            None,
            spec,
            group=shards.processes,
            layout=shards.layout,
            key_layout=shards.key_layout,
        )
        return ParallelWeights(again, self._is_whole)

    @property
    def T(self) -> Transposed:
        """``Aᵀ``, for products from the own queries back to the own keys."""
        return _ParallelTransposed(self)

    def __matmul__(self, v: Tensor) -> Tensor:
        """Attention of the own queries: ``A v`` for the own values ``v``."""
        shards = self._shards
        failed = None
        try:
            v = shards.local.check_values(v)
        except (TypeError, ValueError) as error:
            failed = error
        same = {} if failed else {"the width of v": v.shape[3], "the type of v": v.dtype}
        agree(shards.processes, "A @ v", same, {}, failed)
        if torch.is_grad_enabled() and (v.requires_grad or self._requires_grad):
            return shards.with_lead(attend(shards, v)[0])
        out, normalisers, _ = ring_forward(shards, v)
        self._keep(normalisers)
        return shards.with_lead(out)

    def logsumexp(self) -> Tensor:
        """``log Σ exp(logits / temperature)`` of each of the own rows; −∞ where nothing is allowed."""
        lse = self._with_lead(self._lse().clone())
        return unshard(lse, self._shards.layout, -1, self._shards.processes) if self._is_whole else lse

    def dense(self) -> Tensor:
        """Return the whole matrix on every process; it has to fit into memory."""
        return self[...]

    def tensors(self) -> list[Tensor]:
        """The tensors that the matrix is made of, to which a gradient may flow."""
        _, _, *learned = self._shards.problem.tensors()
        return [self._shards.q, self._shards.k, *learned]

    def __repr__(self) -> str:
        return self._described()

    def _described(self) -> str:
        own, processes = self.own_shape, self._shards.processes
        held = f"{own[-2]} queries and {own[-1]} keys on rank {processes.rank} of {processes.size}"
        return f"ParallelWeights(shape={self.shape}, {held})"

    def all_tokens(self, x: Tensor, keys: bool = True) -> Tensor:
        """Put together ``x (batch, own length)`` that belongs to the own keys, or queries, of every process."""
        return unshard(x, self._shards.key_layout if keys else self._shards.layout, 1, self._shards.processes)

    @property
    def _requires_grad(self) -> bool:
        return any(x.requires_grad for x in self.tensors())

    def _compute_batched(self, asked: list[Statistic]) -> list[Any]:
        shards = self._shards
        needs_grad = torch.is_grad_enabled() and (
            self._requires_grad or any(x.operand is not None and x.operand.requires_grad for x in asked)
        )
        same = {"statistics": [_identity(x) for x in asked], "gradients": needs_grad}
        known = self._known()
        held = agree(shards.processes, "parallel statistics", same, {"known": known is not None})["known"]
        if needs_grad:
            found = gathered.compute(shards, asked, True)
        else:
            several = [x for x in asked if not isinstance(x, Cover)]
            results, normalisers = statistics.compute(shards, several, known if all(held) else None)
            self._keep(normalisers)
            wide = [x for x in asked if isinstance(x, Cover)]
            with torch.no_grad():
                covers = gathered.compute(shards, wide, False) if wide else []
            found = [(covers if isinstance(x, Cover) else results).pop(0) for x in asked]
        return [self._complete(x, result) for x, result in zip(asked, found, strict=True)]

    def _complete(self, statistic: Statistic, found: Any) -> Any:
        """Put the parts of all processes together in the whole view."""
        if not self._is_whole or type(statistic) in WHOLE or isinstance(statistic, TransposedMatmul):
            return found
        shards = self._shards
        layout = shards.key_layout if type(statistic) in KEYS else shards.layout
        parts = [unshard(x, layout, 2, shards.processes) for x in statistic.flatten(found)]
        return statistic.unflatten(parts)

    def _lse(self) -> Tensor:
        """Return the log-sum-exp of the own rows, ``(B, H, n)``; it is cached unless it needs a gradient."""
        if torch.is_grad_enabled() and self._requires_grad:
            return attend(self._shards, self._shards.k[..., :0])[1]
        known = self._known()
        held = agree(self._shards.processes, "parallel logsumexp", {}, {"known": known is not None})["known"]
        if known is None or not all(held):
            _, known = statistics.compute(self._shards, [], None)
            self._keep(known)
        return known.lse

    def _crop(self, batch: Tensor, heads: Tensor, rows: Tensor, cols: Tensor) -> Tensor:
        shards, p = self._shards, self._shards.problem
        group = p.sizes.Hq // p.sizes.Hkv
        lse = self._lse()
        own, at = _own(rows, positions_of(shards.own_queries).to(rows.device))

        def pick(x: Tensor) -> Tensor:
            return x.expand(*p.sizes[:2], *x.shape[-2:])[batch[:, None], heads]

        q = shards.q[batch[:, None], heads][:, :, at].to(p.compute_dtype)
        if self._is_coarse(lse):
            weights = weights_of(p, shards.q[:, :, at], gathered.all_keys(shards), rows[own], _all(shards.M, rows))[0]
            part = weights[batch[:, None], heads][..., cols]
        else:
            k = self._keys_at(cols)[batch[:, None], heads // group]
            logits, _ = masked_logits(p, grouped_matmul(q, k.mT), rows[own][:, None], cols[None, :], pick)
            row = lse[batch[:, None], heads][:, :, at, None]
            part = torch.exp(logits - torch.where(row == -torch.inf, 0.0, row))
        return total(place_rows(part, own, len(rows), 2), shards.processes)

    def _pairs(self, batch: Tensor, heads: Tensor, i: Tensor, j: Tensor) -> Tensor:
        shards, p = self._shards, self._shards.problem
        group = p.sizes.Hq // p.sizes.Hkv
        many = max(1, _GATHERED // max(1, p.sizes.B * p.sizes.Hkv * p.sizes.D))
        if len(i) > many:
            parts = zip(i.split(many), j.split(many), strict=True)
            return torch.cat([self._pairs(batch, heads, some_i, some_j) for some_i, some_j in parts], -1)
        lse = self._lse()
        if self._is_coarse(lse):
            (rows, at_row), (cols, at_col) = (x.unique(return_inverse=True) for x in (i, j))
            return self._crop(batch, heads, rows, cols)[:, :, at_row, at_col]
        own, at = _own(i, positions_of(shards.own_queries).to(i.device))

        def pick(x: Tensor) -> Tensor:  # (B, H, pairs, 1)
            return x.expand(*p.sizes[:2], *x.shape[-2:])[batch[:, None], heads]

        q = shards.q[batch[:, None], heads][:, :, at].to(p.compute_dtype)
        k = self._keys_at(j)[batch[:, None], heads // group][:, :, own]
        scores = (q * k).sum(-1, keepdim=True)
        logits, _ = masked_logits(p, scores, i[own][:, None], j[own][:, None], pick)
        row = lse[batch[:, None], heads][:, :, at]
        part = torch.exp(logits[..., 0] - torch.where(row == -torch.inf, 0.0, row))
        return total(place_rows(part, own, len(i), 2), shards.processes)

    def _keys_at(self, cols: Tensor) -> Tensor:
        """The keys at some positions, from the processes that hold them, ``(B, Hkv, len(cols), D)``."""
        shards = self._shards
        own, at = _own(cols, positions_of(shards.own_keys).to(cols.device))
        k = shards.k[:, :, at].to(shards.problem.compute_dtype)
        return sum_over(place_rows(k, own, len(cols), 2), shards.processes)

    def _is_coarse(self, lse: Tensor) -> bool:
        coarse = (lse.isfinite() & (lse.abs() > _COARSE)).any()
        return bool(self._shards.processes.max(coarse.detach().int()))

    def _versions(self) -> list[int]:
        return [-1 if x.is_inference() else x._version for x in self.tensors()]

    def _keep(self, found: Normalisers) -> None:
        self._kept = Normalisers(*(x.detach() for x in found)), self._versions()

    def _known(self) -> Normalisers | None:
        return None if self._kept is None or self._kept[1] != self._versions() else self._kept[0]


class _ParallelTransposed(Transposed):
    """``Aᵀ`` for the own queries and keys; for all of them in the whole view."""

    def __matmul__(self, u: Tensor) -> Tensor:
        """``Aᵀ u`` for ``u`` of the own queries, ``(…, heads, own keys, width)``."""
        weights = self.T
        assert isinstance(weights, ParallelWeights)
        shards = weights._shards
        *lead, n, _ = weights.own_shape
        if not isinstance(u, Tensor) or list(u.shape[:-1]) != [*lead, n] or not u.is_floating_point():
            got = f"{u.dtype} {tuple(u.shape)}" if isinstance(u, Tensor) else type(u).__name__
            error = ValueError(f"u {got} does not fit Aᵀ: it must be floats {(*lead, n)}, the own queries, and a width")
            agree(shards.processes, "parallel statistics", {}, {}, error)
        return weights._one(TransposedMatmul(batched(u))).to(u.dtype)


def _own(wanted: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the wanted positions that a process holds, and their places there."""
    if not len(positions):
        return wanted[:0], wanted[:0]
    at = torch.searchsorted(positions, wanted).clamp(max=len(positions) - 1)
    own = (positions[at] == wanted).nonzero().flatten()
    return own, at[own]


def _all(n: int, like: Tensor) -> Tensor:
    return torch.arange(n, device=like.device)


def _identity(x: Statistic) -> tuple[Any, ...]:
    """The identity of a statistic, which every process must share."""
    return x.kernel, repr(x.mask), *(x.numbers() if x.operand is None else x.operand.shape[3:])
