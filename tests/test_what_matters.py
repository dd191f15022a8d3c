"""A circuit that is known: the induction head of a model that was trained on repeated segments."""

from __future__ import annotations

import pytest
import torch

from limelight.experiments.what_matters import circuit, learn, texts
from limelight.explorer.questions import Arguments, RefusedError
from limelight.explorer.rooms import QUESTIONS
from limelight.explorer.subject import Subject
from limelight.lens import importance
from limelight.lens.reading import read
from limelight.translate import shipped


@pytest.mark.slow
def test_the_induction_circuit() -> None:
    model = learn(seed=0, steps=300)
    ids, loss = texts(32, seed=1)
    with torch.no_grad():
        found = circuit(model, ids, loss)
    induction, previous = found["induction"], found["previous"]
    assert induction["label"] == "induction"
    assert induction["layer"] == 1
    assert previous["layer"] == 0
    first = importance(model, ids, metric=loss).top(1)[0]
    assert (first["layer"], first["head"]) == (induction["layer"], induction["head"])
    assert found["clean"] < 0.2
    assert found["knocked"] > found["clean"] + 1
    assert found["score_after"] < 0.75 * induction["induction"]
    assert found["restored"] < found["clean"] + 0.2 * (found["knocked"] - found["clean"])


def test_the_room_what_if() -> None:
    subject = Subject.of(read(shipped(), "The cat is sleeping."))

    def ask(**given: object) -> dict[str, object]:
        return QUESTIONS["what_if"].ask(subject, Arguments(given)).data

    unchanged = ask()
    assert unchanged["after"] == unchanged["before"]
    cross = [m.number for m in subject.matrices if m.call.kind == "cross"]
    off = ask(off=[[n, -1] for n in cross])
    assert off["before"] == unchanged["before"]
    assert off["after"] != off["before"]  # without the source nothing of it is left
    mixed = ask(off=[[cross[0], 1]], temperatures=[[cross[0], -1, 2.0]], knockouts=[[cross[0], -1, 0, 1, 0, 2]])
    edits = mixed["edits"]
    assert isinstance(edits, dict)
    assert list(edits) == [subject.matrices[cross[0]].call.name]
    for wrong in (
        {"off": [[99, 0]]},
        {"off": [[0]]},
        {"temperatures": [[0, 0, -1.0]]},
        {"knockouts": [[0, 0, 0, 99, 0, 0]]},
    ):
        with pytest.raises(RefusedError):
            ask(**wrong)
    with pytest.raises(RefusedError, match="no model"):
        QUESTIONS["what_if"].ask(Subject.of(subject.matrices[0].call.weights), Arguments({}))
