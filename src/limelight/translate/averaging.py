"""The mean of the weights of several trainings that began with the same model.

Where trainings from one start differ in their regularisation, the mean of their weights is often better than each of
them, at no cost when it is used (Wortsman et al. 2022, "Model soups").

python -m limelight.translate.averaging OUT FOLDER FOLDER …
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from limelight import models
from limelight.nn import Seq2Seq
from limelight.translate import vocabulary
from limelight.translate.copying import WORDS
from limelight.translate.stand_ins import NAMES


def mean_of(folders: Sequence[str | Path]) -> Seq2Seq:
    """Return a model whose parameters are the means of those in ``folders``, in float32.

    Args:
        folders: models of one shape and one vocabulary.

    """
    if not folders:
        raise ValueError("mean_of: give at least one folder")
    first, *others = (models.load(folder, dtype=torch.float32) for folder in folders)
    if not isinstance(first, Seq2Seq):
        raise ValueError(f"{folders[0]} is a {type(first).__name__}, not a translator")
    pieces = vocabulary.read(Path(folders[0])).get_vocab()
    parameters = dict(first.named_parameters())
    for folder, other in zip(folders[1:], others, strict=True):
        shapes = {name: x.shape for name, x in other.named_parameters()}
        if shapes != {name: x.shape for name, x in parameters.items()}:
            raise ValueError(
                f"{folder} has other layers or sizes than {folders[0]}: only models of one shape have a mean"
            )
        if vocabulary.read(Path(folder)).get_vocab() != pieces:
            raise ValueError(f"{folder} has another vocabulary than {folders[0]}: begin both trainings with one model")
    with torch.no_grad():
        for name, x in parameters.items():
            x.copy_(torch.stack([x, *(other.get_parameter(name) for other in others)]).mean(0))
    return first


def main(out: str, folders: Sequence[str]) -> None:
    """Write the mean in float16, with the vocabulary, words and names of the first folder."""
    models.save(mean_of(folders).half(), out)
    for file in ("tokenizer.json", WORDS, NAMES):
        if (Path(folders[0]) / file).is_file():
            shutil.copy(Path(folders[0]) / file, Path(out) / file)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("folders", nargs="+")
    asked = parser.parse_args()
    main(asked.out, asked.folders)
