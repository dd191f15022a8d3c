"""Position schemes, which tell attention about the order of tokens.

Without one, attention is permutation equivariant: shuffle the tokens, and the outputs shuffle with them. A scheme acts
in one of two methods, and is the identity in the other:

- ``embed(x, first)``: adds to the embeddings (``Sinusoidal``, ``Learned``);
- ``place(q, k, …)``: rotates queries and keys (``Rotary``), or returns a bias (``ALiBi``, ``T5``, ``XL``).

``first`` is the position of the first token, an integer or ``(B,)`` integers where the elements of a batch begin at
different places.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from limelight.backends import Angles, rotate
from limelight.core import biases
from limelight.core.biases import Bias, DenseBias, Relative
from limelight.core.torch_modes import is_eager
from limelight.nn.rotary_scaling import Plain, check_above_zero


def steps_from(first: int | Tensor, n: int, device: torch.device) -> Tensor:
    """Return ``n`` positions ``first, first + 1, …`` on a device: ``(n,)``, or ``(B, n)`` where ``first`` is ``(B,)``.

    In a batch, negative positions, which are those of padding, become 0.
    """
    steps = torch.arange(n, device=device)
    return steps + first if isinstance(first, int) else (first[:, None] + steps).clamp(min=0)


class Positions(nn.Module):
    """Base class of all schemes, and the scheme that does nothing.

    Give a scheme that adds to embeddings (``Sinusoidal``, ``Learned``) to ``nn.Embedding``, and any other to
    ``nn.MultiHeadAttention``.
    """

    def embed(self, x: Tensor, first: int | Tensor = 0) -> Tensor:
        """Return ``x (B, N, width)`` with its positions added, from ``first`` on, a number or ``(B,)``."""
        return x

    def place(
        self, q: Tensor, k: Tensor, first: int | Tensor = 0, *, keys: int, scale: float
    ) -> tuple[Tensor, Tensor, Bias | None]:
        """Return queries and keys with their positions applied, and a bias of the logits or None.

        Args:
            q: the queries of new tokens, ``(B, H, N, D)``.
            k: their keys, ``(B, Hkv, N, D)``.
            first: the position of the first of them, a number or ``(B,)``.
            keys: the number of keys, with those in a cache.
            scale: the factor of the scores.

        """
        return q, k, None


def sinusoids(positions: Tensor, width: int, base: float = 10000.0) -> Tensor:
    """Return ``sin(p / base^(2i/width))`` and its cosine in alternating columns, ``(…, width)``, for positions ``(…)``.

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
    """``x + sinusoids(position, width)``, from "Attention is all you need".

    Args:
        base: the rates are ``base^(-2i/width)``.
        halves: put all sines before all cosines, as in Marian's checkpoints.

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
    """``x + table[position + offset]``, with a learned table; later positions raise ``ValueError``.

    Args:
        count: the number of positions.
        width: the width of the embeddings.
        offset: rows of the table before that of position 0, as some checkpoints have them.

    """

    def __init__(self, count: int, width: int, offset: int = 0) -> None:
        super().__init__()
        self.table = nn.Embedding(count + offset, width)
        self.offset = offset

    def embed(self, x: Tensor, first: int | Tensor = 0) -> Tensor:
        n, most = x.shape[-2], self.table.num_embeddings - self.offset
        last = (first if isinstance(first, int) else int(first.max())) + n
        if last > most:
            raise ValueError(f"the text needs {last} positions, and the model has learned {most}; shorten the text")
        rows: Tensor = self.table(steps_from(first, n, x.device) + self.offset)
        return x + rows


class Rotary(Positions):
    """Rotates pairs of features of q and k by ``position · rate``, so that q · k depends on the distance only.

    Args:
        width: how many features of a head are rotated, from the first on; the others stay as they are.
        base: the rates are ``base^(-2i/width)``.
        interleaved: whether pairs are neighbouring features (GPT-J) instead of the two halves (LLaMA, GPT-NeoX).
        scaling: changes the rates for longer texts: ``Interpolated``, ``Llama3`` or ``Yarn``.

    ::

        layer = nn.MultiHeadAttention(512, 8, positions=Rotary(64, scaling=Interpolated(4)))

    """

    def __init__(
        self, width: int, base: float = 10000.0, interleaved: bool = False, scaling: Plain | None = None
    ) -> None:
        super().__init__()
        if width < 2 or width % 2:
            raise ValueError(f"Rotary: width = {width} must be even and at least 2; features are rotated in pairs")
        check_above_zero("Rotary", base=base)
        self.width, self.interleaved = width, interleaved
        self.scaling = Plain() if scaling is None else scaling
        rates = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        self.rates = self.scaling.rates(rates).float()  # not a buffer: model.half() would lose far positions
        self._latest: tuple[tuple[object, ...], tuple[Tensor, Tensor]] | None = None  # angles of the last call

    def angles(self, first: int | Tensor, n: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of ``n`` tokens in ``dtype`` on ``device``.

        They are ``(n, width / 2)``, or ``(B, 1, n, width / 2)`` where ``first`` is ``(B,)``.
        The layers of a model share this module, and all but the first find the angles of the step computed.
        """
        if not isinstance(first, int) or not is_eager():
            return self._angles(first, n, dtype, device)
        asked = (first, n, dtype, device)
        latest = self._latest
        if latest is None or latest[0] != asked:
            with torch.inference_mode(False):  # so that a later call with gradients may use them
                latest = self._latest = (asked, self._angles(first, n, dtype, device))
        return latest[1]

    def _angles(self, first: int | Tensor, n: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        at = steps_from(first, n, device)
        angle = at[..., None].float() * self.rates.to(device)
        if angle.ndim == 3:
            angle = angle[:, None]
        return (angle.cos() * self.scaling.size).to(dtype), (angle.sin() * self.scaling.size).to(dtype)

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return ``x (B, H, N, D)`` with its first ``width`` features rotated by ``cos, sin = angles(…)``."""
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
            raise ValueError(f"Rotary rotates {self.width} features, and heads have {q.shape[3]}")
        angles = self.rotation(first, q.shape[2], q)
        turned = rotate(q, k, angles)
        if turned is not None:
            return *turned, None
        cos, sin = angles[:2]
        return self.turn(q, cos, sin), self.turn(k, cos, sin), None

    def rotation(self, first: int | Tensor, n: int, like: Tensor) -> Angles:
        """Return the rotation of ``n`` tokens from position ``first`` on, as the kernels take it.

        The angles have the type of ``like`` and lie on its device.
        """
        return Angles(*self.angles(first, n, like.dtype, like.device), self.width, self.interleaved)


class ALiBiPositions(Positions):
    """The position scheme that adds the bias ``ALiBi``, ``-slope · distance``, to the logits.

    Its public name is ``limelight.positions.ALiBi``; ``limelight.ALiBi`` is the bias itself. ``heads`` is the number of
    query heads, or a slope for each, ``(heads,)``.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.bias = biases.ALiBi(heads)

    def place(
        self, q: Tensor, k: Tensor, first: int | Tensor = 0, *, keys: int, scale: float
    ) -> tuple[Tensor, Tensor, Bias | None]:
        return q, k, self.bias


ALiBi = ALiBiPositions


class T5(Positions):
    """``table[bucket(key - position), head]``: a learned bias by distance; layers may share the module.

    Args:
        heads: the number of query heads.
        buckets: the number of buckets, half of which have one distance each; the others grow logarithmically.
        max_distance: all distances from this on share a bucket.
        two_sided: separate earlier from later keys; a decoder, which has no later keys, uses all buckets for earlier
            ones.

    """

    def __init__(self, heads: int, buckets: int = 32, max_distance: int = 128, two_sided: bool = True) -> None:
        super().__init__()
        exact = buckets // 4 if two_sided else buckets // 2  # buckets of a single distance on each side
        if exact < 1 or max_distance <= exact:
            raise ValueError(
                f"T5: buckets = {buckets} and max_distance = {max_distance}: give at least {4 if two_sided else 2} "
                f"buckets and a max_distance above {max(exact, 1)}"
            )
        self.table = nn.Embedding(buckets, heads)
        self.max_distance, self.two_sided = max_distance, two_sided

    def place(
        self, q: Tensor, k: Tensor, first: int | Tensor = 0, *, keys: int, scale: float
    ) -> tuple[Tensor, Tensor, Bias | None]:
        bias = Relative.t5(self.table.weight.T, two_sided=self.two_sided, max_distance=self.max_distance)
        return q, k, bias


class XL(Positions):
    """Transformer-XL: ``(q + u) · k + (q + v) · r(distance)``, with ``r`` a projection of sinusoids.

    The second term is a dense bias: a matrix of the size of the weights.

    Args:
        heads: the number of heads; keys have as many.
        head_width: the width of queries and keys.
        width: the width of the sinusoids.

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
    """Return ``by_distance (…, N, M + N - 1)``, from distance ``M - 1`` down, as ``(…, N, M)`` by key, M = ``keys``.

    Query ``i`` is at position ``M - N + i``, so its row begins at column ``N - 1 - i``: each row begins one column
    earlier than the row before it, which is a reshape of the same memory.
    """
    *lead, n, length = by_distance.shape
    if n < 2:
        return by_distance
    flat = by_distance.flatten(-2)[..., n - 1 :][..., : n * (length - 1)]
    return flat.reshape(*lead, n, length - 1)[..., :keys]
