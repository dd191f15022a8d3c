"""How good and how fast the translator is: BLEU on the sentences that it was not trained on, and times.

pip install '.[train]' && python benchmarks/translation.py PAIRS.tsv
"""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial

import torch

from attention import best
from limelight import translate

LOAD = """
import time, torch
begin = time.perf_counter()
from limelight import translate
translate.load()
print(time.perf_counter() - begin)
"""
SHORT = "The cat is sleeping."


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
    calls = {f"{n} beam{'s' * (n > 1)}": partial(translator, SHORT, beams=n) for n in (1, 4)}
    for name, seconds in best(calls, 3.0).items():
        print(f"{SHORT!r}, {name}, 1 thread: {1e3 * seconds:.0f} ms")
    loads = [float(subprocess.check_output([sys.executable, "-c", LOAD])) for _ in range(3)]
    print(f"loading, beyond importing torch: {min(loads):.2f} s")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("give the file of pairs: python benchmarks/translation.py PAIRS.tsv")
    main(sys.argv[1])
