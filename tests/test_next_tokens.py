"""Next tokens: what decoders expect after each token, against transformers' own logits, in Python and on the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel

from browser import NewTab
from limelight.explorer import Explorer, save_page
from limelight.explorer.questions import Arguments, RefusedError
from limelight.explorer.rooms import QUESTIONS
from limelight.explorer.subject import Subject
from limelight.lens.reading import Reading, read
from limelight.translate import shipped

transformers = pytest.importorskip("transformers")

VOCABULARY, LENGTH = 97, 23
TEXT = " ".join(f"w{(7 * n * n + 3) % 89}" for n in range(LENGTH))
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}


def made(kind: str) -> Any:
    """A small decoder of transformers with random weights, large enough for predictions that differ."""
    if kind == "gpt2":  # limelight has its own
        config = transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=24, n_layer=2, n_head=3, n_positions=64)
        model = transformers.GPT2LMHeadModel(config)
    elif kind == "llama":  # so has it of this
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, intermediate_size=41))
    elif kind == "opt":  # transformers' own, whose head is all that comes after its last layer
        model = transformers.OPTForCausalLM(
            transformers.OPTConfig(**SIZES, ffn_dim=41, word_embed_proj_dim=24, max_position_embeddings=64)
        )
    else:  # caps its logits after the head
        model = transformers.Gemma2ForCausalLM(
            transformers.Gemma2Config(**SIZES, intermediate_size=41, num_key_value_heads=1, head_dim=8)
        )
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.4)
    return model.eval()


def saved(kind: str, folder: Path) -> tuple[Any, Tokenizer]:
    model = made(kind)
    model.save_pretrained(folder)
    tokenizer = Tokenizer(WordLevel({f"w{n}": n for n in range(VOCABULARY)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    tokenizer.save(str(folder / "tokenizer.json"))
    return model, tokenizer


def truth(model: Any, tokenizer: Tokenizer, text: str = TEXT) -> tuple[np.ndarray, list[int]]:
    """The probabilities of all tokens after each, by transformers, and the ids of the text."""
    ids = tokenizer.encode(text).ids
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].double().softmax(-1).numpy(), ids


def check(found: list[tuple[str, float]], expected: np.ndarray) -> None:
    best = np.argsort(-expected, kind="stable")[:10]
    assert [token for token, _ in found] == [f"w{n}" for n in best]
    np.testing.assert_allclose([p for _, p in found], expected[best], rtol=2e-4)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "opt", "gemma2"])
def test_next_tokens_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    expected, ids = truth(*saved(kind, tmp_path))
    reading = read(tmp_path, TEXT)
    found = reading.next_tokens
    assert found is not None
    assert found.end == LENGTH
    assert found.first == (LENGTH - 1 if kind == "gemma2" else 0)
    check(reading.following, expected[-1])
    assert found.actual(LENGTH - 1) is None
    subject = Subject.of(reading)
    for place in range(found.first, LENGTH):
        answer = QUESTIONS["next"].ask(subject, Arguments({"call": 1, "token": place})).data
        check(answer["likeliest"], expected[place])
        if place + 1 < LENGTH:
            came = ids[place + 1]
            token, p, rank = answer["came"]
            assert (token, rank) == (f"w{came}", (expected[place] > expected[place, came]).sum() + 1)
            assert p == pytest.approx(expected[place, came], rel=2e-4)
    if kind == "gemma2":
        with pytest.raises(RefusedError, match="token = 3 must be from 22 to 22"):
            QUESTIONS["next"].ask(subject, Arguments({"call": 1, "token": 3}))


@pytest.mark.parametrize("kind", ["llama", "opt"])
def test_what_if_answers_with_next_tokens(kind: str, tmp_path: Path) -> None:
    expected, _ = truth(*saved(kind, tmp_path))
    replay = read(tmp_path, TEXT).replay
    assert replay is not None
    found = replay.run({})
    check(list(zip(found["tokens"], found["probabilities"], strict=True)), expected[-1])


def test_a_checkpoint_without_a_head_predicts_nothing(tmp_path: Path) -> None:
    model, _ = saved("opt", tmp_path)
    file, config = tmp_path / "model.safetensors", (tmp_path / "config.json").read_text()
    save_file({n: x for n, x in load_file(file).items() if "lm_head" not in n}, file, {"format": "pt"})
    (tmp_path / "config.json").write_text(config.replace('"tie_word_embeddings": true', '"tie_word_embeddings": false'))
    assert model.config.tie_word_embeddings
    reading = read(tmp_path, TEXT)
    assert reading.next_tokens is None
    assert reading.following == []
    assert [call.shape for call in reading.record.log] == [(1, 3, LENGTH, LENGTH)] * 2
    with pytest.raises(RefusedError, match="not that of a decoder that predicts"):
        QUESTIONS["next"].ask(Subject.of(reading), Arguments({"call": 0, "token": 1}))


def test_next_tokens_of_the_translator() -> None:
    """Its decoder predicts the French token by token; transformers reads the same folder."""
    reading = read(shipped(), "The cat is sleeping.")
    found, replay = reading.next_tokens, reading.replay
    assert found is not None
    assert replay is not None
    assert replay.target is not None
    model = transformers.MarianMTModel.from_pretrained(shipped(), dtype=torch.float32, local_files_only=True).eval()
    with torch.no_grad():
        output = model(input_ids=replay.source, decoder_input_ids=replay.target[:, :-1])
    expected = output.logits[0].double().softmax(-1).numpy()
    for place, came in enumerate(replay.target[0, 1:].tolist()):
        (token, p), (_, second) = found.likeliest(place, 2)
        best = int(expected[place].argmax())
        assert token == replay.tokenizer.id_to_token(best)
        assert (p, second) == pytest.approx(sorted(expected[place])[:-3:-1], rel=0.02)  # the weights are halves
        actual = found.actual(place)
        assert actual is not None
        assert actual[1] == pytest.approx(expected[place, came], rel=0.02)
        assert actual[2] == (expected[place] > expected[place, came]).sum() + 1


@pytest.mark.slow
@pytest.mark.parametrize("source", ["server", "file"])
def test_the_page_shows_next_tokens(tab: NewTab, tmp_path: Path, source: str) -> None:
    expected, ids = truth(*saved("llama", tmp_path))
    reading, one = read(tmp_path, TEXT), tab()

    def check_page() -> None:
        page = one.page
        for key, place in ((None, LENGTH - 1), ("ArrowLeft", LENGTH - 2), ("Home", 0), ("ArrowRight", 1)):
            if key is not None:
                page.keyboard.press(key)
            one.quiet()
            listed = page.eval_on_selector_all(
                ".next li", "x => x.map((li) => [...li.children].map((c) => [c.textContent, c.style.width]))"
            )
            best = np.argsort(-expected[place], kind="stable")[:10]
            assert [tokens[0] for tokens, *_ in listed] == [f"w{n}" for n in best]
            assert [number[0] for *_, number in listed] == [f"{expected[place][n]:.3f}" for n in best]
            widths = [float(bar[1].removesuffix("%")) for _, bar, _ in listed]
            np.testing.assert_allclose(widths, 100 * expected[place][best] / expected[place].max(), atol=0.1)
            said = page.inner_text(".next p") if page.locator(".next p").count() else ""
            if place == LENGTH - 1:
                assert said == ""
                continue
            p, rank = expected[place, ids[place + 1]], (expected[place] > expected[place, ids[place + 1]]).sum() + 1
            assert said.startswith(f"It was “w{ids[place + 1]}”, {p:.3f}, the {rank if rank > 1 else 'likeliest'}")
            assert page.locator(".next li.came").count() == int(rank <= 10)

    if source == "server":
        with Explorer(Subject.of(reading)) as served:
            one.open(served.url, "#text?call=1&head=2")
            one.page.locator("[role=option][aria-selected=true]").click()
            check_page()
    else:
        save_page(reading, tmp_path / "page.html")
        one.open((tmp_path / "page.html").as_uri(), "#text?call=1&head=2")
        one.page.locator("[role=option][aria-selected=true]").click()
        check_page()


def test_nothing_is_expected_of_an_encoder(minilm: Path) -> None:
    reading: Reading = read(minilm, "The cat is sleeping.")
    assert reading.next_tokens is None
