"""The effect of each cross-attention head of the translator: BLEU, and the log-probability of references, without each.

    pip install '.[train]' && python benchmarks/translator_heads.py PAIRS.tsv [--sentences 300]

Sentences are those that were held out of training; translations are greedy. The best aligner is the head that the
translator's own alignment shows most often.
"""

from __future__ import annotations

import argparse
from collections import Counter

import torch

import limelight as ll
from limelight import translate
from limelight.lens import Off
from limelight.translate.display import alignment_of

_ALIGNED = 30  # sentences whose alignment decides which head is the best aligner


def main(file: str, sentences: int) -> None:
    """Print the BLEU score with each cross-attention head switched off."""
    recipe = translate.Recipe()
    _, references = translate.divide(translate.read_pairs(file), recipe.held_out, recipe.seed)
    references = dict(list(references.items())[:sentences])
    translator = translate.load()
    model = translator.model
    found = [one for x in list(references)[:_ALIGNED] for one in translator(x).sentences]
    votes = Counter((a.call.layer, a.head) for a in map(alignment_of, found))
    print("best aligner, by sentences:", ", ".join(f"layer {x} head {h}: {n}" for (x, h), n in votes.most_common(4)))

    def bleu() -> float:
        return float(translate.bleu(model, translator.tokenizer, references, beams=1))

    with torch.no_grad():
        clean = bleu()
        print(f"no edit: BLEU {clean:.1f} on {len(references)} sentences", flush=True)
        for layer, block in enumerate(model.decoder.blocks):
            for head in range(block.cross.num_heads):
                with ll.edit(model, {f"decoder.blocks.{layer}.cross": Off(head)}):
                    score = bleu()
                mark = "  (best aligner)" if (layer, head) == votes.most_common(1)[0][0] else ""
                print(f"layer {layer}, head {head}: BLEU {score:.1f} ({score - clean:+.1f}){mark}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs")
    parser.add_argument("--sentences", type=int, default=300)
    given = parser.parse_args()
    main(given.pairs, given.sentences)
