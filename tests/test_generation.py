"""Generation against transformers, against search by hand, and with a cache against without."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

import limelight as ll
from limelight import models
from limelight.models.generation import Choice
from test_models import DECODERS, SEQ2SEQ, ids, over, pair

__all__ = ["pair"]
NEW = 12


@torch.no_grad()
def greedily(model: Any, x: Tensor) -> Tensor:
    """The likeliest token, again and again, everything computed anew by transformers."""
    if not model.config.is_encoder_decoder:
        for _ in range(NEW):
            x = torch.cat([x, model(x).logits[:, -1:].argmax(-1)], 1)
        return x
    out = torch.full((len(x), 1), model.config.decoder_start_token_id)
    for _ in range(NEW):
        logits = model(input_ids=x, decoder_input_ids=out).logits[:, -1:]
        if model.config.model_type == "marian":
            logits[..., model.config.pad_token_id] = -torch.inf
        out = torch.cat([out, logits.argmax(-1)], 1)
    return out


@over({**DECODERS, **SEQ2SEQ})
def test_greedy(pair: tuple[Any, Any, Path]) -> None:
    theirs, ours, _ = pair
    x = ids(3, 13)
    want = greedily(theirs, x)
    for cache in (True, False, ll.KVCache(capacity=13 + NEW)):
        assert torch.equal(models.generate(ours, x, max_new_tokens=NEW, stop=[], cache=cache), want)


@over({**DECODERS, **SEQ2SEQ})
def test_prompts_of_different_lengths(pair: tuple[Any, Any, Path]) -> None:
    """Each is continued as if it were alone."""
    _, ours, _ = pair
    x, lengths = ids(3, 13), [13, 4, 9]
    for cache in (True, False):
        got = models.generate(ours, x, mask=ll.Padding(lengths), max_new_tokens=NEW, stop=[], cache=cache)
        for n, length in enumerate(lengths):
            alone = models.generate(ours, x[n : n + 1, :length], max_new_tokens=NEW, stop=[])[0]
            assert torch.equal(got[n, : len(alone)], alone)


@over({name: {**DECODERS, **SEQ2SEQ}[name] for name in ("gpt2", "llama", "t5")})
@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.3}, {"length_penalty": 0.3}])
def test_beams(pair: tuple[Any, Any, Path], options: dict[str, Any]) -> None:
    """As transformers' beam search, with stop tokens that occur, so that hypotheses of different lengths compete."""
    theirs, ours, _ = pair
    x = ids(2, 11)
    begin = 1 if theirs.config.is_encoder_decoder else 11
    for stop in models.generate(ours, x, max_new_tokens=NEW, stop=[], beams=3)[:, -3:].flatten().tolist()[:3]:
        config = hf.GenerationConfig(
            max_new_tokens=NEW, num_beams=3, eos_token_id=stop, pad_token_id=0, early_stopping="never", **options
        )
        config.decoder_start_token_id = getattr(theirs.config, "decoder_start_token_id", None)
        want = theirs.generate(x, generation_config=config, attention_mask=torch.ones_like(x))
        got = models.generate(ours, x, max_new_tokens=NEW, stop=stop, beams=3, **options)
        for a, b in zip(got[:, begin:].tolist(), want[:, begin:].tolist(), strict=True):
            end = b.index(stop) + 1 if stop in b else len(b)
            assert a[:end] == b[:end]


@over(SEQ2SEQ)
def test_beams_of_sources_of_different_lengths(pair: tuple[Any, Any, Path]) -> None:
    _, ours, _ = pair
    x, lengths = ids(3, 13), [13, 4, 9]
    got = models.generate(ours, x, mask=ll.Padding(lengths), max_new_tokens=NEW, stop=[], beams=3)
    for n, length in enumerate(lengths):
        assert torch.equal(
            got[n], models.generate(ours, x[n : n + 1, :length], max_new_tokens=NEW, stop=[], beams=3)[0]
        )


@over({"gpt2": DECODERS["gpt2"]})
def test_a_cache_goes_on_where_it_ended(pair: tuple[Any, Any, Path]) -> None:
    _, ours, _ = pair
    x, mask, cache = ids(2, 12), ll.Padding([5, 12]), ll.KVCache()
    want = models.generate(ours, x, mask=mask, max_new_tokens=8, stop=[])
    first = models.generate(ours, x, mask=mask, max_new_tokens=4, stop=[], cache=cache)
    last = torch.stack([first[0, 8:9], first[1, 15:16]])
    more = models.generate(ours, last, max_new_tokens=4, stop=[], cache=cache)
    assert torch.equal(more[0, 1:], want[0, 9:13])
    assert torch.equal(more[1, 1:], want[1, 16:20])


def small(vocabulary: int) -> Any:
    torch.manual_seed(3)
    config = {**hf.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=vocabulary, n_positions=32).to_dict()}
    model = models.build({**config, "architectures": ["GPT2LMHeadModel"], "eos_token_id": None})
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.3)
    return model.eval()


@torch.no_grad()
def test_as_many_beams_as_there_are_hypotheses_find_the_best() -> None:
    model, x, new = small(5), torch.tensor([[1, 3]]), 4
    best, found = -torch.inf, None
    for tokens in itertools.product(range(5), repeat=new):
        whole = torch.cat([x, torch.tensor([tokens])], 1)
        score = model(whole).log_softmax(-1)[0, 1:-1].gather(1, torch.tensor(tokens)[:, None]).sum()
        if score > best:
            best, found = score, whole
    assert torch.equal(models.generate(model, x, max_new_tokens=new, beams=5**3), found)


def test_draws_follow_the_probabilities() -> None:
    """Against transformers' own processing of the logits, and by counting."""
    logits = torch.randn(4, 50) * 3
    for temperature, top_k, top_p in ((0.7, None, None), (1.3, 7, None), (1.0, None, 0.6), (2.0, 20, 0.8)):
        processors: list[Any] = [hf.TemperatureLogitsWarper(temperature)] if temperature != 1 else []
        processors += [hf.TopKLogitsWarper(top_k)] if top_k else []
        processors += [hf.TopPLogitsWarper(top_p)] if top_p else []
        want = logits
        for process in processors:
            want = process(torch.zeros(4, 1, dtype=torch.long), want)
        torch.testing.assert_close(Choice(temperature, top_k, top_p).probabilities(logits), want.softmax(-1))
    model, x = small(7), torch.tensor([[1, 2, 3]]).expand(4000, -1)
    tokens = models.generate(model, x, max_new_tokens=1, temperature=0.8, seed=5)[:, -1]
    with torch.no_grad():
        p = (model(x[:1])[0, -1] / 0.8).softmax(-1)
    counts = torch.bincount(tokens, minlength=7)
    assert float(((counts - 4000 * p) ** 2 / (4000 * p)).sum()) < 22.5  # χ² with 6 degrees of freedom, 0.1%


def test_seeds_and_streams() -> None:
    model, x = small(31), torch.tensor([[1, 2, 3], [4, 5, 6]])
    a, b, c = (models.generate(model, x, temperature=3.0, seed=s, max_new_tokens=20) for s in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    steps = list(models.stream(model, x, temperature=3.0, seed=1, max_new_tokens=20))
    assert torch.equal(torch.stack(steps, 1), a[:, 3:])


def test_stop_tokens_end_a_sequence() -> None:
    model, x = small(31), torch.tensor([[1, 2, 3], [4, 5, 6]])
    free = models.generate(model, x, max_new_tokens=15)
    stop = int(free[0, 7])
    end = (free[0, 3:] == stop).nonzero()[0, 0] + 3
    model.config["pad_token_id"] = 30
    got = models.generate(model, x, max_new_tokens=15, stop=[stop, 29])
    assert torch.equal(got[0, : end + 1], free[0, : end + 1])
    assert (got[0, end + 1 :] == 30).all()
    assert models.generate(model, x[:1], max_new_tokens=15, stop=stop).shape[1] == end + 1


def test_errors() -> None:
    model, x = small(31), torch.tensor([[1, 2, 3]])
    with pytest.raises(
        ValueError, match=r"give token ids \(batch, length\) with at least one token, not torch.int64 \(3,\)"
    ):
        models.generate(model, x[0])
    with pytest.raises(ValueError, match=r"lengths \[4\] must be from 1 to the 3 tokens of ids"):
        models.generate(model, x, mask=ll.Padding([4]))
    with pytest.raises(TypeError, match=r"give the lengths of the prompts as Padding\(lengths\), not Causal"):
        models.generate(model, x, mask=ll.Causal())
    with pytest.raises(ValueError, match=r"top_p = 1\.5 must be above 0 and at most 1"):
        models.generate(model, x, temperature=1.0, top_p=1.5)
    with pytest.raises(ValueError, match="beam search takes no temperature"):
        models.generate(model, x, beams=2, temperature=1.0)
    with pytest.raises(ValueError, match="needs 33 positions, and the model has learned 32; shorten the text"):
        models.generate(model, x, max_new_tokens=40, stop=[])
    headless = models.build({**model.config, "architectures": ["GPT2Model"]})
    with pytest.raises(ValueError, match="the model has no language-model head"):
        models.generate(headless, x)
    with pytest.raises(ValueError, match="a cache needs padding on the left"):
        model(x, mask=ll.Padding([2]), cache=ll.KVCache())
    with pytest.raises(TypeError, match=r"wrap the tensor as Dense\(tensor\)"):
        model(x, mask=torch.ones(1, 3))
    with pytest.raises(TypeError, match="Linear does not predict next tokens"):
        models.generate(torch.nn.Linear(2, 2), x)


SMALL_GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 12,
    "n_layer": 1,
    "n_head": 3,
    "vocab_size": 31,
    "n_positions": 64,
}


def test_caches_that_are_none() -> None:
    """A class in place of an instance, and the names that transformers uses."""
    model = models.build({**SMALL_GPT2})
    ids = torch.tensor([[1, 2, 3]])
    for cache, message in (
        (ll.KVCache, r"cache is the class KVCache; give an instance, such as KVCache\(…\)"),
        ("static", "cache must be a KVCache or one of its kinds, not 'static'"),
        (3, "cache must be a KVCache or one of its kinds, not 3"),
    ):
        with pytest.raises(TypeError, match=message):
            models.generate(model, ids, cache=cache)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=message):
            model(ids, cache=cache)


@pytest.mark.parametrize("beams", [1, 3])
def test_logits_that_are_not_numbers(beams: int) -> None:
    model = models.build({**SMALL_GPT2})
    with torch.no_grad():
        model.stack.norm.weight.fill_(torch.nan)  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="the model's logits are NaN"):
        models.generate(model, torch.tensor([[1, 2, 3]]), beams=beams, temperature=0.0 if beams > 1 else 0.5)


@pytest.mark.parametrize("stop", ["</s>", 1.5, [[1]], {"a": 1}])
def test_stops_that_are_none(stop: Any) -> None:
    with pytest.raises(TypeError, match="stop must be the id of a token or a list of ids"):
        models.generate(models.build({**SMALL_GPT2}), torch.tensor([[1, 2, 3]]), stop=stop)
