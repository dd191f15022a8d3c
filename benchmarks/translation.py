"""How good and how fast the translator is: BLEU on the sentences that it was not trained on, and times.

pip install '.[train]' && python benchmarks/translation.py PAIRS.tsv
"""

from __future__ import annotations

import subprocess
import sys
import time

import torch

from limelight import translate

LOAD = "import time, torch; t = time.perf_counter(); from limelight import translate; translate.load()"
SHORT = "The cat is sleeping."


def best(times: int, sentence: str, beams: int, translator: translate.Translator) -> float:
    """The best of several, in milliseconds."""
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        translator(sentence, beams=beams)
        found.append(1e3 * (time.perf_counter() - begin))
    return min(found)


def main(file: str) -> None:
    recipe = translate.Recipe()
    _, references = translate.divide(translate.read_pairs(file), recipe.held_out, recipe.seed)
    translator = translate.load()
    print(f"BLEU on {len(references)} sentences that were held out, with all of their translations:")
    for beams in (1, 4):
        begin = time.perf_counter()
        score = translate.bleu(translator.model, translator.tokenizer, references, beams=beams)
        print(f"  {beams} beam{'s' * (beams > 1)}: {score:.1f}, in {time.perf_counter() - begin:.0f} s")
    torch.set_num_threads(1)
    for beams in (1, 4):
        print(f"{SHORT!r}, {beams} beam{'s' * (beams > 1)}, 1 thread: {best(20, SHORT, beams, translator):.0f} ms")
    loads = [
        subprocess.check_output([sys.executable, "-c", f"{LOAD}; print(time.perf_counter() - t)"]) for _ in range(3)
    ]
    print(f"loading, beyond importing torch: {min(map(float, loads)):.2f} s")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("give the file of pairs: python benchmarks/translation.py PAIRS.tsv")
    main(sys.argv[1])
