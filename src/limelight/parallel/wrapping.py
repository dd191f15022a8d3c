"""``sequence``: runs ordinary layers and models on shards of a long text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from limelight.core.masks import Mask
from limelight.core.masks.base import Lowered
from limelight.nn import Decoder, Encoder, MultiHeadAttention
from limelight.nn.positions import XL, Positions
from limelight.parallel.group import Processes
from limelight.parallel.layouts import Contiguous, Layout, Run
from limelight.parallel.matrix import ParallelWeights, weights
from limelight.parallel.ring_attention import attention


class Sequence(nn.Module):
    """A model whose tokens are spread over processes; the arguments are those of ``limelight.parallel.sequence``."""

    def __init__(self, model: nn.Module, group: Any = None, layout: Layout | None = None) -> None:
        super().__init__()
        if not any(isinstance(x, MultiHeadAttention) for x in model.modules()):
            raise ValueError(f"parallel.sequence: {type(model).__name__} is not made of limelight's layers")
        if any(isinstance(x, XL) for x in model.modules()):
            raise ValueError("parallel.sequence: the positions XL have a bias as large as the weights; choose others")
        self.model = model
        self._processes, self._layout = Processes.of(group), layout or Contiguous()
        # A parameter gets the gradient of the tokens of all processes, the same on each.
        self._hooks = [p.register_hook(self._summed) for p in model.parameters() if p.requires_grad]

    def _summed(self, gradient: Tensor) -> Tensor:
        return self._processes.sum(gradient)

    def close(self) -> None:
        """Stop summing the gradients of the model's parameters over processes."""
        for hook in self._hooks:
            hook.remove()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model with this process's shards of the tokens; masks speak of the whole text."""
        if kwargs.get("cache") is not None:
            raise ValueError("parallel.sequence: a cache holds one process's tokens; decode with parallel.SpreadCache")
        with ExitStack() as stack:
            for module in self.model.modules():
                if isinstance(module, MultiHeadAttention):
                    stack.enter_context(_replaced(module, compute_attention=self._attend, make_weights=self._weights))
                elif isinstance(module, Positions) and type(module) is not Positions:
                    stack.enter_context(_replaced(module, embed=self._embed(module), place=self._place(module)))
                elif isinstance(module, (Encoder, Decoder)):
                    stack.enter_context(self._whole_text_masks(module))
            return self.model(*args, **kwargs)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return attention(q, k, v, **options, group=self._processes, layout=self._layout)

    def _weights(self, q: Tensor, k: Tensor, **options: Any) -> ParallelWeights:
        return weights(q, k, **options, group=self._processes, layout=self._layout).whole()

    def _lengths(self, *own: int) -> list[list[int]]:
        """The numbers of tokens of all processes, for each of this process's numbers."""
        every = self._processes.gather(torch.tensor(own))
        return [[int(n) for n in column] for column in every.unbind(1)]

    def _runs(self, n: int) -> list[Run]:
        """The positions of this process's tokens."""
        return self._layout.runs(self._lengths(n)[0])[self._processes.rank]

    def _embed(self, positions: Positions) -> Callable[..., Tensor]:
        embed = positions.embed

        def embed_runs(x: Tensor, first: int | Tensor = 0) -> Tensor:
            runs = self._runs(x.shape[1])
            parts = x.split([run.length for run in runs], 1) if runs else [x]
            starts = [run.begin for run in runs] or [0]
            return torch.cat([embed(part, first + start) for part, start in zip(parts, starts, strict=True)], 1)

        return embed_runs

    def _place(self, positions: Positions) -> Callable[..., Any]:
        place = positions.place

        def place_runs(q: Tensor, k: Tensor, first: int | Tensor = 0, *, keys: int, scale: float) -> Any:
            runs = self._runs(q.shape[2])
            lengths = [run.length for run in runs] or [0]
            starts = [run.begin for run in runs] or [0]
            parts = zip(q.split(lengths, 2), k.split(lengths, 2), starts, strict=True)
            placed = [place(a, b, first + start, keys=keys, scale=scale) for a, b, start in parts]
            return torch.cat([x[0] for x in placed], 2), torch.cat([x[1] for x in placed], 2), placed[0][2]

        return place_runs

    @contextmanager
    def _whole_text_masks(self, module: Encoder | Decoder) -> Iterator[None]:
        """Lower the masks of a stack for the whole text."""
        own = module.mask if isinstance(module, Decoder) else None

        def prepare(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            context = args[1] if len(args) > 1 else kwargs.get("context")
            tokens, others = self._lengths(args[0].shape[1], 0 if context is None else context.shape[1])
            N, M = sum(tokens), sum(others)
            mask, kwargs = kwargs.get("mask"), dict(kwargs)
            if isinstance(module, Decoder):
                assert own is not None
                module.mask = _WholeText(own if mask is None else own & mask, N, N)
                kwargs["mask"] = None
                if kwargs.get("context_mask") is not None:
                    kwargs["context_mask"] = _WholeText(kwargs["context_mask"], N, M)
            elif mask is not None:
                kwargs["mask"] = _WholeText(mask, N, N)
            return args, kwargs

        hook = module.register_forward_pre_hook(prepare, with_kwargs=True, prepend=True)
        try:
            yield
        finally:
            hook.remove()
            if own is not None:
                module.mask = own


class _WholeText(Mask):
    """A mask of the whole text: it lowers to the spans of all queries, whatever sizes it is asked for."""

    def __init__(self, mask: Mask, N: int, M: int) -> None:
        self._mask, self._N, self._M = mask, N, M

    def lower(self, N: int, M: int) -> Lowered:
        return self._mask.lower(self._N, self._M)

    def batch_and_heads(self) -> tuple[int, int]:
        return self._mask.batch_and_heads()

    def __repr__(self) -> str:
        return repr(self._mask)


@contextmanager
def _replaced(module: nn.Module, **methods: Any) -> Iterator[None]:
    """Replace methods of one object inside a ``with`` block."""
    before = {name: vars(module)[name] for name in methods if name in vars(module)}
    vars(module).update(methods)
    try:
        yield
    finally:
        for name in methods:
            del vars(module)[name]
        vars(module).update(before)


def sequence(model: nn.Module, group: Any = None, layout: Layout | None = None) -> Sequence:
    """Run a model of limelight's layers on shards of a long text.

    Every process calls the result with its own part of the tokens (``shard(ids, layout, 1)``) and gets the outputs of
    these. Masks, positions and biases are those of the whole text. A backward pass of the processes' losses, whose sum
    is the objective, gives every parameter the gradient that one process would find, the same on every process.
    ``watch`` records the weights of the whole text, with statistics of all queries and keys.

    Args:
        model: an encoder, a decoder, a layer, or a model of ``limelight.models``.
        group: a ``ProcessGroup`` or a one-dimensional ``DeviceMesh``; the default group unless given.
        layout: ``Contiguous()`` unless given; ``Zigzag()`` balances causal work.

    """
    return Sequence(model, group, layout)
