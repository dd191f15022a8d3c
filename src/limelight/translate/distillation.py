"""Distillation: pairs whose targets come from a translator's own beam search, to train it further on.

Of the hypotheses for a sentence, the one that is most like the given translations is kept (Kim & Rush 2016,
"Sequence-Level Knowledge Distillation", section 3.3). A model that is trained further on these pairs finds without a
search what it found with one.

python -m limelight.translate.distillation PAIRS.tsv OUT.tsv [--model FOLDER]
limelight train PAIRS.tsv --distilled OUT.tsv --from FOLDER --out OTHER
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer

from limelight.core.masks import Padding
from limelight.models.generation import beam_hypotheses
from limelight.nn import Seq2Seq
from limelight.translate import vocabulary
from limelight.translate.data import Pair, padded, read_pairs

_LEAST = 40.0  # a hypothesis with a lower BLEU is not kept
_TOGETHER = 16  # batches whose sentences are sorted by length together


def own_pairs(
    model: Seq2Seq, tokenizer: Tokenizer, pairs: Sequence[Pair], *, beams: int = 4, batch: int = 64, seed: int = 1
) -> Iterator[Pair]:
    """Yield the sources in random order, each with the hypothesis most similar to its translations in ``pairs``.

    A source without a similar hypothesis is left out.
    """
    import sacrebleu

    references: dict[str, list[str]] = {}
    for pair in pairs:
        references.setdefault(pair.source, []).append(pair.target)
    sources = sorted(references)
    random.Random(seed).shuffle(sources)
    for begin in range(0, len(sources), _TOGETHER * batch):
        chunk = sorted(sources[begin : begin + _TOGETHER * batch], key=len)
        for n in range(0, len(chunk), batch):
            texts = chunk[n : n + batch]
            for text, found in zip(texts, _hypotheses(model, tokenizer, texts, beams), strict=True):
                wanted = references[text]
                score, best = max((sacrebleu.sentence_bleu(one, wanted).score, one) for one in found)
                if score >= _LEAST:
                    yield Pair(text, best)


def _hypotheses(model: Seq2Seq, tokenizer: Tokenizer, texts: Sequence[str], beams: int) -> list[list[str]]:
    source, lengths = padded(
        vocabulary.encode(tokenizer, list(texts)), vocabulary.number(tokenizer, vocabulary.PADDING)
    )
    longest = 6 + source.shape[1] * 5 // 4  # longer ones are rarely good, and each batch runs as long as its longest
    found = beam_hypotheses(model, source, beams, 1.0, mask=Padding(lengths), max_new_tokens=longest)
    return [tokenizer.decode_batch([ids.tolist() for _, ids in one]) for one in found]


def main(pairs: str, out: str, folder: str | None, beams: int, count: int | None, validated: int) -> None:
    """Write pairs of the model's own translations of the sentences that it may be trained on."""
    from limelight.translate.recipe import Recipe
    from limelight.translate.training import split_for_training
    from limelight.translate.translator import load

    training, _ = split_for_training(read_pairs(pairs), Recipe(validated=validated))
    translator = load(folder)
    own = own_pairs(translator.model, translator.tokenizer, training, beams=beams)
    with Path(out).open("w", encoding="utf-8", buffering=1) as file:
        file.writelines(f"{source}\t{target}\n" for source, target in islice(own, count))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs")
    parser.add_argument("out")
    parser.add_argument("--model")
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--count", type=int, help="own translations; all unless given")
    parser.add_argument("--validated", type=int, default=300, help="as in the training that uses them")
    asked = parser.parse_args()
    main(asked.pairs, asked.out, asked.model, asked.beams, asked.count, asked.validated)
