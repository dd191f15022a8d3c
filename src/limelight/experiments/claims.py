"""The claims that are checked, each in a sentence with its source.

Claims 1 to 45 stand in teaching texts; 46 to 56 are from the research literature. Where no primary source makes a
claim, the source says so.
"""

from __future__ import annotations

from dataclasses import dataclass

TEXTS = "common in teaching texts"


@dataclass(frozen=True)
class Claim:
    """A sentence that texts say, and its source: author, year and section, or ``TEXTS``."""

    text: str
    source: str


CLAIMS: dict[int, Claim] = {
    1: Claim(
        "“dog ate dinner”, worked out by hand: queries, keys, values, scores, weights and the output of dog.",
        f"{TEXTS}; the equation is Vaswani et al. 2017, §3.2.1, eq. 1",
    ),
    2: Claim(
        "Every row of the weights sums to 1; a column is what a token receives, and need not.",
        f"{TEXTS}; the softmax over keys is Vaswani et al. 2017, §3.2.1",
    ),
    3: Claim(
        "Self-attention takes q, k and v from one sequence; cross-attention takes k and v from another.",
        "Vaswani et al. 2017, §3.2.3",
    ),
    4: Claim(
        "Masked attention adds 0 where i ≥ j and −∞ where i < j, before the softmax.",
        "Vaswani et al. 2017, §3.2.3, third point",
    ),
    5: Claim(
        "Concatenating heads and multiplying by W_O is summing each head times its slice; adding heads mixes them up.",
        "Vaswani et al. 2017, §3.2.2; as a sum: Elhage et al. 2021, “Attention heads are independent and additive”",
    ),
    6: Claim(
        "d_k = d_v = d_model / h makes any number of heads cost the same (BERT-base: 768 = 12 × 64).",
        "Vaswani et al. 2017, §3.2.2; Devlin et al. 2019",
    ),
    7: Claim(
        "Dropout acts after the softmax and before V. Typical: BERT 0.1, GPT-2 0.1, GPT-3 0.",
        "Radford et al. 2018; Devlin et al. 2019",
    ),
    8: Claim(
        "Var(q·k) = d_k, so scores lie within ±2√d_k; divided by √d_k the variance is 1, by d_k attention is too flat.",
        "Vaswani et al. 2017, §3.2.1, footnote 4",
    ),
    9: Claim(
        "Without scaling the entropy of the weights falls from 1.50 (d_k = 8) to 0.07 (512); scaled it stays near "
        "2.55.",
        f"{TEXTS}; after Vaswani et al. 2017, §3.2.1",
    ),
    10: Claim(
        "softmax([25.3, 2.1, −18.7, 31.2]) = [0.003, 0, 0, 0.997]; divided by √64, [0.21, 0.11, 0.01, 0.47].",
        TEXTS,
    ),
    11: Claim(
        "Without scaling, the gradients that reach q and k vanish as d_k grows.",
        "Vaswani et al. 2017, §3.2.1 (“extremely small gradients”)",
    ),
    12: Claim(
        "Temperature: 0.1–0.5 almost one-hot, 0.5–1 sharp, 1 normal, 1–2 softer, above 2 nearly uniform.",
        TEXTS,
    ),
    13: Claim(
        "With one projection for q and k, attention is symmetric; with two, it is not.",
        f"{TEXTS}; one projection for both is used by Kitaev et al. 2020",
    ),
    14: Claim(
        "Self-attention is permutation equivariant, and every positional encoding breaks that.",
        "Lee et al. 2019; Vaswani et al. 2017, §3.5",
    ),
    15: Claim(
        "Patterns: full attention costs n², causal attention is its lower triangle, local attention costs n·w.",
        "Child et al. 2019; Beltagy et al. 2020; Zaheer et al. 2020",
    ),
    16: Claim(
        "Heads are little alike (1.00, 0.12, 0.17, 0.19 for 1, 2, 4, 8 heads): they learn different things.",
        f"{TEXTS}; that heads differ: Vaswani et al. 2017, §4; Clark et al. 2019",
    ),
    17: Claim(
        "Weights learned on some sentences work on new ones: they transform kinds of words and not positions.",
        TEXTS,
    ),
    18: Claim(
        "Time O(n²·d), stored weights O(n²·h·L); path length and sequential steps O(1), against O(n) for an RNN.",
        "Vaswani et al. 2017, §4, table 1",
    ),
    19: Claim(
        "Flash attention: memory O(n) instead of O(n²), 2–4 times faster than the naive way.",
        "Dao et al. 2022; the factor: Dao 2023",
    ),
    20: Claim(
        "A KV cache computes q only for the new token and reuses k and v; without it each step recomputes everything.",
        "Shazeer 2019",
    ),
    21: Claim(
        "Attention in chunks never holds the n × n matrix, and so reaches longer sequences.",
        "Rabe & Staats 2021",
    ),
    22: Claim(
        "Changing one token changes every output of attention and one output of the feed-forward part.",
        "Vaswani et al. 2017, §3.3 (“applied to each position separately and identically”)",
    ),
    23: Claim(
        "Without scaling, training fails and the model cannot learn.",
        f"{TEXTS}; milder in Vaswani et al. 2017, §3.2.1 (“We suspect …”)",
    ),
    24: Claim(
        "Keys and values need projections of their own: the key is for matching, the value is the content.",
        "Miller et al. 2016 (key-value memories); Vaswani et al. 2017, §3.2",
    ),
    25: Claim(
        "One head is not enough where several relations matter at once; more heads of the same total width are.",
        "Vaswani et al. 2017, §3.2.2 (“With a single attention head, averaging inhibits this”) and table 3 (A)",
    ),
    26: Claim(
        "Attention alone routes and transforms little; feed-forward alone transforms and routes nothing; "
        "together they do both.",
        f"{TEXTS}; compare Vaswani et al. 2017, §3.3; Geva et al. 2021",
    ),
    27: Claim(
        "Dropout on the weights regularises and makes a model rely on several tokens. (One text: it drops heads.)",
        "Srivastava et al. 2014; on attention: Zehui et al. 2019",
    ),
    28: Claim(
        "In an RNN information from a token degrades with distance; in attention it does not. Path lengths n and 1.",
        "Bengio et al. 1994; Vaswani et al. 2017, §4",
    ),
    29: Claim(
        "Fixed operations (convolution, mean) do not know what is important; attention learns it.",
        f"{TEXTS}; after Bahdanau et al. 2015",
    ),
    30: Claim(
        "A local window loses global context.",
        f"{TEXTS}; that stacked windows widen it (w·L): Beltagy et al. 2020",
    ),
    31: Claim(
        "Heads have types: syntactic (subject and verb), coreference (pronoun and antecedent), synonyms, modifiers.",
        "Clark et al. 2019; Voita et al. 2019",
    ),
    32: Claim(
        "Words of a kind have similar embeddings, hence similar queries, and so projections work on new sentences.",
        TEXTS,
    ),
    33: Claim(
        "Word embeddings cluster by meaning (verbs, animals) and carry analogies.",
        "Mikolov et al. 2013 (“Linguistic regularities …”)",
    ),
    34: Claim(
        "A weight matrix is a function: rotation, scaling, rotation; training finds it. Each output has a rule, "
        "a row of W, with the entry for input 42 and output 0 at W[0, 42].",
        f"{TEXTS}; the decomposition: Eckart & Young 1936",
    ),
    35: Claim(
        "Self-attention alone does not know the order of tokens: it is permutation equivariant.",
        "Lee et al. 2019; against it, for causal masks: Haviv et al. 2022",
    ),
    36: Claim(
        "Positions are added to the embeddings before attention.",
        "Vaswani et al. 2017, §3.5; otherwise: Raffel et al. 2020; Su et al. 2021; Press et al. 2022",
    ),
    37: Claim(
        "W_O mixes the heads and may ignore some: W_O1 head₁ + W_O2 head₂ + …, by the context.",
        f"{TEXTS}; Vaswani et al. 2017, §3.2.2; that heads can be ignored: Michel et al. 2019",
    ),
    38: Claim(
        "Scores [.8 .3 .1 .2] and [.2 .9 .7 .1] give the weights [.45 .25 .15 .15] and [.15 .40 .35 .10].",
        TEXTS,
    ),
    39: Claim(
        "The row of “sat” in “The cat sat on the mat” is 0.05 0.35 0.30 0.05 0.05 0.20: mostly cat and itself.",
        TEXTS,
    ),
    40: Claim(
        "Attention's temperature: 0.7–1 for focused inference, 1–1.5 for diverse sampling, 2 and more for "
        "distillation.",
        f"{TEXTS}; of the output's softmax: Hinton et al. 2015; Ackley et al. 1985",
    ),
    41: Claim(
        "At d_k = 64 unscaled attention starts to saturate.",
        f"{TEXTS}; after Vaswani et al. 2017, §3.2.1",
    ),
    42: Claim(
        "Memory-efficient attention trades computing for memory.",
        f"{TEXTS}; Rabe & Staats 2021; Dao et al. 2022 (recomputation)",
    ),
    43: Claim(
        "An RNN layer costs O(n), attention O(n²), a feed-forward part O(n).",
        f"{TEXTS}; with widths, n·d² and n²·d: Vaswani et al. 2017, §4, table 1",
    ),
    44: Claim(
        "Eight heads of (4, 64) concatenate to (4, 512), and W_O keeps that shape.",
        "Vaswani et al. 2017, §3.2.2",
    ),
    45: Claim(
        "By hand: the output of a token is the sum of the values, weighted by its row.",
        "Vaswani et al. 2017, §3.2",
    ),
    46: Claim(
        "Deeper layers put much of their attention on the first token (a sink); a learned sink logit takes its place.",
        "Xiao et al. 2024; Gu et al. 2025",
    ),
    47: Claim(
        "Induction heads appear during training, abruptly, and what a model learns in context appears with them.",
        "Olsson et al. 2022; Elhage et al. 2021, “Induction heads”",
    ),
    48: Claim(
        "Attention weights are a poor explanation: they do not rank tokens by the effect of taking them away.",
        "Jain & Wallace 2019; Serrano & Smith 2019; against it: Wiegreffe & Pinter 2019",
    ),
    49: Claim(
        "Position schemes differ beyond the lengths of training: sinusoidal fails at once, ALiBi holds.",
        "Press et al. 2022; Kazemnejad et al. 2023",
    ),
    50: Claim(
        "Attention spreads out as a text gets longer, and logits multiplied by log n keep it as sharp as it was.",
        "Chiang & Cholak 2022; Nakanishi 2025",
    ),
    51: Claim(
        "Attention matrices are of low rank: a few singular values hold most of them.",
        "Wang et al. 2020",
    ),
    52: Claim(
        "An induction head rests on a previous-token head in the layer below, and what it attends to is what matters.",
        "Elhage et al. 2021, “Induction heads”; Olsson et al. 2022 (ablations)",
    ),
    53: Claim(
        "A Vision Transformer reads a picture as a sequence of patches, and attends to those that matter for its "
        "answer.",
        "Dosovitskiy et al. 2021",
    ),
    54: Claim(
        "A captioner with attention looks at an object while it writes the word for it.",
        "Xu et al. 2015",
    ),
    55: Claim(
        "A window, a few global tokens or the keys that receive the most hold most of the attention of a long text.",
        "Beltagy et al. 2020; Zaheer et al. 2020; Zhang et al. 2023 (heavy hitters)",
    ),
    56: Claim(
        "A cache of the last tokens breaks down when the first ones are dropped, and keeping four of them mends it.",
        "Xiao et al. 2024",
    ),
}
