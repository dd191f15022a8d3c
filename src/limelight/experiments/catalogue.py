"""The table of contents: chapters, and the experiments in each with the question that they ask."""

from __future__ import annotations

from dataclasses import dataclass

MECHANISM, SCALING, HEADS, POSITIONS, PATTERNS, COST, LEARNED = CHAPTERS = (
    "The mechanism",
    "Scaling",
    "Heads",
    "Positions",
    "Patterns",
    "Cost",
    "What is learned",
)


@dataclass(frozen=True)
class Experiment:
    """An entry: the chapter, the module that runs it, the claims that it checks and its question in plain words."""

    chapter: str
    module: str
    claims: tuple[int, ...]
    question: str


EXPERIMENTS: dict[str, Experiment] = {
    "worked-example": Experiment(
        MECHANISM, "worked_example", (1, 45), "What happens to “dog ate dinner”, number by number?"
    ),
    "rows": Experiment(MECHANISM, "rows", (2, 3, 4), "What do rows and columns sum to, and who may look at whom?"),
    "printed-scores": Experiment(
        MECHANISM, "printed_scores", (38,), "Do the scores that a text prints give the weights beside them?"
    ),
    "projections": Experiment(
        MECHANISM, "projections", (13,), "Is attention symmetric if queries and keys share a projection?"
    ),
    "keys-and-values": Experiment(
        MECHANISM, "keys_and_values", (24,), "Why do keys and values have projections of their own?"
    ),
    "weight-matrices": Experiment(
        MECHANISM, "weight_matrices", (34,), "What does a weight matrix do to a vector, and where are its rules?"
    ),
    "mixing": Experiment(MECHANISM, "mixing", (22,), "What does changing one token change?"),
    "routing": Experiment(
        MECHANISM, "routing", (26,), "What can attention do without the feed-forward part, and the other way round?"
    ),
    "fixed-mixing": Experiment(
        MECHANISM, "fixed_mixing", (29,), "Why not a mean or a convolution in place of attention?"
    ),
    "recall-distance": Experiment(
        MECHANISM, "recall_distance", (28,), "How far back can attention and recurrent networks remember?"
    ),
    "dropout": Experiment(MECHANISM, "dropout", (7,), "Where does dropout act?"),
    "scaling": Experiment(SCALING, "scaling", (8, 9, 10, 11), "Why are scores divided by √d?"),
    "saturation": Experiment(SCALING, "saturation", (41,), "From which width on is unscaled attention saturated?"),
    "scaled-training": Experiment(SCALING, "scaled_training", (23,), "Can a model learn without the scaling?"),
    "temperature": Experiment(SCALING, "temperature", (12,), "How sharp is attention at which temperature?"),
    "output-temperature": Experiment(
        SCALING, "output_temperature", (40,), "Is attention's temperature the one that makes texts diverse?"
    ),
    "long-texts": Experiment(SCALING, "long_texts", (50,), "Does attention get duller as a text gets longer?"),
    "heads": Experiment(HEADS, "head_similarity", (16,), "How alike are heads, and do they learn to differ?"),
    "joining-heads": Experiment(
        HEADS, "joining_heads", (5, 37), "What does W_O do with the heads, and why are they not just added?"
    ),
    "head-cost": Experiment(HEADS, "head_cost", (6, 44), "Do more heads cost more?"),
    "several-relations": Experiment(HEADS, "several_relations", (25,), "When is one head not enough?"),
    "head-roles": Experiment(
        HEADS, "head_roles", (31,), "Do real heads follow grammar: subjects, pronouns, modifiers, synonyms?"
    ),
    "positions": Experiment(
        POSITIONS, "position_schemes", (14,), "What does each position scheme make of order and distance?"
    ),
    "order": Experiment(POSITIONS, "order", (35, 36), "Does attention know the order of tokens by itself?"),
    "extrapolation": Experiment(
        POSITIONS, "extrapolation", (49,), "Which position schemes survive texts longer than those of training?"
    ),
    "patterns": Experiment(PATTERNS, "patterns", (15,), "What do full, causal and local attention cost?"),
    "windows": Experiment(PATTERNS, "windows", (30,), "How far does a stack of local windows see?"),
    "sinks": Experiment(PATTERNS, "sinks", (46,), "Why does so much attention rest on the first token?"),
    "low-rank": Experiment(PATTERNS, "low_rank", (51,), "How much is in an attention matrix?"),
    "long-patterns": Experiment(
        PATTERNS, "long_patterns", (55, 56), "How much of a long text's attention do sparse patterns keep?"
    ),
    "cost": Experiment(COST, "cost", (18,), "How do time, memory and paths grow with the length?"),
    "streaming": Experiment(
        COST, "streaming", (19, 42), "What does attention that never stores its weights save, and what does it pay?"
    ),
    "chunks": Experiment(COST, "chunks", (21,), "How long a text fits into a given memory?"),
    "cache": Experiment(COST, "cache", (20,), "What does a KV cache save?"),
    "crossover": Experiment(
        COST, "crossover", (43,), "From which length on does attention cost more than the rest of a block?"
    ),
    "generalisation": Experiment(
        LEARNED, "generalisation", (17,), "Does what was learned on some sentences work on others?"
    ),
    "embeddings": Experiment(
        LEARNED, "embeddings", (32, 33), "Are words of a kind alike, as embeddings and as queries?"
    ),
    "word-rows": Experiment(LEARNED, "word_rows", (39,), "What does “sat” look at in “The cat sat on the mat”?"),
    "dropout-training": Experiment(
        LEARNED, "dropout_training", (27,), "Does dropout on the weights help where data are few?"
    ),
    "induction": Experiment(LEARNED, "induction", (47,), "When does a model learn to repeat what it saw?"),
    "what-matters": Experiment(LEARNED, "what_matters", (52,), "Does it matter what a head looks at?"),
    "digits": Experiment(LEARNED, "digits", (53,), "Which parts of a picture does a Vision Transformer look at?"),
    "captions": Experiment(LEARNED, "captions", (54,), "Does a captioner look at what it names?"),
    "explanation": Experiment(LEARNED, "explanation", (48,), "Does a large weight mean that the token matters?"),
}
