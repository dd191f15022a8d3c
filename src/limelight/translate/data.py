"""Pairs of sentences: read, divided, and made into batches without much padding."""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor


class Pair(NamedTuple):
    """A sentence, ``source``, and one of its translations, ``target``."""

    source: str
    target: str


def read_pairs(file: str | Path, note: Callable[[str], None] = lambda _: None) -> list[Pair]:
    """Read pairs from a tab-separated file (``.tsv`` or ``.tsv.gz``): a sentence, then its translation.

    Further columns are ignored; ``note`` is called with a message about them.
    """
    file = Path(file)
    pairs: list[Pair] = []
    more: list[str] = []  # contents of third columns
    packed = file.suffix == ".gz"
    with gzip.open(file, "rt", encoding="utf-8-sig") if packed else file.open(encoding="utf-8-sig") as lines:
        try:
            for number, line in enumerate(lines, 1):
                fields = [field.strip() for field in line.split("\t")]
                if fields == [""]:
                    continue
                if len(fields) < 2 or not all(fields[:2]):
                    raise ValueError(f"{file}, line {number}: give a sentence, a tab and its translation: {line!r}")
                pairs.append(Pair(*fields[:2]))
                more += fields[2:3]
        except (UnicodeDecodeError, gzip.BadGzipFile, EOFError, zlib.error) as error:
            what = "text in UTF-8" if isinstance(error, UnicodeDecodeError) else "file of gzip"
            raise ValueError(f"{file} is no {what}: {error}") from None
    if not pairs:
        raise ValueError(f"{file} holds no pairs")
    if any(more):
        first = next(filter(None, more))
        shown = first if len(first) <= 40 else first[:39] + "…"
        note(f"{file}: columns after the second are not used; {len(more):,} lines have a third one, such as {shown!r}")
    return pairs


def divide(pairs: Sequence[Pair], held_out: int, seed: int) -> tuple[list[Pair], dict[str, list[str]]]:
    """Divide pairs at random, by ``seed``, into those to train on and ``held_out`` sentences with their translations.

    No sentence of either language is in both parts: a pair that shares its translation with a held-out sentence is in
    neither.
    """
    sources = sorted({pair.source for pair in pairs})
    if not 0 < held_out < len(sources):
        raise ValueError(
            f"held_out = {held_out} (--held-out): there are {len(sources)} sentences, and some must be left"
        )
    chosen = set(random.Random(seed).sample(sources, held_out))
    references: dict[str, list[str]] = {}
    for pair in pairs:
        if pair.source in chosen:
            references.setdefault(pair.source, []).append(pair.target)
    known = {target for targets in references.values() for target in targets}
    training = [pair for pair in pairs if pair.source not in chosen and pair.target not in known]
    if not training:
        raise ValueError("nothing is left to train on: every translation belongs to a sentence that is held out")
    return training, references


class Batch(NamedTuple):
    """Sentences as ids: sources ``(B, M)`` and targets ``(B, N)``, filled up with padding, and their lengths."""

    source: Tensor
    source_lengths: Tensor
    target: Tensor
    target_lengths: Tensor


Ids = tuple[list[int], list[int]]

_POOL = 64  # batches sorted by length together: enough for little padding, few enough that epochs differ


def batches(ids: Sequence[Ids], tokens: int, padding: int, seed: str) -> list[Batch]:
    """Shuffle pairs into batches of sentences of similar length, with about ``tokens`` target tokens in each."""
    order = random.Random(seed)
    pairs = list(ids)
    order.shuffle(pairs)
    mean = sum(len(target) for _, target in pairs) / len(pairs)
    size = max(1, round(_POOL * tokens / mean))
    groups: list[list[Ids]] = []
    for begin in range(0, len(pairs), size):
        pool = sorted(pairs[begin : begin + size], key=lambda pair: (len(pair[1]), len(pair[0])))
        group: list[Ids] = []
        for pair in pool:
            if group and (len(group) + 1) * len(pair[1]) > tokens:
                groups.append(group)
                group = []
            group.append(pair)
        groups.append(group)
    order.shuffle(groups)
    return [Batch(*padded([s for s, _ in group], padding), *padded([t for _, t in group], padding)) for group in groups]


def padded(rows: Iterable[Sequence[int]], padding: int) -> tuple[Tensor, Tensor]:
    """Pad rows of ids to one tensor; return it and their lengths."""
    tensors = [torch.tensor(row) for row in rows]
    filled = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=padding)
    return filled, torch.tensor([len(row) for row in tensors])
