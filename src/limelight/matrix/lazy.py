"""The attention matrix as an object that is never stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from limelight.backends import autograd, blocks, choose, native, run
from limelight.backends.statistics import (
    REDUCE,
    Distance,
    Entropy,
    Mass,
    Observation,
    Pool,
    Profile,
    Question,
    Received,
    Sent,
    Similarity,
    Strongest,
    Top,
)
from limelight.core.masks import Mask
from limelight.core.problem import DTYPES, Problem, batched, check_count, check_lead
from limelight.core.reference import cooled, logits_of, steps, to_masked
from limelight.core.tracing import stands_for_others, transformed
from limelight.matrix.indexing import places
from limelight.viz.heatmaps import drawn, show

_PAIRS = 2**22  # numbers of q and k that pairs gather at a time
_COARSE = 2.0**10


def _coarse(lse: Tensor) -> bool:
    """Whether a log-sum-exp of float32 has too few digits to make weights from it."""
    return not transformed() and bool((lse.isfinite() & (lse.abs() > _COARSE)).any())


class Weights:
    """``A = softmax((softcap(scale · q kᵀ) + bias) / temperature)``, which nobody stores.

    Made by ``limelight.weights``; nothing is computed until it is asked something.

    >>> import torch, limelight as ll
    >>> q, k, v = torch.zeros(1, 5, 8), 4 * torch.eye(7, 8)[None], torch.randn(1, 7, 4)
    >>> q[0, :, :5] = torch.eye(5)
    >>> A = ll.weights(q, k, mask=ll.Causal())
    >>> A
    Weights(shape=(1, 5, 7), dtype=float32, mask=Causal())
    A[0]
    ██░░░░
    ░░▓▓░░░░
    ░░░░▓▓░░░░
    ░░░░░░▓▓░░░░
    ░░░░░░░░▒▒░░░░
    >>> torch.allclose(A @ v, A.dense() @ v, atol=1e-6)
    True
    """

    __slots__ = ("_lse", "_problem")

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._lse: tuple[Tensor, list[int]] | None = None

    @staticmethod
    def from_dense(matrix: Tensor) -> Weights:
        """The same questions for a matrix ``(…, heads, queries, keys)`` that somebody already has.

        >>> import torch, limelight as ll
        >>> ll.Weights.from_dense(torch.eye(4)[None]).entropy()
        tensor([[0., 0., 0., 0.]])
        """
        from limelight.matrix.dense import GivenWeights

        return GivenWeights(matrix)

    @property
    def shape(self) -> tuple[int, ...]:
        """``(…, heads, queries, keys)``."""
        return self._problem.shape

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights and of what is asked of them: sums of half precision are made, and kept, in float32."""
        return self._answer_dtype

    @property
    def device(self) -> torch.device:
        """Where the answers are."""
        return self._device

    @property
    def mask(self) -> Mask | None:
        """Which keys a query may attend to; all where None."""
        return self._problem.mask

    def changed(self, **options: Any) -> Weights:
        """The same queries and keys with other options of ``weights``.

        >>> import torch, limelight as ll
        >>> A = ll.weights(torch.eye(2)[None], torch.eye(2)[None])
        >>> bool((A.changed(temperature=2.0).entropy() > A.entropy()).all())
        True
        """
        p = self._problem
        known = {name: getattr(p, name) for name in ("mask", "bias", "scale", "softcap", "sink", "temperature")}
        if wrong := options.keys() - known.keys():
            raise TypeError(f"changed: there is no option {sorted(wrong)[0]!r}; there are {', '.join(known)}")
        lead = self.shape[:-3]
        q, k = (x.reshape(*lead, *x.shape[1:]) if len(lead) != 1 else x for x in (p.q, p.k))
        return Weights(Problem(q, k, **{**known, **options}))

    @property
    def T(self) -> Transposed:
        """``Aᵀ``, for products with what is sent back from queries to keys."""
        return Transposed(self)

    def __matmul__(self, v: Tensor) -> Tensor:
        """Attention: ``A v`` in one streaming pass, which leaves what normalises the rows to later questions."""
        p = self._problem
        v = p.check_values(v)
        learns = torch.is_grad_enabled() and (p.requires_grad or v.requires_grad)
        if learns or not self._native() or stands_for_others(v):
            out, _ = run(p, v)
        else:
            out, known = native.forward(p.q, p.k, v, p.lower(), p.sizes, want_lse=True)
            assert known is not None
            self._keep(known)
        return self._led(out)

    def logsumexp(self) -> Tensor:
        """``log Σ exp(logits / temperature)`` of each row, ``(…, heads, queries)``; −∞ where nothing is allowed."""
        return self._led(self._normalisers().clone())

    def dense(self) -> Tensor:
        """All of it, ``(…, heads, queries, keys)``, where it is small enough to be held."""
        return self._led(steps(self._problem, None).weights)

    def __getitem__(self, index: Any) -> Tensor:
        """Any part of it, exactly: integers, slices and an ellipsis over ``(…, heads, queries, keys)``.

        Two lists at the end are pairs, each a query and a key.

        >>> import torch, limelight as ll
        >>> A = ll.weights(torch.randn(2, 100, 8), torch.randn(2, 100, 8), mask=ll.Causal())
        >>> A[1, 50, 40:60:2].shape
        torch.Size([10])
        >>> A[:, [7, 50], [7, 49]].shape
        torch.Size([2, 2])
        """
        chosen, shape, paired = places(index, self.shape)
        *lead, heads, rows, cols = (torch.tensor(x, dtype=torch.long, device=self._device) for x in chosen)
        B = self._sizes[0]
        batch = torch.arange(B, device=self._device).reshape(self.shape[:-3])
        for axis, at in enumerate(lead):
            batch = batch.index_select(axis, at)
        crop = self._pairs if paired else self._crop
        return crop(batch.reshape(-1), heads, rows, cols).reshape(shape)

    def entropy(self) -> Tensor:
        """``-Σ a log a`` of each row, in nats: how spread out each query's attention is, ``(…, heads, queries)``."""
        return self._one(Entropy())

    def received(self) -> Tensor:
        """``Σ a`` of each column: how much attention each key gets, ``(…, heads, keys)``."""
        return self._one(Received())

    def top(self, k: int) -> Top:
        """Each query's ``k`` strongest keys, ties by the lower: ``values`` and ``indices``, ``(…, heads, queries, k)``.

        A query that may attend to fewer keys has others after them, with a weight of 0.
        """
        (top,) = self._ask([self._strongest(k)])
        assert isinstance(top, Top)
        return top

    def mass(self, mask: Mask) -> Tensor:
        """Each query's share on the keys that a mask allows, ``(…, heads, queries)``.

        >>> import torch, limelight as ll
        >>> A = ll.weights(torch.zeros(1, 4, 8), torch.zeros(1, 4, 8))
        >>> A.mass(ll.First(1))
        tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
        """
        return self._one(self._mass(mask))

    def distance(self) -> Tensor:
        """``Σ a · |position - key|`` of each row: how far away a query looks, ``(…, heads, queries)``."""
        return self._one(Distance())

    def profile(self, radius: int) -> Tensor:
        """The mean weight at each ``key - position`` from ``-radius`` to ``radius``, ``(…, heads, 2·radius + 1)``."""
        return self._one(Profile(check_count("profile", "radius", radius, 0)))

    def pool(self, rows: int, cols: int, reduce: str = "mean") -> Tensor:
        """A picture of it, ``(…, heads, rows, cols)``: each cell the mean or max of the weights that it covers."""
        return self._one(_pool((rows, cols), reduce))

    def similarity(self) -> Tensor:
        """The cosine between the matrices of every two heads, ``(…, heads, heads)``."""
        return self._one(Similarity())

    def observe(
        self,
        *,
        entropy: bool = False,
        received: bool = False,
        top: int | None = None,
        mass: Mask | None = None,
        distance: bool = False,
        profile: int | None = None,
        pool: tuple[int, int] | None = None,
        reduce: str = "mean",
        similarity: bool = False,
    ) -> Observation:
        """Several of the questions above in as few passes as they need.

        >>> import torch, limelight as ll
        >>> A = ll.weights(torch.randn(2, 100, 8), torch.randn(2, 100, 8))
        >>> seen = A.observe(entropy=True, top=3, pool=(10, 10))
        >>> seen.entropy.shape, seen.top.indices.shape, seen.pool.shape, seen.received
        (torch.Size([2, 100]), torch.Size([2, 100, 3]), torch.Size([2, 10, 10]), None)
        """
        asked: dict[str, Question] = {}
        if entropy:
            asked["entropy"] = Entropy()
        if received:
            asked["received"] = Received()
        if top is not None:
            asked["top"] = self._strongest(top)
        if mass is not None:
            asked["mass"] = self._mass(mask=mass)
        if distance:
            asked["distance"] = Distance()
        if profile is not None:
            asked["profile"] = Profile(check_count("profile", "radius", profile, 0))
        if pool is not None:
            asked["pool"] = _pool(pool, reduce)
        if similarity:
            asked["similarity"] = Similarity()
        return Observation(**dict(zip(asked, self._ask(list(asked.values())), strict=True)))

    def show(
        self,
        tokens: Sequence[str] | None = None,
        keys: Sequence[str] | None = None,
        *,
        head: int | None = None,
        batch: int | tuple[int, ...] = 0,
        reduce: str = "mean",
        on: Any = "terminal",
    ) -> Any:
        """Draws it as a heatmap, queries down and keys across, with tokens on the axes.

        A matrix that is larger than the drawing is pooled, and positions take the place of tokens.

        Args:
            tokens: what the queries are called, and the keys too where there are as many and ``keys`` is not given.
            keys: what the keys are called.
            head: which one; all of them unless given.
            batch: which batch element.
            reduce: ``"mean"`` or ``"max"``, where it is pooled.
            on: ``"terminal"``, a ``rich`` console, ``"figure"`` (a new figure of matplotlib, which is returned) or the
                axes of one.

        >>> import torch, limelight as ll
        >>> A = ll.weights(2 * torch.eye(3)[None], torch.eye(3)[None], mask=ll.Causal())
        >>> A.show(["the", "cat", "sat"])
        head 0
            t c s
            h a a
            e t t
        the ██
        cat ░░▓▓
        sat ░░░░▒▒
            █ 1
        <BLANKLINE>

        """
        return show(self, tokens, keys, head, batch, reduce, on)

    def __repr__(self) -> str:
        unknown = transformed() or self._device.type == "meta" or stands_for_others(*self.tensors())
        return self._described() + ("" if unknown else drawn(self))

    def tensors(self) -> list[Tensor]:
        """What it is made of, and a gradient may flow to."""
        return self._problem.tensors()

    def _described(self) -> str:
        p = self._problem
        parts = [f"shape={self.shape}", f"dtype={str(p.q.dtype).removeprefix('torch.')}"]
        parts += [f"{name}={value!r}" for name, value in (("mask", p.mask), ("bias", p.bias)) if value is not None]
        if p.softcap is not None:
            parts.append(f"softcap={p.softcap:g}")
        if p.sink is not None:
            parts.append("sink")
        if not isinstance(p.temperature, float) or p.temperature != 1.0:
            cold = p.temperature.detach() if isinstance(p.temperature, Tensor) else p.temperature
            parts.append(f"temperature={float(cold):g}")
        return f"Weights({', '.join(parts)})"

    @property
    def _sizes(self) -> tuple[int, int, int, int]:
        B, H, _, N, M, _ = self._problem.sizes
        return B, H, N, M

    @property
    def _device(self) -> torch.device:
        return self._problem.q.device

    def _led(self, x: Tensor) -> Tensor:
        """``(B, …)`` with the batch axes that the tensors came with."""
        lead = self.shape[:-3]
        return x if len(lead) == 1 else x.reshape(*lead, *x.shape[1:])

    def _normalisers(self) -> Tensor:
        """The log-sum-exp of each row, kept unless a gradient belongs to it."""
        p = self._problem
        if not (torch.is_grad_enabled() and p.requires_grad) and self._native():
            self._answers([])
            known = self._known()
            assert known is not None
            return known[0]
        _, lse = run(p, p.k[..., :0], lse=True)
        assert lse is not None
        return lse

    def _crop(self, batch: Tensor, heads: Tensor, rows: Tensor, cols: Tensor) -> Tensor:
        p = self._problem
        _, H, Hkv, _, _, _ = p.sizes

        def pick(x: Tensor) -> Tensor:
            return x[batch[:, None], heads]

        q = pick(p.q)[:, :, rows].to(p.compute_dtype)
        k = p.k[batch[:, None], heads // (H // Hkv)][:, :, cols].to(p.compute_dtype)
        lse = pick(self._normalisers())[:, :, rows, None]
        if _coarse(lse):
            return pick(steps(p, None).weights)[:, :, rows][..., cols]
        masked = to_masked(p, q, k, rows, cols, pick)[4]
        return torch.exp(cooled(masked, p.temperature) - torch.where(lse == -torch.inf, 0.0, lse))

    def _pairs(self, batch: Tensor, heads: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The weights at queries ``i`` and keys ``j``, side by side: ``(batch, heads, pairs)``."""
        p = self._problem
        _, H, Hkv, _, _, _ = p.sizes
        many = max(1, _PAIRS // max(1, len(batch) * len(heads) * p.q.shape[3]))
        if len(i) > many:
            parts = zip(i.split(many), j.split(many), strict=True)
            return torch.cat([self._pairs(batch, heads, *part) for part in parts], -1)

        def pick(x: Tensor) -> Tensor:  # (B, H, pairs, 1)
            return x.expand(*p.sizes[:2], *x.shape[-2:])[batch[:, None], heads]

        lse = self._normalisers()[batch[:, None], heads][:, :, i]
        if _coarse(lse):
            (rows, at_row), (cols, at_col) = (x.unique(return_inverse=True) for x in (i, j))
            return self._crop(batch, heads, rows, cols)[:, :, at_row, at_col]
        q = p.q[batch[:, None], heads][:, :, i].to(p.compute_dtype)
        k = p.k[batch[:, None], heads // (H // Hkv)][:, :, j].to(p.compute_dtype)
        logits = logits_of(p, (q * k).sum(-1, keepdim=True), i[:, None], j[:, None], pick)[-2]
        return torch.exp(cooled(logits, p.temperature)[..., 0] - torch.where(lse == -torch.inf, 0.0, lse))

    def _one(self, question: Question) -> Tensor:
        (answer,) = self._ask([question])
        assert isinstance(answer, Tensor)
        return answer

    def _ask(self, questions: list[Question]) -> list[Any]:
        """The answers, with the batch axes that the tensors came with."""

        def led(x: Any) -> Any:
            return self._led(x) if isinstance(x, Tensor) else Top(led(x.values.to(self._answer_dtype)), led(x.indices))

        return [led(x) for x in self._answers(questions)]

    def _answers(self, questions: list[Question]) -> list[Any]:
        p = self._problem
        u = next((x.u for x in questions if isinstance(x, Sent)), p.q)
        learns = torch.is_grad_enabled() and (p.requires_grad or u.requires_grad)
        if not self._native() or stands_for_others(u):
            return blocks.ask(p, questions, learns)
        known = self._known()
        if known is not None and not questions:
            return []
        if learns:
            answers, lse = autograd.ask(p, questions, known)
        else:
            answers, lse = native.ask(p.q, p.k, p.lower(), p.sizes, questions, known)
        self._keep(lse)
        return answers

    def _native(self) -> bool:
        """Whether the kernels can be asked."""
        p = self._problem
        return not (transformed() or stands_for_others(p.q, p.k) or 0 in self._sizes) and choose(p).name == "native"

    def _versions(self) -> list[int]:
        """Counts of the changes that the tensors have seen; those of inference mode are not counted."""
        return [-1 if x.is_inference() else x._version for x in self._problem.tensors()]

    def _keep(self, lse: Tensor) -> None:
        self._lse = lse.detach(), self._versions()

    def _known(self) -> Tensor | None:
        """What normalises each row, ``(3, B, H, N)``, if it has been found for the tensors as they are."""
        if self._lse is None or self._lse[1] != self._versions():
            return None
        return self._lse[0].clone() if self._lse[0].is_inference() else self._lse[0]

    def _strongest(self, k: int) -> Strongest:
        return Strongest(check_count("top", "k", k, 1, self.shape[-1]))

    @property
    def _answer_dtype(self) -> torch.dtype:
        return self._problem.compute_dtype

    def _mass(self, mask: Any) -> Mass:
        if not isinstance(mask, Mask):
            hint = "wrap the tensor as Dense(tensor)" if isinstance(mask, Tensor) else f"not {type(mask).__name__}"
            raise TypeError(f"mass: give a mask such as First(1), {hint}")
        check_lead(mask, self._sizes)
        return Mass(mask)


class Transposed:
    """``Aᵀ``, which is not stored either."""

    __slots__ = ("T",)

    def __init__(self, weights: Weights) -> None:
        self.T = weights

    @property
    def shape(self) -> tuple[int, ...]:
        """``(…, heads, keys, queries)``."""
        *lead, N, M = self.T.shape
        return (*lead, M, N)

    def __matmul__(self, u: Tensor) -> Tensor:
        """``Aᵀ u``: what is sent back from queries to keys, ``(…, heads, keys, width)``."""
        *lead, N, _ = self.T.shape
        if isinstance(u, Tensor) and u.dtype not in DTYPES:
            raise TypeError(f"u is {u.dtype}; it must be floats, such as u.float()")
        if not isinstance(u, Tensor) or list(u.shape[:-1]) != [*lead, N]:
            got = tuple(u.shape) if isinstance(u, Tensor) else type(u).__name__
            raise ValueError(f"u {got} does not fit Aᵀ {self.shape}: it must be {(*lead, N)} and a width")
        return self.T._one(Sent(batched(u))).to(u.dtype)

    def __repr__(self) -> str:
        return f"{self.T._described()}.T"


def _pool(shape: Any, reduce: str) -> Pool:
    try:
        rows, cols = shape
    except (TypeError, ValueError):
        raise TypeError(f"pool: give (rows, cols), not {shape!r}") from None
    if reduce not in REDUCE:
        raise ValueError(f"pool: reduce = {reduce!r}; there are 'mean' and 'max'")
    return Pool(check_count("pool", "rows", rows, 1), check_count("pool", "cols", cols, 1), reduce)
