"""Attention over 4,096 tokens, and what its weights look like, without ever storing the 4,096 × 4,096 matrix."""

import torch

import limelight as ll

torch.manual_seed(0)
n = 4096
q = torch.randn(1, 8, n, 64)  # (batch, heads, queries, width)
k, v = torch.randn(2, 1, 2, n, 64)  # two key heads serve eight query heads

mask = ll.Causal() & (ll.Window(256) | ll.First(4))  # the last 256 tokens, and the first 4
A = ll.weights(q, k, mask=mask)  # nothing is computed yet
y = A @ v
print(f"output {tuple(y.shape)}")

seen = A.observe(entropy=True, received=True, top=3, mass=ll.First(4), distance=True)
print(f"a row's entropy is {seen.entropy[..., -1].mean():.2f} nats; 261 equal weights would have 5.56")
print(f"the first four tokens get {seen.mass[..., 1000:].mean():.1%} of the attention of later ones")
print(f"a query looks {seen.distance[..., -1].mean():.0f} tokens back on average")

query, head = 2000, 0
keys = ", ".join(str(int(j)) for j in seen.top.indices[0, head, query])
print(f"query {query} of head {head} looks most at the keys {keys}")
row = A[0, head, query, 1700:2001]  # any part of the matrix, at the cost of that part
print(f"its weights on the keys 1700 to 2000 sum to {row.sum():.3f}, the rest lies on the first four")
