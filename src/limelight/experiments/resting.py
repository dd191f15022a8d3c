"""A small language model whose attention rests on the first token, and streams of its language.

The language needs attention after one word only: the trigger, after which the word before it comes again. All other
words mostly have one follower. A head that looks at the word before it has to look elsewhere after all of them.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from limelight.experiments.small_models import decoder
from limelight.experiments.training import fit
from limelight.nn import LanguageModel
from limelight.positions import T5

WORDS, WIDTH, TOKENS = 48, 64, 64
TRIGGER, FIRST = 0, WORDS  # the token that every text begins with has the last number
CHOICES = 10  # of what follows a word: the trigger, three random words and six times its own follower


def followers(g: torch.Generator) -> Tensor:
    """Draw what may follow each word, ``(words + 1, choices)``."""
    table = torch.randint(1, WORDS, (WORDS + 1, 1), generator=g).repeat(1, CHOICES)
    table[:, 0] = TRIGGER
    table[:, 1:4] = torch.randint(1, WORDS, (WORDS + 1, 3), generator=g)
    return table


def texts(count: int, tokens: int, table: Tensor, g: torch.Generator) -> Tensor:
    """Draw texts ``(count, 1 + tokens)``: after the trigger the word before it again, else one of the followers."""
    ids = [torch.full((count,), FIRST), torch.randint(1, WORDS, (count,), generator=g)]
    for _ in range(tokens - 1):
        follower = table[ids[-1], torch.randint(0, CHOICES, (count,), generator=g)]
        ids.append(torch.where(ids[-1] == TRIGGER, ids[-2], follower))
    return torch.stack(ids, 1)


def learn(seed: int, steps: int) -> tuple[LanguageModel, Tensor]:
    """Train a model of one layer and one head, and return it with streams ``(16, 513)`` of its language."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    table = followers(g)
    model = decoder(WORDS + 1, WIDTH, 1, 1, positions=partial(T5, 1, two_sided=False), feed_forward=1)

    def batch() -> tuple[tuple[Tensor, ...], Tensor]:
        ids = texts(32, TOKENS, table, g)
        return (ids[:, :-1],), ids[:, 1:]

    fit(model, batch, steps=steps, rate=1e-2, one_cycle=True)
    return model, texts(16, 512, table, g)
