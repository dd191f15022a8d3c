"""Where tokens stand: the schemes that tell attention about order.

Without one, attention is permutation equivariant: shuffle the tokens, and the outputs shuffle with them. A scheme acts
in one of three places, and is the identity in the others:

- ``embed(x, first)``: added to the embeddings (``Sinusoidal``, ``Learned``);
- ``place(q, k, …)``: turns queries and keys (``Rotary``), or returns a bias of the logits (``ALiBi``, ``T5``, ``XL``).

``first`` is the position of the first token, an integer or ``(B,)`` integers where the elements of a batch begin at
different places.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from limelight.core import biases
from limelight.core.biases import Bias, DenseBias, Relative


def steps_from(first: int | Tensor, n: int, device: torch.device) -> Tensor:
    """Positions ``first, first + 1, …``, ``(n,)`` or ``(B, n)``; before the beginning there is only 0."""
    steps = torch.arange(n, device=device)
    return steps + first if isinstance(first, int) else (first[:, None] + steps).clamp(min=0)


class Positions(nn.Module):
    """Base of all schemes, and the scheme that says nothing."""

    def embed(self, x: Tensor, first: int | Tensor = 0) -> Tensor:
        """Embeddings ``(B, N, width)`` that know where they stand."""
        return x

    def place(
        self, q: Tensor, k: Tensor, first: int | Tensor = 0, *, keys: int, scale: float
    ) -> tuple[Tensor, Tensor, Bias | None]:
        """Queries and keys ``(B, H, N, D)`` that do, and what is added to the logits.

        ``keys`` is how many keys there are, with those of a cache, and ``scale`` what the scores are multiplied by.
        """
        return q, k, None


def sinusoids(positions: Tensor, width: int, base: float = 10000.0) -> Tensor:
    """``sin(p / base^(2i/width))`` and, beside it, the cosine: ``(…, width)``.

    >>> sinusoids(torch.tensor([0, 1]), 4).round(decimals=4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 1.0000]])
    """
    return torch.stack(_waves(positions, width, base), -1).flatten(-2)[..., :width]


def _waves(positions: Tensor, width: int, base: float) -> tuple[Tensor, Tensor]:
    rate = base ** (-torch.arange(0, width, 2, device=positions.device, dtype=torch.float64) / width)
    angle = positions[..., None].double() * rate
    return angle.sin().float(), angle.cos().float()


class Sinusoidal(Positions):
    """``x + sinusoids``, from "Attention is all you need".

    ``halves`` puts all sines before all cosines, as Marian's checkpoints have them.
    """

    def __init__(self, base: float = 10000.0, halves: bool = False) -> None:
        super().__init__()
        self.base, self.halves = base, halves

    def embed(self, x: Tensor, first: int | Tensor = 0) -> Tensor:
        at = steps_from(first, x.shape[-2], x.device)
        width = x.shape[-1]
        waves = torch.cat(_waves(at, width, self.base), -1) if self.halves else sinusoids(at, width, self.base)
        return x + waves[..., :width].to(x.dtype)


class Learned(Positions):
    """``x + table[position]``; ``offset`` rows of the table are skipped."""

    def __init__(self, count: int, width: int, offset: int = 0) -> None:
        super().__init__()
        self.table = nn.Embedding(count + offset, width)
        self.offset = offset

    def embed(self, x: Tensor, first: int | Tensor = 0) -> Tensor:
        n, most = x.shape[-2], self.table.num_embeddings - self.offset
        last = (first if isinstance(first, int) else int(first.max())) + n
        if last > most:
            raise ValueError(f"{last} positions, and there are learned ones for {most}; shorten the text")
        rows: Tensor = self.table(steps_from(first, n, x.device) + self.offset)
        return x + rows


@dataclass(frozen=True)
class Plain:
    """Frequencies ``base^(-2i/width)`` as they are."""

    def rates(self, rates: Tensor) -> Tensor:
        return rates

    @property
    def size(self) -> float:
        """What turned vectors are multiplied by."""
        return 1.0


@dataclass(frozen=True)
class Interpolated(Plain):
    """Positions divided by ``factor``: linear interpolation."""

    factor: float

    def rates(self, rates: Tensor) -> Tensor:
        return rates / self.factor


@dataclass(frozen=True)
class Llama3(Plain):
    """LLaMA 3.1: long waves are divided by ``factor``, short ones kept, those between mixed smoothly."""

    factor: float
    low: float
    high: float
    trained: int  # positions

    def rates(self, rates: Tensor) -> Tensor:
        turns = self.trained * rates / (2 * math.pi)  # in all positions of the training
        share = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return (1 - share) * rates / self.factor + share * rates


@dataclass(frozen=True)
class Yarn(Plain):
    """YaRN: a ramp over the dimensions from kept (``fast`` turns in the training) to interpolated (``slow``)."""

    factor: float
    trained: int  # positions
    base: float
    fast: float = 32.0
    slow: float = 1.0
    truncate: bool = True
    attention: float | None = None
    sizes: tuple[float, float] | None = None  # DeepSeek's mscale and mscale_all_dim

    def rates(self, rates: Tensor) -> Tensor:
        width = 2 * len(rates)

        def dimension(turns: float) -> float:
            return width * math.log(self.trained / (turns * 2 * math.pi)) / (2 * math.log(self.base))

        low, high = dimension(self.fast), dimension(self.slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        ramp = (torch.arange(len(rates), dtype=rates.dtype) - low) / ((high - low) or 0.001)
        share = 1 - ramp.clamp(0, 1)
        return rates / self.factor * (1 - share) + rates * share

    @property
    def size(self) -> float:
        if self.attention is not None:
            return self.attention
        above, below = (0.1 * x * math.log(max(self.factor, 1.0)) + 1.0 for x in self.sizes or (1.0, 0.0))
        return above / below


class Rotary(Positions):
    """Turns pairs of features of q and k by ``position · rate``, so that q · k knows only the distance.

    Args:
        width: how many features of a head are turned, from the first on; the others stay as they are.
        base: the rates are ``base^(-2i/width)``.
        interleaved: pairs are neighbours (GPT-J), not the two halves (LLaMA, GPT-NeoX).
        scaling: how the rates change for longer texts, ``Interpolated``, ``Llama3`` or ``Yarn``.

    """

    def __init__(
        self, width: int, base: float = 10000.0, interleaved: bool = False, scaling: Plain | None = None
    ) -> None:
        super().__init__()
        if width < 2 or width % 2:
            raise ValueError(f"Rotary: width = {width}; features are turned in pairs, so give an even number")
        self.width, self.interleaved = width, interleaved
        self.scaling = Plain() if scaling is None else scaling
        rates = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        self.rates = self.scaling.rates(rates).float()  # no buffer: in half precision far positions would be lost

    def angles(self, first: int | Tensor, n: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosines and sines, ``(n, width / 2)`` or ``(B, 1, n, width / 2)``."""
        at = steps_from(first, n, device)
        angle = at[..., None].float() * self.rates.to(device)
        if angle.ndim == 3:
            angle = angle[:, None]
        return (angle.cos() * self.scaling.size).to(dtype), (angle.sin() * self.scaling.size).to(dtype)

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """``(B, H, N, D)`` with its first features turned."""
        turned, rest = x[..., : self.width], x[..., self.width :]
        if self.interleaved:
            a, b = turned[..., 0::2], turned[..., 1::2]
            turned = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
        else:
            a, b = turned.chunk(2, -1)
            turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
        return torch.cat((turned, rest), -1) if rest.shape[-1] else turned

    def place(
        self, q: Tensor, k: Tensor, first: int | Tensor = 0, *, keys: int, scale: float
    ) -> tuple[Tensor, Tensor, Bias | None]:
        if q.shape[3] < self.width:
            raise ValueError(f"Rotary turns {self.width} features, and heads have {q.shape[3]}")
        cos, sin = self.angles(first, q.shape[2], q.dtype, q.device)
        return self.turn(q, cos, sin), self.turn(k, cos, sin), None


class ALiBi(Positions):
    """``-slope · distance`` is added to the logits, with the published slopes for any number of heads."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.bias = biases.ALiBi(heads)

    def place(
        self, q: Tensor, k: Tensor, first: int | Tensor = 0, *, keys: int, scale: float
    ) -> tuple[Tensor, Tensor, Bias | None]:
        return q, k, self.bias


class T5(Positions):
    """A learned bias for each bucket of distances; one for all layers that share the module.

    ``two_sided`` tells before from after; a decoder, which sees nothing after, uses all buckets for before.
    """

    def __init__(self, heads: int, buckets: int = 32, max_distance: int = 128, two_sided: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(buckets, heads)  # (buckets, heads)
        self.max_distance, self.two_sided = max_distance, two_sided

    def place(
        self, q: Tensor, k: Tensor, first: int | Tensor = 0, *, keys: int, scale: float
    ) -> tuple[Tensor, Tensor, Bias | None]:
        bias = Relative.t5(self.table.weight.T, two_sided=self.two_sided, max_distance=self.max_distance)
        return q, k, bias


class XL(Positions):
    """Transformer-XL: ``(q + u) · k + (q + v) · r(distance)``, with ``r`` a projection of sinusoids.

    The second term is a matrix of the size of the weights; it is made whole, as a dense bias.
    """

    def __init__(self, heads: int, head_width: int, width: int) -> None:
        super().__init__()
        self.content, self.position = (nn.Parameter(torch.zeros(heads, head_width)) for _ in "uv")
        self.project = nn.Linear(width, heads * head_width, bias=False)

    def place(
        self, q: Tensor, k: Tensor, first: int | Tensor = 0, *, keys: int, scale: float
    ) -> tuple[Tensor, Tensor, Bias | None]:
        heads, head_width = self.content.shape
        n = q.shape[2]
        distance = torch.arange(keys - 1, -n, -1, device=q.device)  # position - key, from the farthest before
        angle = sinusoids(distance, self.project.in_features).to(q.dtype)
        r = self.project(angle).unflatten(-1, (heads, head_width)).transpose(0, 1)  # (H, distances, D)
        by_distance = scale * (q + self.position[:, None]) @ r.mT  # (B, H, N, distances)
        return q + self.content[:, None], k, DenseBias(shift(by_distance, keys))


def shift(by_distance: Tensor, keys: int) -> Tensor:
    """``(…, N, M + N - 1)`` by distance, from ``M - 1`` down, as ``(…, N, M)`` by key: exact, and a view.

    Query ``i`` stands at position ``M - N + i``, so its row begins ``N - 1 - i`` places in. Where the rows follow one
    another, each begins one place less than a row after the one before.
    """
    *lead, n, length = by_distance.shape
    if n < 2:
        return by_distance
    flat = by_distance.flatten(-2)[..., n - 1 :][..., : n * (length - 1)]
    return flat.reshape(*lead, n, length - 1)[..., :keys]
