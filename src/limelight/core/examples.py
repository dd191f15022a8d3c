"""The worked example of attention that teaching texts use: three words, three projections."""

from __future__ import annotations

import torch
from torch import Tensor

TOKENS = ["dog", "ate", "dinner"]
EMBEDDINGS = [[1.0, 2.0, 3.0], [0.5, 1.0, 1.5], [2.0, 1.0, 0.5]]
W_Q = [[0.6, -0.2], [0.1, 0.5], [-0.3, 0.4]]
W_K = [[0.2, 0.3], [-0.4, 0.7], [0.5, -0.1]]
W_V = [[0.9, 0.1], [0.2, 0.8], [-0.1, 0.6]]


def worked_example() -> tuple[Tensor, Tensor, Tensor]:
    """The queries, keys and values of "dog ate dinner".

    >>> q, k, v = worked_example()
    >>> q[0], k[0], v[0]
    (tensor([-0.1000,  2.0000]), tensor([0.9000, 1.4000]), tensor([1.0000, 3.5000]))
    """
    x = torch.tensor(EMBEDDINGS)
    q, k, v = (x @ torch.tensor(w) for w in (W_Q, W_K, W_V))
    return q, k, v
