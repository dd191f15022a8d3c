"""Dropout's random numbers: Philox4x32-7, a counter-based generator (Salmon et al., 2011), in plain torch.

Whether a weight is kept follows from the seed and the place of the weight alone: the generator's key is the seed, its
counter is ``(key // 4, query, head, batch)``, and the weight takes word ``key % 4`` of the four that this counter
gives. The kernels compute the same words.
"""

from __future__ import annotations

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 7


def new_seed() -> Tensor:
    """Draw a seed from torch's own generator, so that ``torch.manual_seed`` reproduces what follows."""
    return torch.randint(0, 2**63 - 1, ())


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], seed: Tensor, rounds: int = _ROUNDS) -> tuple[Tensor, ...]:
    """Return the four words of each counter; words are int64 tensors below 2³² that broadcast."""
    c0, c1, c2, c3 = counter
    key = [seed & _WORD, (seed >> 32) & _WORD]
    for _ in range(rounds):
        a, b = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]  # modulo 2⁶⁴, which keeps both words of the product
        c0, c1, c2, c3 = (b >> 32 & _WORD) ^ c1 ^ key[0], b & _WORD, (a >> 32 & _WORD) ^ c3 ^ key[1], a & _WORD
        key = [(k + step) & _WORD for k, step in zip(key, _STEPS, strict=True)]
    return c0, c1, c2, c3


def factors(
    rate: float, seed: Tensor | None, batch: int, heads: int, rows: Tensor, cols: Tensor, dtype: torch.dtype
) -> Tensor:
    """Return the factors of the weights, ``(batch, heads, rows, cols)``: 0, or ``1 / (1 - rate)``."""
    assert seed is not None
    device = rows.device
    b, h = torch.arange(batch, device=device), torch.arange(heads, device=device)
    where = (cols // 4, rows[:, None], h[:, None, None], b[:, None, None, None])
    words = torch.stack(torch.broadcast_tensors(*philox(where, seed.to(device))))
    mine = (cols % 4).expand(words.shape[1:])
    word = words.gather(0, mine[None])[0]
    return (word >= int(rate * 2**32)).to(dtype) / (1 - rate)
