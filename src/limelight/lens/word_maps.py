"""Maps of words on a picture: where each word of a caption or a prompt is attended to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from limelight.lens.record import Call, Record
from limelight.lens.word import find_word
from limelight.matrix.grid import Grid

_MARKS = ("▁", "Ġ")  # before a token that begins a word
_CONTINUES, _ENDS = "##", "</w>"  # before a token that continues a word, and after one that ends it


@dataclass(frozen=True)
class WordMaps:
    """Heat over a picture for each word of a text.

    Attributes:
        words: the words, in their order.
        maps: ``(words, rows, cols)``: the heat of each.

    """

    words: list[str]
    maps: Tensor

    def __getitem__(self, word: str) -> Tensor:
        """Return the heat of a word ``(rows, cols)``, summed over its occurrences."""
        at = find_word(self.words, word)
        if not at:
            raise KeyError(f"there is no word {word!r}; words: {', '.join(self.words)}")
        return self.maps[at].sum(0)

    def show(self, image: Any = None, words: Sequence[str] | None = None, *, on: Any = "terminal") -> Any:
        """Draw the heat of each word over a picture.

        Args:
            image: the picture: a file, one of Pillow, an array or a tensor; the heat alone is drawn without it.
            words: the words to draw; all unless given.
            on: ``"terminal"``, a ``rich`` console, or ``"figure"`` for a figure of matplotlib, which is returned.

        """
        from limelight.viz.images import Panel, as_pixels, draw_over

        chosen = zip(self.words, self.maps, strict=True) if words is None else ((w, self[w]) for w in words)
        panels = [Panel(word, heat.float().cpu()) for word, heat in chosen]
        if not panels:
            raise ValueError("there are no words to draw")
        return draw_over(panels, None if image is None else as_pixels(image), on)

    def _repr_html_(self) -> str:
        from limelight.viz.notebook import matrix_html, side_by_side_html

        parts = [matrix_html(x.float().cpu().numpy(), title=w) for w, x in zip(self.words, self.maps, strict=True)]
        return side_by_side_html(parts)


def pieces_of_words(tokens: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Return the words of a tokenized text and the positions of their pieces; special tokens belong to no word.

    Understands ``▁`` and ``Ġ`` before the first piece of a word, ``##`` before the others, and ``</w>`` after the last.

    >>> pieces_of_words(["[CLS]", "a", "gi", "##raf", "##fe", "."])
    [('a', [1]), ('giraffe', [2, 3, 4]), ('.', [5])]
    >>> pieces_of_words(["<s>", "▁a", "▁gi", "raffe"]), pieces_of_words(["<|startoftext|>", "gi", "raffe</w>", "!</w>"])
    ([('a', [1]), ('giraffe', [2, 3])], [('giraffe', [1, 2]), ('!', [3])])
    """
    marks = any(token.startswith(_MARKS) for token in tokens)
    ends = any(token.endswith(_ENDS) for token in tokens)
    found: list[tuple[str, list[int]]] = []
    inside = False  # whether the next token may continue the last word
    for place, token in enumerate(tokens):
        if is_special(token):
            inside = False
            continue
        piece = token.removesuffix(_ENDS)
        piece = piece.removeprefix(_CONTINUES) if len(piece) > len(_CONTINUES) else piece
        piece = piece[1:] if piece.startswith(_MARKS) else piece
        begins = token.startswith(_MARKS) if marks else not inside if ends else not token.startswith(_CONTINUES)
        punctuation = marks and not any(c.isalnum() for c in piece)
        if found and inside and not begins and not punctuation:
            found[-1] = found[-1][0] + piece, [*found[-1][1], place]
        else:
            found.append((piece, [place]))
        inside = not token.endswith(_ENDS) and not punctuation
    return [(word or "␣", places) for word, places in found]


def is_special(token: str) -> bool:
    """Return whether a token stands for no text: ``[CLS]``, ``<s>``, ``<|endoftext|>``.

    >>> [is_special(x) for x in ("[SEP]", "</s>", "<|startoftext|>", "[", "<", "cat</w>")]
    [True, True, True, False, False, False]
    """
    return len(token) > 2 and (token[0], token[-1]) in {("[", "]"), ("<", ">")}


def caption_maps(
    record: Record,
    written: Sequence[str],
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    grid: Grid | None = None,
    batch: int = 0,
) -> WordMaps:
    """Return where on the picture a captioner looked while it wrote each word.

    The heat of a word is the cross-attention of the steps that wrote its pieces, the mean over layers and heads,
    summed over the pieces. It is the same for a run over the whole caption as for the steps of a generation.

    Args:
        record: what ``watch`` recorded of a run of the captioner: ``model.generate(…)`` without beams, or one call with
            the tokens before each written one (``decoder_input_ids=written[:, :-1]``).
        written: the tokens that were written, without the first one, which the decoder is given: one for each query.
        layers: numbers of the layers; all unless given.
        heads: numbers of the heads; all unless given.
        grid: how the keys lie on the picture; what the record knows unless given.
        batch: the picture of a batch.

    """
    by_layer: dict[str, list[Call]] = {}
    for call in record.log:
        if call.kind == "cross" and (layers is None or call.layer in layers):
            by_layer.setdefault(call.name, []).append(call)
    if not by_layer:
        raise ValueError("caption_maps: the record has no cross-attention of these layers")
    _refuse_beams(record, next(iter(by_layer.values()))[0])
    total: Tensor | None = None
    for calls in by_layer.values():
        rows = _rows(calls, len(written), batch, heads)
        total = rows if total is None else total + rows
    known = grid if grid is not None else next(iter(by_layer.values()))[0].grids[1]
    if known is None:
        raise ValueError("caption_maps: the record does not know how the keys lie on a picture; give grid=Grid(…)")
    assert total is not None
    return by_word(written, known.heat(total / len(by_layer)))


def _refuse_beams(record: Record, cross: Call) -> None:
    """Raise ``ValueError`` for beam search, which moves its sequences about inside the batch."""
    pictures = next((call.shape[0] for call in record.log if call.grids[0] is not None), cross.shape[0])
    if cross.shape[0] != pictures:
        raise ValueError(
            f"caption_maps: {cross.shape[0]} sequences were written for {pictures} pictures, as in beam search, and "
            "which became the caption is not known; record one more run over the tokens of the caption"
        )


def _rows(calls: Sequence[Call], count: int, batch: int, heads: Sequence[int] | None) -> Tensor:
    """Return the mean rows over heads of a layer's calls, one for each written token, ``(tokens, keys)``."""
    found = sum(call.shape[2] for call in calls)
    if found != count:
        raise ValueError(
            f"caption_maps: {calls[0].name} has {found} queries in {len(calls)} calls for {count} written tokens; give "
            "one token for each query (the first token is given, not written)"
        )
    with torch.no_grad():
        own = [call.weights[batch] for call in calls]  # (heads, queries, keys)
        return torch.cat([(x if heads is None else x[list(heads)]).float().mean(0) for x in own])


def by_word(tokens: Sequence[str], maps: Tensor) -> WordMaps:
    """Sum the maps ``(tokens, rows, cols)`` of the pieces of each word."""
    words = pieces_of_words(tokens)
    if not words:
        raise ValueError("the tokens have no words, only special ones")
    return WordMaps([word for word, _ in words], torch.stack([maps[places].sum(0) for _, places in words]))
