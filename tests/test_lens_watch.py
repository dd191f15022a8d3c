"""`watch` on models of every origin: which it can read, what it keeps, and that it leaves them as they were."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
import transformers as tf

import limelight as ll
from families import STACKS, build, inputs
from limelight.lens.hf import registration

OTHERS = {
    "bloom": lambda: tf.BloomForCausalLM(tf.BloomConfig(vocab_size=101, hidden_size=48, n_layer=2, n_head=6)),
    "mpt": lambda: tf.MptForCausalLM(tf.MptConfig(vocab_size=101, d_model=48, n_layers=2, n_heads=6, max_seq_len=64)),
    "falcon": lambda: tf.FalconForCausalLM._from_config(
        tf.FalconConfig(vocab_size=101, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, alibi=False),
        attn_implementation="eager",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_models_with_an_attention_of_their_own(name: str) -> None:
    torch.manual_seed(5)
    model = OTHERS[name]().eval()
    ids = inputs("llama")["input_ids"]
    with pytest.raises(ValueError, match=r"watch\(model, dense=True\)") as error, ll.watch(model):
        pass
    assert ("limelight.models.load" in str(error.value)) == (name == "bloom")
    assert type(model).__name__ in str(error.value)
    with torch.no_grad(), ll.watch(model, dense=True) as record:
        out = model(ids)
    with torch.no_grad():
        expected = model(ids, output_attentions=True)
    torch.testing.assert_close(out.logits, expected.logits)
    assert len(record) == 2
    for call, matrix in zip(record.log, expected.attentions, strict=True):
        assert call.kind == "self"
        torch.testing.assert_close(call.weights.dense().float(), matrix.float(), atol=1e-5, rtol=0)
    assert len(record.heads()) == 12


def test_dense_reading_of_a_model_of_ones_own() -> None:
    """Any module that calls softmax or PyTorch's attention."""

    class Own(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.softmax(x @ x.mT, dim=-1) @ x
            return torch.nn.functional.scaled_dot_product_attention(y, y, y, is_causal=True)

    x = torch.randn(2, 3, 5, 7)
    model = torch.nn.Sequential(Own())
    with pytest.raises(ValueError, match="neither"), ll.watch(model):
        pass
    with ll.watch(model, dense=True) as record:
        model(x)
    first, second = record.calls("0")
    torch.testing.assert_close(first.dense(), torch.softmax(x @ x.mT, -1))
    y = first.dense() @ x
    torch.testing.assert_close(second @ y, torch.nn.functional.scaled_dot_product_attention(y, y, y, is_causal=True))


def _translator() -> Any:
    torch.manual_seed(2)
    model = ll.models.build(
        {
            **STACKS,
            "model_type": "marian",
            "architectures": ["MarianMTModel"],
            "initializer_range": 0.3,
        }
    )
    return model.eval()


def test_our_models() -> None:
    """Padded batches, cross-attention, caches, and everything as before."""
    model = _translator()
    source, target = inputs("t5")["input_ids"], inputs("t5")["decoder_input_ids"]
    lengths = ll.Padding([23, 11, 5])
    before = {name: dict(module.__dict__) for name, module in model.named_modules()}
    with torch.no_grad():
        expected = model(source, target, mask=lengths)
        with ll.watch(model) as record:
            got = model(source, target, mask=lengths)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
    assert {name: dict(module.__dict__) for name, module in model.named_modules()} == before
    kinds = {call.name: (call.stack, call.kind, call.shape) for call in record.log}
    assert kinds["encoder.blocks.1.attention"] == ("encoder", "self", (3, 6, 23, 23))
    assert kinds["decoder.blocks.0.cross"] == ("decoder", "cross", (3, 6, 11, 23))
    cross = record["decoder.blocks.0.cross"]
    assert float(cross.dense()[2, :, :, 5:].abs().max()) == 0
    with torch.no_grad():
        hidden = model.encode(source, mask=lengths)
        x = model.decoder.blocks[0].attention_norm(model.target(target))
        block = model.decoder.blocks[0]
        inner = model.target(target)
        inner = block.attention_norm(inner + block.attention(inner, mask=ll.Causal()))
        same = block.cross.weights(inner, hidden, mask=lengths)
    del x
    torch.testing.assert_close(cross.dense(), same.dense(), atol=1e-5, rtol=1e-4)
    with ll.watch(model) as record:
        ll.models.generate(model, source, mask=lengths, max_new_tokens=4, stop=[])
    assert [call.phase for call in record.log if call.name == "decoder.blocks.0.cross"] == ["prefill"] + ["decode"] * 3


def test_an_exception_leaves_the_model_as_it_was() -> None:
    model, ours = build("llama"), _translator()
    for each in (model, ours):
        hooks = [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in each.modules()]
        with pytest.raises(RuntimeError, match="stop"), ll.watch(each):
            raise RuntimeError("stop")
        assert [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in each.modules()] == hooks
    assert model.config._attn_implementation == "eager"
    assert not registration.recorders
    assert not any("attend" in vars(module) for module in ours.modules())
    assert all(m._packs for m in ours.modules() if isinstance(m, ll.nn.Encoder))


def test_importing_registers_nothing() -> None:
    code = (
        "import limelight as ll, limelight.lens; from transformers.modeling_utils import AttentionInterface as A\n"
        "import limelight.lens.hf.registration as h\n"
        "assert 'limelight' not in A._global_mapping; h.register(); assert 'limelight' in A._global_mapping"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    light = "import limelight as ll, sys; ll.watch; assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", light], check=True)


def test_versions_that_are_too_old() -> None:
    """Before 4.57 there is no registry of masks; one line says which version is needed."""
    code = "import sys; sys.modules['transformers.masking_utils'] = None; import limelight.lens.hf.registration"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: limelight reads models of transformers with transformers 4.57 or later")
    assert f"transformers {tf.__version__} is installed" in last


def test_what_is_kept() -> None:
    model, given = build("bert"), inputs("bert")
    with torch.no_grad(), ll.watch(model) as whole:
        model(**given)
    with torch.no_grad(), ll.watch(model, layers=[1]) as some:
        model(**given)
    assert list(some) == ["encoder.layer.1.attention.self"]
    with torch.no_grad(), ll.watch(model, layers="*.0.*", keep=("entropy", "received")) as answers:
        model(**given)
    (name,) = answers
    torch.testing.assert_close(answers[name].entropy, whole[name].entropy())
    torch.testing.assert_close(answers[name].received, whole[name].received())
    assert answers[name].top is None
    with pytest.raises(ValueError, match="needs the weights themselves"):
        answers.heads()
    with torch.no_grad(), ll.watch(model, keep={"top": 3}) as answers:
        model(**given)
    assert answers[name].top.indices.shape == (3, 6, 23, 3)
    with pytest.warns(UserWarning, match="1 attention calls were dropped"), ll.watch(model, limit=1e-6) as little:
        model(**given)
    assert len(little) == 1
    assert little.missed == 1
    assert "limit" in repr(little)
    for wrong, message in (
        ({"keep": ("entropie",)}, "there are entropy, received"),
        ({"keep": ("top",)}, "needs a value"),
        ({"layers": [7]}, "match no module"),
        ({"limit": 0}, "above 0"),
    ):
        with pytest.raises(ValueError, match=message):
            ll.watch(model, **wrong)
    with pytest.raises(KeyError, match=r"recorded modules: encoder\.layer\.0"):
        whole["encoder"]


def test_which_tokens_the_keys_are() -> None:
    model, ids = build("llama"), inputs("llama")["input_ids"]
    options = {"do_sample": False, "max_new_tokens": 3, "min_new_tokens": 3}
    with ll.watch(model) as record:
        first = model.generate(ids[:1], **options)
        second = model.generate(ids[1:2], **options)
        model.generate(ids[:2], num_beams=2, **options)
        model(inputs_embeds=model.get_input_embeddings()(ids))
    calls = [call for call in record.log if call.layer == 0]
    for text, some in ((first, calls[:3]), (second, calls[3:6])):
        for call in some:
            assert torch.equal(call.ids, text[:, : call.shape[3]])
    assert all(call.ids is None for call in calls[7:])
    model = build("t5")
    with torch.no_grad(), ll.watch(model) as record:
        model(input_ids=ids, labels=ids[:, :5].contiguous())
        model.generate(ids, max_new_tokens=2)
    for call in record.log:
        expected = ids if call.stack == "encoder" or call.kind == "cross" else None
        assert (call.ids is None) == (expected is None) or call.shape[2] <= 2
        assert expected is None or torch.equal(call.ids, expected)


def test_what_was_not_seen_is_said() -> None:
    ids = inputs("llama")["input_ids"]
    mamba = tf.MambaModel(tf.MambaConfig(vocab_size=101, hidden_size=16, num_hidden_layers=1, state_size=4)).eval()
    with torch.no_grad(), pytest.warns(UserWarning, match="no attention was recorded"), ll.watch(mamba):
        mamba(ids)
    own = torch.nn.MultiheadAttention(12, 3, batch_first=True)
    x = torch.randn(2, 5, 12)
    with (
        pytest.warns(UserWarning, match="could not record what they attend to"),
        ll.watch(torch.nn.Sequential(own), dense=True),
    ):
        own(x, x, x)


def test_watches_that_overlap() -> None:
    one, two, given = build("llama"), build("bert"), inputs("llama")
    a, b = ll.watch(one), ll.watch(two)
    first, second = a.__enter__(), b.__enter__()
    a.__exit__(None, None, None)
    with torch.no_grad():
        two(**given)
        with ll.watch(two) as inner:
            two(**given)
    b.__exit__(None, None, None)
    assert (len(first.log), len(second.log), len(inner.log)) == (0, 2, 2)
    seen = []
    torch.compile(lambda x: x + 1, backend=lambda graph, _: seen.append(graph) or graph)(torch.ones(2))
    assert seen  # models can be compiled again
    ours = _translator()
    with ll.watch(ours) as outer:
        with ll.watch(ours) as inner:
            ours.encode(given["input_ids"])
        ours.encode(given["input_ids"])
    assert (len(inner.log), len(outer.log)) == (2, 2)
