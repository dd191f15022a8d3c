"""The subject of an exploration: attention matrices with the tokens of their queries and keys."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import Any

import torch

from limelight.explorer.head import SMALL, Head
from limelight.explorer.memory import Memory
from limelight.explorer.pictures import check_pictures, data_url, described_grid, on_picture, pictures_of, words_of
from limelight.explorer.tiles import Allowed, Floats, Region, base_level, level_within, top_level
from limelight.lens import Call, Record, heads
from limelight.lens.next_tokens import NextTokens
from limelight.lens.reading import Reader, Reading
from limelight.lens.replay import Replay
from limelight.matrix.base import Weights
from limelight.matrix.grid import Grid
from limelight.translate import Translator
from limelight.viz.images import Pixels

_KEPT = 192 * 2**20  # bytes of tiles and statistics that are kept
Texts = Sequence[str] | Sequence[Sequence[str]]


class Matrix:
    """One attention call of a model, with the tokens of its queries and keys by batch element."""

    def __init__(
        self,
        number: int,
        call: Call,
        texts: tuple[Texts | None, Texts | None],
        next_tokens: NextTokens | None = None,
    ) -> None:
        self.number, self.call, self.next_tokens = number, call, next_tokens
        self.B, self.H, self.N, self.M = call.shape
        self.queries = _by_batch("queries", texts[0], self.B, self.N)
        self.keys = _by_batch("keys", texts[1], self.B, self.M)

    @cached_property
    def _allowed(self) -> list[list[Allowed]]:
        """The places that the mask allows, by batch element and head; cached, because a dense matrix takes a pass."""
        return Allowed.of(self.call.weights.mask, self.B, self.H, self.N, self.M)

    def allowed(self, batch: int, head: int) -> Allowed:
        """Return the places that a head may attend to."""
        return self._allowed[batch][head]

    def thumbnails(self, batch: int, cells: int) -> Floats:
        """Return the means of ``(heads, rows, columns)`` cells, so many on a side at most, from one pass."""
        level = level_within(max(self.N, self.M), cells)
        whole = Region(0, self.N, 0, self.M)
        with torch.no_grad():
            found: Floats = self.call.weights.select(batch).batched().pool(cell=1 << level)[0].float().cpu().numpy()
        allowed = {one: one.cells(whole, 1 << level) for one in {*self._allowed[batch]}}  # heads may share one
        for head, one in enumerate(self._allowed[batch]):
            found[head][~allowed[one]] = -1
        return found


class Subject:
    """All matrices that a page shows."""

    def __init__(
        self,
        title: str,
        matrices: Sequence[Matrix],
        *,
        note: str = "",
        wrote: str = "",
        translator: Translator | None = None,
        reader: Reader | None = None,
        opens: tuple[int, int] | None = None,
        pictures: Sequence[Pixels] = (),
    ) -> None:
        if not matrices:
            raise ValueError("there is no attention to explore: the record is empty")
        self.title, self.matrices, self.note, self.wrote = title, list(matrices), note, wrote
        self.translator, self.reader, self.opens = translator, reader, opens
        self.pictures = check_pictures(pictures, self.matrices)
        self.replay: Replay | None = None  # runs the model again with edits
        self.running = Lock()  # a recorder records every run of the model, so one question runs it at a time
        self.memory = Memory(_KEPT)

    @staticmethod
    def of(
        given: Weights | Record | Reading | Sequence[Reading],
        tokens: Any = None,
        title: str | None = None,
        image: Any = None,
        grid: Grid | None = None,
    ) -> Subject:
        """Make a subject from the arguments of ``explore``.

        Args:
            given: some weights, what ``watch`` recorded, a reading, or several of one model.
            tokens: names for queries and keys; a pair of lists where they differ; or lists by stack, such as
                ``{"encoder": …, "decoder": …}``, with ``"written"`` for the queries of a cross-attention.
            title: the name of the model.
            image: the picture whose patches are queries or keys, or a list of one for each batch element.
            grid: how the patches lie, where the record does not know it.

        """
        pictures = pictures_of(image)
        readings = [given] if isinstance(given, Reading) else list(given) if isinstance(given, (list, tuple)) else []
        if readings and all(isinstance(reading, Reading) for reading in readings):
            left_out = sum(reading.left_out for reading in readings)
            note = f"The model has no positions for the last {left_out} tokens." if left_out else ""
            wrote = " ".join(reading.wrote for reading in readings if reading.wrote)
            found = Subject(
                title or readings[0].model,
                _of_readings(readings),
                note=note,
                wrote=wrote,
                reader=readings[0].reader,
                opens=_most_telling(readings[0]),
                pictures=pictures or ([] if readings[0].picture is None else [readings[0].picture]),
            )
            found.replay = readings[0].replay if len(readings) == 1 else None
            return found
        if isinstance(given, Weights):
            call = on_picture(_call_of(given), grid, bool(pictures))
            return Subject(title or "attention", _numbered([(call, _texts_of(call, tokens))]), pictures=pictures)
        if isinstance(given, Record):
            calls = [on_picture(call, grid, False) for call in given.log]
            named = [(call, _texts_of(call, tokens)) for call in calls]
            return Subject(title or "model", _numbered(named), pictures=pictures)
        raise TypeError(f"explore: give Weights, a record of watch or a reading, not {type(given).__name__}")

    def head(self, call: int, batch: int, head: int) -> Head:
        """Return one head, ready for questions."""
        matrix = self.matrices[call]

        def make() -> Head:
            A = matrix.call.weights.select(batch, head).batched()
            return Head(A, matrix.allowed(batch, head), (call, batch, head), self.memory)

        found: Head = self.memory.get((call, batch, head, "head"), make)
        return found

    def thumbnails(self, call: int, batch: int, chosen: Sequence[int], cells: int) -> dict[int, Floats]:
        """Return small pictures of some heads; those of short texts come from one pass over all heads of the call."""
        matrix = self.matrices[call]
        if matrix.N * matrix.M > SMALL:
            return {head: self.head(call, batch, head).thumbnail(cells) for head in chosen}
        every = self.memory.get((call, batch, "thumbnails", cells), lambda: matrix.thumbnails(batch, cells))
        return {head: every[head] for head in chosen}

    def report(self, call: int) -> list[dict[str, Any]]:
        """Return the rows of ``lens.heads`` for one call."""
        matrix = self.matrices[call]

        def make() -> list[dict[str, Any]]:
            record = Record()
            record.add(matrix.call)
            named = {} if matrix.keys is None else {matrix.call.stack: matrix.keys, "encoder": matrix.keys}
            return list(heads(record, named))

        found: list[dict[str, Any]] = self.memory.get((call, "report"), make)
        return found

    def about(self) -> dict[str, Any]:
        """Describe the matrices; token lists that several share are listed once."""
        texts = _DistinctTexts()
        calls = [self._described(matrix, texts) for matrix in self.matrices]
        return {
            "title": self.title,
            "note": self.note,
            "wrote": self.wrote,
            "calls": calls,
            "texts": texts.found,
            "words": words_of(calls, texts.found),
            "pictures": [data_url(picture) for picture in self.pictures],
            "opens": self.opens,
            "translates": self.translator is not None,
            "replays": self.replay is not None,
            "reads": self.reader is not None,
        }

    def _described(self, m: Matrix, texts: _DistinctTexts) -> dict[str, Any]:
        """Describe one matrix; its tokens go to ``texts``, and their numbers there stand in their place."""
        call = m.call
        return {
            "name": call.name,
            "stack": call.stack,
            "kind": call.kind,
            "layer": call.layer,
            "phase": call.phase,
            "batch": m.B,
            "heads": m.H,
            "queries": m.N,
            "keys": m.M,
            "pass": sum(other.call.name == call.name for other in self.matrices[: m.number]),
            "texts": [[texts.number(side and side[batch]) for side in (m.queries, m.keys)] for batch in range(m.B)],
            "base": base_level(m.N, m.M),
            "top": top_level(m.N, m.M),
            "grids": [described_grid(grid) for grid in call.grids],
            "predicts": m.next_tokens and m.next_tokens.first,
        }


class _DistinctTexts:
    """Lists of tokens, each once, by the order in which they are first met."""

    def __init__(self) -> None:
        self.found: list[Sequence[str]] = []
        self._numbers: dict[int, int] = {}  # by the identity of the list, so that most are not compared

    def number(self, text: Any) -> int | None:
        """Return the number of a list of tokens, which is added where it is new; None for None."""
        if text is None:
            return None
        if id(text) not in self._numbers:
            same = next((n for n, known in enumerate(self.found) if list(known) == list(text)), None)
            if same is None:
                self.found.append(text)
            self._numbers[id(text)] = len(self.found) - 1 if same is None else same
        return self._numbers[id(text)]


def _most_telling(reading: Reading) -> tuple[int, int] | None:
    """Return the number of the call and the head with the strongest links, if they are quick to find."""
    if sum(math.prod(call.shape) for call in reading.record.log) > 8 * SMALL:
        return None
    chosen, head = reading.most_telling()
    return next(n for n, call in enumerate(reading.record.log) if call is chosen), head


def _numbered(named: Sequence[tuple[Call, tuple[Texts | None, Texts | None]]]) -> list[Matrix]:
    return [Matrix(n, call, texts) for n, (call, texts) in enumerate(named)]


def _of_readings(readings: Sequence[Reading]) -> list[Matrix]:
    """Return the calls of some readings; the self-attention of a decoder comes with the tokens that it expects."""
    calls = [(call, reading) for reading in readings for call in reading.record.log]
    writes = [(call.stack, call.kind) == ("decoder", "self") for call, _ in calls]
    return [
        Matrix(n, call, reading.names(call), reading.next_tokens if writes[n] else None)
        for n, (call, reading) in enumerate(calls)
    ]


def _call_of(A: Weights) -> Call:
    """Return weights as a call of a model with one layer."""
    if A.ndim != 4:
        A = A.batched()
    N, M = A.shape[-2:]
    return Call("attention", "self" if N == M else "cross", "encoder", "prefill", A, A.shape)


def _texts_of(call: Call, tokens: Any) -> tuple[Texts | None, Texts | None]:
    """Return the tokens of the queries and of the keys of a call."""
    *_, N, M = call.shape
    if isinstance(tokens, Mapping):
        if wrong := tokens.keys() - {"encoder", "decoder", "written"}:
            raise ValueError(f"explore: tokens of the {sorted(wrong)[0]}; there are 'encoder', 'decoder', 'written'")
        if call.kind == "cross":
            return tokens.get("written", tokens.get("decoder")), tokens.get("encoder")
        own = tokens.get(call.stack)
        return _last(own, N, M), own
    if isinstance(tokens, tuple) and len(tokens) == 2 and not any(isinstance(t, str) for t in tokens):
        return tokens
    if tokens is None:
        queries, keys = (None if grid is None else grid.names() for grid in call.grids)
        return queries, keys
    if call.kind == "cross":
        raise ValueError(
            "explore: queries and keys are of two texts; give a pair of lists, or {'encoder': …, 'written': …}"
        )
    return _last(tokens, N, M), tokens


def _last(tokens: Texts | None, N: int, M: int) -> Texts | None:
    """Return the names of the last ``N`` of ``M`` tokens: the queries that a cache's keys end with."""
    if tokens is None or N == M:
        return tokens
    if N > M:
        return None
    return [t[M - N :] for t in tokens] if _nested(tokens) else tokens[M - N :]


def _nested(tokens: Texts) -> bool:
    return len(tokens) > 0 and isinstance(tokens[0], (list, tuple))


def _by_batch(side: str, tokens: Texts | None, B: int, n: int) -> list[Sequence[str]] | None:
    if tokens is None:
        return None
    if isinstance(tokens, str) or not hasattr(tokens, "__len__"):
        raise TypeError(f"explore: tokens must be a list of strings, not {type(tokens).__name__}")
    texts: list[Any] = list(tokens) if _nested(tokens) else [list(tokens)] * B
    if len(texts) != B:
        raise ValueError(f"explore: tokens of {len(texts)} texts for {B} batch elements; give a list for each")
    for text in texts:
        if len(text) != n:
            raise ValueError(f"explore: {len(text)} tokens for {n} {side}")
        if not all(isinstance(token, str) for token in text):
            raise TypeError("explore: tokens must be strings, such as tokenizer.convert_ids_to_tokens(ids)")
    return texts
