"""The attention matrix as an object with statistics: the base of the lazy and of the dense one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limelight.backends import Statistic
from limelight.core.masks import Mask
from limelight.core.torch_modes import has_subclass, is_traced
from limelight.matrix.attribution import Attribution
from limelight.matrix.by_value import value_norms
from limelight.matrix.grid import Grid
from limelight.matrix.indexing import check_index, places
from limelight.matrix.observation import Observation
from limelight.matrix.showing import draw_html, draw_small, show
from limelight.matrix.showing_pictures import show_picture
from limelight.matrix.statistics import STATISTICS, cover, distance, entropy, mass, pool, profile, received, similarity
from limelight.matrix.statistics import max as max_statistic
from limelight.matrix.statistics import top as top_statistic
from limelight.matrix.transposed import Transposed

_LARGEST_ARRAY = 2**27  # larger matrices are not turned into a NumPy array implicitly

_HINTS = {
    "sum": "rows sum to 1; received() gives the column sums and mass(mask) the sum over some keys",
    "mean": "pool(rows, cols) gives means of parts, received() / queries that of every column",
    "argmax": "top(1).indices gives the strongest key of each query",
    "topk": "top(k) gives the strongest keys of each query",
    "numpy": "dense().numpy() gives all of it",
    "tolist": "dense().tolist() gives all of it",
}


class Weights:
    """``A = softmax((softcap(scale · q kᵀ) + bias) / temperature)``, a matrix that is never stored.

    Made by ``limelight.weights`` from queries and keys (nothing is computed until a result is asked for), or by
    ``Weights.from_dense`` from a matrix.

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

    __slots__ = ()

    entropy = entropy.entropy
    received = received.received
    top = top_statistic.top
    mass = mass.mass
    distance = distance.distance
    profile = profile.profile
    pool = pool.pool
    similarity = similarity.similarity
    max = max_statistic.max
    cover = cover.cover

    @staticmethod
    def from_dense(matrix: Tensor) -> Weights:
        """Make ``Weights`` backed by a dense ``matrix (…, heads, queries, keys)``.

        >>> import torch, limelight as ll
        >>> ll.Weights.from_dense(torch.eye(4)[None]).entropy()
        tensor([[0., 0., 0., 0.]])
        """
        from limelight.matrix.dense import DenseWeights

        return DenseWeights(matrix)

    @property
    def shape(self) -> tuple[int, ...]:
        """``(…, heads, queries, keys)``."""
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights and their statistics: sums of half precision are made, and kept, in float32."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        """The device of the results."""
        raise NotImplementedError

    @property
    def mask(self) -> Mask | None:
        """The keys that a query may attend to; None for all."""
        raise NotImplementedError

    def changed(self, **options: Any) -> Weights:
        """Return the matrix of the same queries and keys with other options of ``weights``; those not given stay.

        >>> import torch, limelight as ll
        >>> A = ll.weights(torch.eye(2)[None], torch.eye(2)[None])
        >>> bool((A.changed(temperature=2.0).entropy() > A.entropy()).all())
        True
        """
        raise NotImplementedError

    def select(self, batch: int | tuple[int, ...] = 0, head: int | None = None) -> Weights:
        """One batch element, and one head unless that is None, ``(heads or 1, queries, keys)``, as lazy as before.

        >>> import torch, limelight as ll
        >>> A = ll.weights(torch.randn(2, 4, 9, 8), torch.randn(2, 4, 9, 8), mask=ll.Causal())
        >>> A.select(batch=1, head=3).shape
        (1, 9, 9)
        """
        raise NotImplementedError

    def part(
        self, heads: Sequence[int] | None = None, queries: range | None = None, keys: int | None = None
    ) -> Weights:
        """Some heads, consecutive queries and the first ``keys`` keys, of all batch elements, as lazy as before.

        Masks and biases keep the positions that queries and keys have in the whole matrix. The softmax runs over the
        keys that remain.

        >>> import torch, limelight as ll
        >>> A = ll.weights(torch.randn(2, 4, 9, 8), torch.randn(2, 2, 9, 8), mask=ll.Causal())
        >>> A.part([0, 3], range(2, 5), 5).shape
        (2, 2, 3, 5)
        """
        raise NotImplementedError

    def expand(self, batch: int) -> Weights:
        """The matrix of one batch element for each of ``batch`` elements; nothing is copied."""
        raise NotImplementedError

    def restricted(self, mask: Mask) -> Weights:
        """Return the same matrix with a further mask: ``changed(mask=self.mask & mask)``."""
        return self.changed(mask=mask if self.mask is None else self.mask & mask)

    def _place(self, batch: int | tuple[int, ...], head: int | None) -> tuple[int, int | None]:
        """The number of a batch element among all, and of a head, in range."""
        *lead, H, _, _ = self.shape
        at = batch if isinstance(batch, tuple) else (batch,) * len(lead)
        if len(at) != len(lead):
            raise IndexError(f"batch = {batch!r}: give {len(lead)} numbers, one for each batch axis of {self.shape}")
        number = 0
        for axis, (x, n) in enumerate(zip(at, lead, strict=True)):
            number = number * n + check_index(x, n, axis, self.shape)
        return number, None if head is None else check_index(head, H, len(lead), self.shape)

    def batched(self) -> Weights:
        """The same matrix with exactly one batch axis, ``(batch, heads, queries, keys)``."""
        raise NotImplementedError

    def by_value(self, v: Tensor, W_O: Tensor | None = None) -> Weights:
        """``a_ij ‖v_j‖ / Σ_j a_ij ‖v_j‖``: the weights times the norm of the value vector that each moves.

        It is softmax again, with ``temperature · log ‖v_j‖`` added to the logits of key j and without a sink, so it is
        a ``Weights`` with every statistic.

        Args:
            v: the values ``(…, Hkv, keys, width)``.
            W_O: the projection of the output, ``(heads · width, model width)``; if given, ``‖v_j W_O‖`` of each head is
                used. That of an ``nn.Linear`` is ``linear.weight.T``.

        >>> import torch, limelight as ll
        >>> A = ll.weights(torch.zeros(1, 1, 4), torch.zeros(1, 3, 4))
        >>> A.by_value(torch.tensor([[[3.0, 4.0], [0.0, 5.0], [0.0, 0.0]]])).dense()
        tensor([[[0.5000, 0.5000, 0.0000]]])

        """
        *lead, H, _, M = self.shape
        if not isinstance(v, Tensor) or v.ndim != self.ndim or list(v.shape[:-3]) != lead or v.shape[-2] != M:
            got = tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__
            raise ValueError(f"by_value: v {got} does not fit weights {self.shape}: it must be (…, heads, {M}, width)")
        return self._times_columns(value_norms(v, H, W_O))

    def _times_columns(self, factors: Tensor) -> Weights:
        """The matrix times ``factors (B, H, keys)`` of each column, normalised by row."""
        raise NotImplementedError

    def attribution(self, v: Tensor, dout: Tensor) -> Attribution:
        """``A ∘ (dO vᵀ)``: attention times its gradient, for values ``v (…, Hkv, keys, width)``.

        ``dout (…, heads, queries, width)`` is the gradient of a loss by the output ``A v``.

        >>> import torch, limelight as ll
        >>> A = ll.weights(torch.randn(2, 5, 8), torch.randn(2, 5, 8))
        >>> A.attribution(torch.randn(2, 5, 3), torch.randn(2, 5, 3)).received().shape
        torch.Size([2, 5])
        """
        return Attribution(self, v, dout)

    @property
    def T(self) -> Transposed:
        """``Aᵀ``: ``A.T @ u`` takes ``u (…, heads, queries, width)`` back to the keys, ``(…, heads, keys, width)``."""
        return Transposed(self)

    def __matmul__(self, v: Tensor) -> Tensor:
        """Attention: ``A v`` of values ``v (…, Hkv, keys, width)``, ``(…, heads, queries, width)``."""
        raise NotImplementedError

    def logsumexp(self) -> Tensor:
        """``log Σ exp(logits / temperature)`` of each row, ``(…, heads, queries)``; −∞ where nothing is allowed."""
        raise NotImplementedError

    def dense(self) -> Tensor:
        """Return the whole matrix, ``(…, heads, queries, keys)``; it has to fit into memory."""
        raise NotImplementedError

    def __getitem__(self, index: Any) -> Tensor:
        """Return any part of the matrix, exactly: integers, slices and an ellipsis over ``(…, heads, queries, keys)``.

        Two lists at the end are pairs, each a query and a key.

        >>> import torch, limelight as ll
        >>> A = ll.weights(torch.randn(2, 100, 8), torch.randn(2, 100, 8), mask=ll.Causal())
        >>> A[1, 50, 40:60:2].shape
        torch.Size([10])
        >>> A[:, [7, 50], [7, 49]].shape
        torch.Size([2, 2])
        """
        chosen, shape, paired = places(index, self.shape)
        *lead, heads, rows, cols = (torch.tensor(x, dtype=torch.long, device=self.device) for x in chosen)
        batch = torch.arange(self._sizes[0], device=self.device).reshape(self.shape[:-3])
        for axis, at in enumerate(lead):
            batch = batch.index_select(axis, at)
        crop = self._pairs if paired else self._crop
        return crop(batch.reshape(-1), heads, rows, cols).reshape(shape)

    def observe(self, *, reduce: str | None = None, **asked: Any) -> Observation:
        """Compute several statistics in as few passes over the matrix as possible.

        Each is asked for by the name of its method: ``entropy=True``, ``received=True``, ``distance=True``,
        ``similarity=True``, ``max=True``, ``top=k``, ``mass=mask``, ``profile=radius``, ``cover=share`` and
        ``pool=(rows, cols)`` or ``pool=cell`` (the side of a cell), where ``reduce`` is ``"mean"`` or ``"max"``.

        >>> import torch, limelight as ll
        >>> A = ll.weights(torch.randn(2, 100, 8), torch.randn(2, 100, 8))
        >>> seen = A.observe(entropy=True, top=3, pool=(10, 10))
        >>> seen.entropy.shape, seen.top.indices.shape, seen.pool.shape, seen.received
        (torch.Size([2, 100]), torch.Size([2, 100, 3]), torch.Size([2, 10, 10]), None)
        """
        if unknown := asked.keys() - STATISTICS.keys():
            raise TypeError(f"observe: there is no statistic {min(unknown)!r}; there are {', '.join(STATISTICS)}")
        if reduce is not None and asked.get("pool") is not None:
            size = asked["pool"]
            asked["pool"] = (*(tuple(size)[:2] if isinstance(size, (tuple, list)) else (size,)), reduce)
        statistics = {name: STATISTICS[name].asked(self, value) for name, value in asked.items()}
        wanted = {name: statistic for name, statistic in statistics.items() if statistic is not None}
        results = self._compute(list(wanted.values()))
        return Observation(**dict(zip(wanted, results, strict=True)))

    def show(
        self,
        tokens: Sequence[str] | None = None,
        keys: Sequence[str] | None = None,
        *,
        head: int | None = None,
        batch: int | tuple[int, ...] = 0,
        reduce: str = "mean",
        on: Any = "terminal",
        numbers: bool = False,
        image: Any = None,
        grid: Grid | None = None,
        query: int | str | tuple[int, int] | None = None,
        key: int | str | tuple[int, int] | None = None,
    ) -> Any:
        """Draw the matrix as a heatmap, queries down and keys across with tokens on the axes, or over a picture.

        A matrix that is larger than the drawing is pooled, and positions take the place of tokens.

        With an image or a grid, what one query attends to is drawn over the picture, or what attends to one key; where
        neither is given, the first special token (class) is the query, and without one the mean of all queries is
        drawn.

        Args:
            tokens: the names of the queries, and of the keys too where there are as many and ``keys`` is not given.
            keys: the names of the keys.
            head: the head to draw; all of them unless given.
            batch: the batch element.
            reduce: ``"mean"`` or ``"max"``, where it is pooled.
            on: ``"terminal"``, a ``rich`` console, ``"figure"`` (a new figure of matplotlib, which is returned) or the
                axes of one.
            numbers: write the weights into the cells, of up to 24 queries and keys.
            image: the picture whose patches are the keys (or, with ``key``, the queries): a file, one of Pillow, an
                array or a tensor.
            grid: how the patches lie, as ``limelight.lens.grid(model)`` gives it; a square unless given.
            query: the query whose weights are drawn over the picture: a position, a patch ``(row, column)`` or the name
                of a special token of the grid.
            key: the key instead, whose weights from all queries are drawn.

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
        if image is not None or grid is not None:
            return show_picture(self, image, grid, query=query, key=key, head=head, batch=batch, on=on)
        return show(self, tokens, keys, head=head, batch=batch, reduce=reduce, on=on, numbers=numbers)

    def tensors(self) -> list[Tensor]:
        """The tensors that the matrix is made of, to which a gradient may flow."""
        raise NotImplementedError

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        numbers = int(np.prod(self.shape))
        if numbers > _LARGEST_ARRAY:
            raise ValueError(
                f"np.asarray of weights {self.shape} would make {numbers:,} numbers; ask for a part, A[0, 0, :100], "
                "for a picture, A.pool(512, 512), or for A.dense() if that is what you want"
            )
        return np.asarray(self.dense().detach().cpu().numpy(), dtype=dtype)

    def __getattr__(self, name: str) -> Any:
        if name in _HINTS:
            raise AttributeError(f"Weights has no {name}(): {_HINTS[name]}")
        more = "; A.dense() is the matrix as a tensor, where it is small enough" if hasattr(Tensor, name) else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{more}")

    def __repr__(self) -> str:
        return self._described() + ("" if self._is_abstract() else draw_small(self))

    def _repr_html_(self) -> str | None:
        return None if self._is_abstract() else draw_html(self, self._described())

    def _is_abstract(self) -> bool:
        """Return True where tensors hold no numbers to show: while tracing, and for fake or meta tensors."""
        return is_traced() or self.device.type == "meta" or has_subclass(*self.tensors())

    def _described(self) -> str:
        """The constructor-like first line of ``repr``."""
        raise NotImplementedError

    @property
    def _sizes(self) -> tuple[int, int, int, int]:
        """``(B, H, N, M)``, with all batch axes in one."""
        *lead, H, N, M = self.shape
        return int(np.prod(lead)) if lead else 1, H, N, M

    def _crop(self, batch: Tensor, heads: Tensor, rows: Tensor, cols: Tensor) -> Tensor:
        """The weights of some batch elements and heads at every row and column."""
        raise NotImplementedError

    def _pairs(self, batch: Tensor, heads: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The weights at queries ``i`` and keys ``j``, pair by pair: ``(batch, heads, pairs)``."""
        raise NotImplementedError

    def _compute_batched(self, asked: list[Statistic]) -> list[Any]:
        """Compute statistics, with one batch axis."""
        raise NotImplementedError

    def _with_lead(self, x: Tensor) -> Tensor:
        """View ``(B, …)`` with the batch axes of the user's tensors."""
        lead = self.shape[:-3]
        return x if len(lead) == 1 else x.reshape(*lead, *x.shape[1:])

    def _compute(self, asked: Sequence[Statistic]) -> list[Any]:
        """Compute statistics, with the batch axes of the user's tensors."""
        results = []
        for statistic, found in zip(asked, self._compute_batched(list(asked)), strict=True):
            tensors = [x.to(self.dtype) if x.is_floating_point() else x for x in statistic.flatten(found)]
            results.append(statistic.unflatten([self._with_lead(x) for x in tensors]))
        return results

    def _one(self, statistic: Statistic | None) -> Tensor:
        assert statistic is not None
        (found,) = self._compute([statistic])
        assert isinstance(found, Tensor)
        return found
