"""Drawings of show() and repr()."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from rich.console import Console

import limelight as ll


def shown(A: ll.Weights, *args: Any, width: int = 80, **kwargs: Any) -> list[str]:
    text = io.StringIO()
    A.show(*args, **kwargs, on=Console(file=text, width=width))
    return text.getvalue().splitlines()


def given(matrix: list[list[float]]) -> ll.Weights:
    return ll.Weights.from_dense(torch.tensor([[matrix]]))


def test_shades() -> None:
    A = given([[0.0, 0.01, 0.25, 0.5, 0.75, 1.0], [torch.nan, 1.0, 0.0, 0.0, 0.0, 0.0]])
    assert repr(A).splitlines()[1:] == ["A[0, 0]", "  ··░░▒▒▓▓██", "??██"]
    assert shown(A)[-4:-1] == ["0   ··░░▒▒▓▓██", "1 ??██", "  █ 1"]


def test_tokens_on_both_axes() -> None:
    A = given([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    assert shown(A, ["chat", "a\nb"], ["the", "black", "extraordinarily long"]) == [
        "head 0",
        "         e",
        "         x",
        "         t",
        "         r",
        "         a",
        "         o",
        "         r",
        "         d",
        "         i",
        "       b n",
        "       l a",
        "     t a r",
        "     h c i",
        "     e k …",
        "chat ██",
        " a↵b   ██",
        "     █ 1",
        "",
    ]


def test_every_head_or_one() -> None:
    A = ll.weights(torch.randn(2, 3, 4, 8), torch.randn(2, 3, 4, 8))
    assert [line for line in shown(A) if "head" in line] == ["head 0", "head 1", "head 2"]
    one = shown(A, head=-1, batch=1)
    assert [line for line in one if "head" in line] == ["head 2"]
    assert one[1:] == shown(ll.Weights.from_dense(A.dense()[1:, 2:]))[1:]


def test_a_large_matrix_is_pooled_to_the_width() -> None:
    A = ll.weights(torch.zeros(1, 2, 700, 8), torch.zeros(1, 2, 1000, 8), mask=ll.Causal())
    lines = shown(A, head=1, width=60)
    assert len(lines) == 1 + 3 + 48 + 2  # title, three digits, rows, the largest and a blank
    assert max(map(len, lines)) <= 60
    assert lines[4].startswith("  0 ")
    wide = ll.weights(torch.zeros(1, 1, 3000, 8), torch.zeros(1, 1, 3000, 8), mask=ll.Causal())  # too large to be held
    assert shown(wide)[5 + 24].rstrip("·") == "1500 " + "░" * len(shown(wide)[5 + 24].rstrip("·")[5:])


def test_colour_only_where_there_is_a_terminal() -> None:
    text = io.StringIO()
    A = given([[1.0, 0.5]])
    A.show(on=Console(file=text, force_terminal=True, color_system="truecolor"))
    assert "\x1b[38;2;252;185;61m██" in text.getvalue()
    assert "\x1b" not in "".join(shown(A))


def test_repr_draws_what_is_small() -> None:
    small, large = (ll.weights(torch.randn(2, 2, n, 8), torch.randn(2, 2, n, 8), mask=ll.Causal()) for n in (5, 50))
    lines = repr(small).splitlines()
    assert lines[0] == "Weights(shape=(2, 2, 5, 5), dtype=float32, mask=Causal())"
    assert lines[1].split() == ["A[0,", "0]", "A[0,", "1]"]
    assert len(lines) == 7
    assert repr(large) == "Weights(shape=(2, 2, 50, 50), dtype=float32, mask=Causal())"
    assert repr(ll.weights(torch.randn(1, 0, 8), torch.randn(1, 5, 8))) == "Weights(shape=(1, 0, 5), dtype=float32)"
    meta = torch.empty(1, 2, 8, device="meta")
    assert repr(ll.weights(meta, meta)) == "Weights(shape=(1, 2, 2), dtype=float32)"
    learned = torch.randn(1, 2, 8, requires_grad=True)
    assert len(repr(ll.weights(learned, learned)).splitlines()) == 4


def test_figures() -> None:
    from matplotlib.figure import Figure

    A = ll.weights(torch.randn(1, 3, 5, 8), torch.randn(1, 3, 7, 8))
    figure = A.show(list("abcde"), list("1234567"), on="figure")
    assert isinstance(figure, Figure)
    maps = [axis for axis in figure.axes if axis.get_title()]
    assert [axis.get_title() for axis in maps] == ["head 0", "head 1", "head 2"]
    assert [t.get_text() for t in maps[0].get_yticklabels()] == list("abcde")
    assert [t.get_text() for t in maps[0].get_xticklabels()] == list("1234567")
    torch.testing.assert_close(torch.tensor(maps[1].images[0].get_array()), A.dense()[0, 1])
    axis = Figure().subplots()
    assert A.show(head=2, on=axis) is axis.figure
    torch.testing.assert_close(torch.tensor(axis.images[0].get_array()), A.dense()[0, 2])
    figure.savefig(io.BytesIO())
    large = ll.weights(torch.randn(1, 1, 700, 8), torch.randn(1, 1, 900, 8))
    large.show(on="figure").savefig(io.BytesIO())


def test_errors() -> None:
    A = ll.weights(torch.randn(1, 3, 5, 8), torch.randn(1, 3, 7, 8))
    with pytest.raises(ValueError, match=r"show: 4 names for 5 queries \(tokens=…\)"):
        A.show(list("abcd"))
    with pytest.raises(ValueError, match=r"show: 5 names for 7 keys \(keys=…\)"):
        A.show(keys=list("abcde"))
    with pytest.raises(ValueError, match="show: head = 3 must be from -3 to 2"):
        A.show(head=3)
    with pytest.raises(IndexError, match="index 1 is out of range"):
        A.show(batch=1)
    with pytest.raises(TypeError, match="give 'terminal', 'figure', a rich Console or the axes"):
        A.show(on="paper")
    from matplotlib.figure import Figure

    with pytest.raises(ValueError, match="one matrix fits on axes and there are 3; choose one with head="):
        A.show(on=Figure().subplots())
