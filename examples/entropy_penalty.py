"""Training with a penalty on the entropy of attention: the same task is learned with sharper heads.

The task is to repeat: a sequence of digits, a mark, and the digits again.
"""

import torch
from torch.nn.functional import cross_entropy

import limelight as ll
from limelight import nn

LENGTH, MARK, BATCH = 7, 10, 32


def train(penalty: float, steps: int = 200) -> tuple[float, float]:
    """Return the share of digits that are repeated right and the mean entropy, in nats."""
    torch.manual_seed(0)
    attention = nn.MultiHeadAttention(32, 4, positions=ll.positions.Rotary(8))
    block = nn.Block(attention, nn.FeedForward(32, 64))
    embedding = nn.Embedding(MARK + 1, 32)
    model = nn.LanguageModel(embedding, nn.Decoder([block]), nn.TiedHead(embedding.table))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(steps):
        digits = torch.randint(0, MARK, (BATCH, LENGTH))
        ids = torch.cat([digits, torch.full((BATCH, 1), MARK), digits], 1)
        with ll.watch(model) as record:
            logits = model(ids[:, :-1])[:, LENGTH:]  # from the mark on, the next digit is known
        loss = cross_entropy(logits.flatten(0, 1), digits.flatten())
        entropy = torch.stack([record[name].entropy().mean() for name in record]).mean()
        optimizer.zero_grad()
        (loss + penalty * entropy).backward()  # the entropy's gradient comes from the weights, never stored
        optimizer.step()
    return (logits.argmax(-1) == digits).float().mean().item(), entropy.item()


for penalty in (0.0, 0.3):
    right, entropy = train(penalty)
    print(f"penalty {penalty}: {right:.0%} of the digits right, entropy {entropy:.2f} nats")
