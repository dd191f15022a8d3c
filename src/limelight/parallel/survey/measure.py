"""The measures of every head on one document, and the sums over several documents."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import torch

from limelight.lens.by_token import measures_by_token
from limelight.lens.heads_table import MEASURES
from limelight.lens.reading import Reading
from limelight.matrix.statistics.profile import Profile
from limelight.parallel.survey.sketch import Sketch

RADIUS = 64  # distances in a profile, on either side
_EXAMPLES = 5  # strongest links that are kept of each head
# Labels of heads whose strongest links are those that a list of links usually leaves out as trivial.
_TRIVIAL = ("previous token", "next token", "itself", "separator", "sink", "local")
_AROUND = 6  # tokens that are shown on either side of an example's query and key


class Findings:
    """Sums over some documents, for every head of every attention module.

    ``heads`` lists them as ``{"module", "stack", "kind", "layer", "head"}``. Floats are summed document by
    document in their order, so that the sums do not depend on how the work is split.
    """

    def __init__(self) -> None:
        self.heads: list[dict[str, Any]] = []
        self.documents = self.tokens = self.cut_tokens = 0
        self.skipped: list[dict[str, str]] = []
        self.labels: list[dict[str, int]] = []
        self.examples: list[list[dict[str, Any]]] = []
        self.by_document = self.by_token = Sketch(0, MEASURES)
        self.profile = self.profile_count = np.zeros((0, 2 * RADIUS + 1))
        self.similarity: dict[str, np.ndarray] = {}

    def skip(self, name: str, why: str) -> None:
        """Note a document that could not be read."""
        self.skipped.append({"document": name, "reason": why})

    def add(self, number: int, name: str, reading: Reading) -> None:
        """Add one document."""
        rows = reading.heads()
        heads = [{key: row[key] for key in ("module", "stack", "kind", "layer", "head")} for row in rows]
        if not self.heads:
            self._begin(heads)
        if heads != self.heads:
            raise ValueError(f"{name}: the model has other heads than for the documents before")
        self.documents += 1
        self.tokens += len(reading.tokens["encoder"])
        self.cut_tokens += reading.left_out
        for at, row in enumerate(rows):
            self.labels[at][row["label"]] = self.labels[at].get(row["label"], 0) + 1
            for measure in MEASURES:
                if row[measure] is not None:
                    self.by_document.add(at, measure, np.array([row[measure]]))
        self._add_calls(number, name, reading, [row["label"] in _TRIVIAL for row in rows])

    def _begin(self, heads: list[dict[str, Any]]) -> None:
        n = len(heads)
        self.heads = heads
        self.labels, self.examples = [{} for _ in heads], [[] for _ in heads]
        self.by_document, self.by_token = Sketch(n, MEASURES), Sketch(n, MEASURES)
        self.profile, self.profile_count = np.zeros((n, 2 * RADIUS + 1)), np.zeros((n, 2 * RADIUS + 1))

    def _add_calls(self, number: int, name: str, reading: Reading, trivial: list[bool]) -> None:
        first: dict[str, int] = {}
        for at, head in enumerate(self.heads):
            first.setdefault(head["module"], at)
        for call in reading.record.log:
            begin, (_, H, N, M) = first[call.name], call.shape
            queries, keys = reading.names(call)
            for measure, values in measures_by_token(call, keys).items():
                for h in range(H):
                    self.by_token.add(begin + h, measure, values[h].numpy())
            with torch.no_grad():
                seen = call.weights.observe(similarity=H > 1, profile=RADIUS if call.kind == "self" else None)
            if seen.profile is not None:
                counts = Profile(RADIUS).counts(N, M, seen.profile.device).double()
                d = torch.arange(-RADIUS, RADIUS + 1)
                counts = torch.where((d > -M) & (d < N), counts, 0.0)
                self.profile[begin : begin + H] += (seen.profile[0].double() * counts).numpy()
                self.profile_count[begin : begin + H] += counts.numpy()
            if seen.similarity is not None:
                before = self.similarity.get(call.name, np.zeros((H, H)))
                self.similarity[call.name] = before + seen.similarity[0].double().numpy()
            for h in range(H):
                links = reading.links(call, h, _EXAMPLES, trivial=trivial[begin + h])
                found = [_example(number, name, link, queries, keys) for link in links]
                self.examples[begin + h] = _strongest(self.examples[begin + h] + found)

    def merge(self, other: Findings) -> None:
        """Add the findings of later documents."""
        self.skipped += other.skipped
        if not other.heads:
            return
        if not self.heads:
            self._begin(other.heads)
        if self.heads != other.heads:
            raise ValueError("the parts of the survey are of models with different heads")
        self.documents += other.documents
        self.tokens += other.tokens
        self.cut_tokens += other.cut_tokens
        for at, labels in enumerate(other.labels):
            for label, count in labels.items():
                self.labels[at][label] = self.labels[at].get(label, 0) + count
            self.examples[at] = _strongest(self.examples[at] + other.examples[at])
        self.by_document.merge(other.by_document)
        self.by_token.merge(other.by_token)
        self.profile, self.profile_count = self.profile + other.profile, self.profile_count + other.profile_count
        for module, sums in other.similarity.items():
            self.similarity[module] = self.similarity.get(module, np.zeros_like(sums)) + sums

    def to_bytes(self) -> bytes:
        """Write everything, numbers to the bit."""
        words = {
            name: getattr(self, name)
            for name in ("heads", "documents", "tokens", "cut_tokens", "skipped", "labels", "examples")
        }
        arrays: dict[str, Any] = {"profile": self.profile, "profile_count": self.profile_count}
        for kind in ("by_document", "by_token"):
            arrays |= {f"{kind}.{name}": getattr(getattr(self, kind), name) for name in Sketch.FIELDS}
        arrays |= {f"similarity.{module}": x for module, x in self.similarity.items()}
        file = io.BytesIO()
        np.savez_compressed(file, words=np.frombuffer(json.dumps(words).encode(), dtype=np.uint8), **arrays)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Findings:
        """Read what ``to_bytes`` wrote."""
        found = cls()
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            for name, value in json.loads(arrays["words"].tobytes()).items():
                setattr(found, name, value)
            found.profile, found.profile_count = arrays["profile"], arrays["profile_count"]
            for kind in ("by_document", "by_token"):
                sketch = Sketch(0, MEASURES)
                for name in Sketch.FIELDS:
                    setattr(sketch, name, arrays[f"{kind}.{name}"])
                setattr(found, kind, sketch)
            for name in arrays.files:
                if name.startswith("similarity."):
                    found.similarity[name.removeprefix("similarity.")] = arrays[name]
        return found


def _strongest(examples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    order = sorted(examples, key=lambda x: (-x["weight"], x["number"], x["query"], x["key"]))
    return order[:_EXAMPLES]


def _example(number: int, name: str, link: Any, queries: list[str], keys: list[str]) -> dict[str, Any]:
    return {
        "weight": link.weight,
        "number": number,
        "document": name,
        "query": link.query,
        "key": link.key,
        "query_text": _around(queries, link.query),
        "key_text": _around(keys, link.key),
    }


def _around(tokens: list[str], at: int) -> list[str]:
    """The tokens before, the token itself, and those after it."""
    before, after = tokens[max(0, at - _AROUND) : at], tokens[at + 1 : at + 1 + _AROUND]
    return [" ".join(before), tokens[at], " ".join(after)]
