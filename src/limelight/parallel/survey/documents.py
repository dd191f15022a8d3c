"""The documents of a corpus: lines or whole files of text, records of jsonl and parquet, one at a time.

A document is known by its number, which counts through all files in the order in which they are given, so that every
process finds its own without asking the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Document:
    """One document, or the reason why it cannot be read."""

    number: int
    name: str  # the file and the line or record
    text: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Corpus:
    """The files of a corpus.

    Args:
        files: texts, ``.jsonl`` and ``.parquet`` files.
        field: the field of a record that holds the text.
        whole_files: each text file is one document, and not each of its lines.

    """

    files: Sequence[Path]
    field: str = "text"
    whole_files: bool = False

    def __post_init__(self) -> None:
        if not self.files:
            raise ValueError("a survey needs at least one file")
        for file in self.files:
            if not file.is_file():
                raise FileNotFoundError(f"there is no file {file}")

    def describe(self) -> dict[str, Any]:
        """The identity of the corpus, by which a survey is resumed."""
        files = [[file.name, file.stat().st_size] for file in self.files]
        return {"files": files, "field": self.field, "whole_files": self.whole_files}

    def count(self) -> int:
        """The number of documents, with those that cannot be read."""
        return sum(self._count(file) for file in self.files)

    def read(self, wanted: Callable[[int], bool]) -> Iterator[Document]:
        """Yield the documents whose numbers are wanted; the others are passed over without being parsed."""
        number = 0
        for file in self.files:
            for place, content in self._records(file):
                if wanted(number):
                    yield self._document(number, file, place, content)
                number += 1

    def _count(self, file: Path) -> int:
        if file.suffix == ".parquet":
            found: int = _parquet().ParquetFile(file).metadata.num_rows
            return found
        return sum(1 for _ in self._records(file))

    def _records(self, file: Path) -> Iterator[tuple[int, Any]]:
        """Yield the number of each record of a file, from 1 on, and its content, bytes unless it is from parquet."""
        if file.suffix == ".parquet":
            yield from enumerate(self._parquet_records(file), 1)
        elif file.suffix != ".jsonl" and self.whole_files:
            yield 1, file.read_bytes()
        else:
            with file.open("rb") as lines:
                yield from ((n, line) for n, line in enumerate(lines, 1) if line.strip())

    def _parquet_records(self, file: Path) -> Iterator[Any]:
        table = _parquet().ParquetFile(file)
        if self.field not in table.schema_arrow.names:
            names = ", ".join(table.schema_arrow.names)
            raise ValueError(f"{file} has no column {self.field!r}; it has {names}: name one with --field")
        for batch in table.iter_batches(columns=[self.field], batch_size=256):
            yield from batch.column(0).to_pylist()

    def _document(self, number: int, file: Path, place: int, content: Any) -> Document:
        whole = self.whole_files and file.suffix not in (".jsonl", ".parquet")
        name = file.name if whole else f"{file.name}:{place}"
        try:
            text = self._text(file, content)
        except (UnicodeDecodeError, ValueError) as error:
            return Document(number, name, problem=str(error))
        if not text.strip():
            return Document(number, name, problem="it is empty")
        return Document(number, name, text)

    def _text(self, file: Path, content: Any) -> str:
        if file.suffix == ".jsonl":
            record = json.loads(content)
            if not isinstance(record, dict) or self.field not in record:
                raise ValueError(f"it has no field {self.field!r}")
            content = record[self.field]
        if isinstance(content, bytes):
            return content.decode("utf-8-sig").strip("\r\n")
        if not isinstance(content, str):
            raise ValueError(f"{self.field!r} is {type(content).__name__}, not text")
        return content


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise ImportError("parquet files need pyarrow: pip install 'limelight-attention[survey]'") from None
    return pyarrow.parquet
