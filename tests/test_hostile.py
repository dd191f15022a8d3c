"""Folders, files and strings that mean harm: one line that says what is wrong, no code run, no markup obeyed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from click.testing import CliRunner
from limelight.lens.page import page
from safetensors.torch import load_file, save_file

import limelight as ll
from limelight import models
from limelight.cli import main
from limelight.lens.hf.loading import load_model
from limelight.lens.reading import Reading

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 31,
    "vocab_size": 97,
}
SMALL = {"hidden_size": 24, "intermediate_size": 31, "num_hidden_layers": 1, "num_attention_heads": 3}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    models.save(models.build(LLAMA), tmp_path / "model")
    return tmp_path / "model"


def refused(*arguments: str) -> str:
    """Return the one line with which a command refuses its arguments."""
    done = CliRunner().invoke(main, list(arguments))
    assert done.exit_code in (1, 2), done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("Usage:", "Try "))]
    assert len([line for line in lines if line.strip()]) == 1, done.stderr
    return lines[-1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 10**12}, "hidden_size = 1000000000000 must be a whole number from 1 to"),
        ({"hidden_size": int("9" * 400)}, "hidden_size = a number of more than 40 digits must be"),
        ({"hidden_size": 3 * 2**20}, "config.json makes it"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000, and the checkpoint has 21 tensors"),
        ({"num_attention_heads": 0}, "num_attention_heads = 0 must be"),
        ({"num_attention_heads": 2.5}, "num_attention_heads = 2.5 must be a whole number"),
        ({"hidden_size": {"a": [1]}}, "hidden_size = {'a': [1]} must be a whole number"),
        ({"hidden_act": {"a": 1}}, "hidden_act = {'a': 1} must be a string"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps = 'small' must be a number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps = nan must be a number"),
        ({"model_type": {"a": 1}}, "model_type {'a': 1} is"),
        ({"architectures": {"a": 1}}, "architectures = {'a': 1} must be a list of names"),
        ({"architectures": [[1]]}, "architectures = [[1]] must be a list of names"),
        ({"rope_parameters": [1]}, "rope_parameters = [1] must be an object"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 0}}, "must be above 0"),
        ({"rope_parameters": {"rope_type": ["yarn"]}}, "rope_type = ['yarn'] must be a string"),
        ({"rope_theta": -1}, "rope_theta = -1 must be a number of at least 0"),
        ({"attention_bias": "yes"}, "attention_bias = 'yes' must be true or false"),
        ({"num_key_value_heads": 2}, "heads = 3 must be a multiple of kv_heads = 2"),
    ],
)
def test_configurations(folder: Path, change: dict[str, Any], message: str) -> None:
    (folder / "config.json").write_text(json.dumps({**LLAMA, **change}))
    assert message in refused("look", "a", "--model", str(folder))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "config.json is nested too deeply"),
        ('{"hidden_size": ' + "9" * 5000 + "}", "config.json is not JSON"),
        ("[]", "config.json holds a list, not an object"),
        ("{", "config.json is not JSON"),
    ],
)
def test_configurations_that_are_not_objects(folder: Path, text: str, message: str) -> None:
    (folder / "config.json").write_text(text)
    assert message in refused("look", "a", "--model", str(folder))


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        (["a"], "weight_map must be an object"),
        ({"a": 1}, "weight_map must be an object"),
        ({"a": "../secret.safetensors"}, "'../secret.safetensors' must be a .safetensors file inside the folder"),
        ({"a": "/etc/passwd"}, "'/etc/passwd' must be a .safetensors file inside the folder"),
        ({"a": "..\\secret.safetensors"}, "must be a .safetensors file inside the folder"),
        ({"a": "x.safetensors"}, "has no x.safetensors"),
    ],
)
def test_shards_stay_inside_the_folder(folder: Path, weight_map: Any, message: str) -> None:
    (folder / "model.safetensors").rename(folder.parent / "secret.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises((ValueError, FileNotFoundError), match=re.escape(message)):
        models.load(folder)


def test_code_of_a_folder_does_not_run(tmp_path: Path, minilm: Path) -> None:
    evil = "raise SystemExit('this code ran')"
    config = {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text(evil)
    (tmp_path / "tokenizer.json").write_bytes((minilm / "tokenizer.json").read_bytes())
    line = refused("look", "a", "--model", str(tmp_path))
    assert "asks to run Python code of the folder (auto_map), which limelight never does" in line
    # A tokenizer that asks for it beside a model that does not.
    tf.OPTModel(
        tf.OPTConfig(vocab_size=101, ffn_dim=31, **{k: v for k, v in SMALL.items() if k[0] != "i"})
    ).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}})
    )
    assert "this code ran" not in refused("look", "a", "--model", str(tmp_path))


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    model = tf.OPTModel(
        tf.OPTConfig(vocab_size=101, hidden_size=24, ffn_dim=31, num_hidden_layers=1, num_attention_heads=3)
    )
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    assert "pickled weights are not read, convert them to safetensors" in refused("look", "a", "--model", str(tmp_path))


def test_tensors_that_do_not_fit(tmp_path: Path) -> None:
    """Neither another model's tensors, nor missing ones, nor a layer too many; the pooler does not matter."""
    config = tf.RobertaConfig(**SMALL, vocab_size=101)
    tf.RobertaModel(config).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    given = json.loads((tmp_path / "config.json").read_text())
    assert len(list(load_model(tmp_path, given).parameters())) > 10
    save_file({n: x for n, x in tensors.items() if "pooler" not in n}, file, metadata={"format": "pt"})
    load_model(tmp_path, given)
    save_file({f"model.{n}": x for n, x in tensors.items()}, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"does not fit config\.json: it lacks the tensors"):
        load_model(tmp_path, given)
    less = {n: x for n, x in tensors.items() if "attention.self.key" not in n}
    save_file(less, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks the tensors encoder\.layer\.0\.attention\.self\.key"):
        load_model(tmp_path, given)
    more = {**tensors, **{n.replace("layer.0", "layer.1"): x.clone() for n, x in tensors.items() if "layer.0" in n}}
    save_file(more, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"has no use for the tensors encoder\.layer\.1"):
        load_model(tmp_path, given)


def _reading(name: str, n: int = 3, layers: int = 1, heads: int = 1) -> Reading:
    record = ll.lens.Record()
    for layer in range(layers):
        weights = ll.weights(torch.randn(1, heads, n, 4), torch.randn(1, heads, n, 4))
        record.add(ll.lens.Call(f"layers.{layer}.a", "self", "encoder", "prefill", weights, weights.shape))
    return Reading(model=name, tokens={"encoder": ["a"] * n}, record=record)


def test_the_placeholder_in_a_name() -> None:
    reading = _reading("__DATA__</title><script>alert(1)</script>")
    text = page([(reading, reading.heads())], (reading.record.log[0], 0))
    assert text.count("<script>") == 1  # the page's own
    data = json.loads(text.split('type="application/json">')[1].split("</script>")[0])
    assert data["model"].startswith("__DATA__")
    assert "<title>limelight: __DATA__&lt;/title&gt;" in text


def test_a_page_of_a_large_model_stays_small() -> None:
    reading = _reading("large", n=300, layers=30, heads=16)
    text = page([(reading, reading.heads())], (reading.record.log[3], 2))
    assert len(text.encode()) < 10_000_000
    data = json.loads(text.split('type="application/json">')[1].split("</script>")[0])
    assert [len(layer["heads"]) for layer in data["groups"][0]["layers"]] == [16] * 30


def test_labels_are_text(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    names = ["[/b]", "[red]x", "\x1b[31mred\x1b]0;title\x07", ":smile:"]
    file.write_text(json.dumps({"q": [[1.0]] * 4, "k": [[1.0]] * 4, "v": [[1.0]] * 4, "tokens": names}))
    done = CliRunner().invoke(main, ["trace", str(file)])
    assert done.exit_code == 0, done.output
    for text in ("[/b]", "[red]x", ":smile:"):
        assert text in done.stdout
    assert "\x1b" not in done.stdout
    assert "\x07" not in done.stdout
    q = torch.ones(4, 1)
    assert "[/b]" in str(ll.trace(q, q, q, tokens=names))
    assert "\x1b" not in str(ll.trace(q, q, q, tokens=names))


def test_names_of_folders_are_text(tmp_path: Path) -> None:
    folder = tmp_path / "\x1b[31m[bold]evil"
    folder.mkdir()
    line = refused("look", "a", "--model", str(folder))
    assert "\x1b" not in line
    assert "[bold]evil has no config.json" in line


def test_json_has_no_nan(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text('{"q": [[NaN], [1e400]], "k": [[1.0], [2.0]], "v": [[1.0], [2.0]]}')
    done = CliRunner().invoke(main, ["trace", str(file), "--json", "--causal"])
    assert done.exit_code == 0, done.output

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert json.loads(done.stdout, parse_constant=refuse)["weights"][0] == [None, 0.0]


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"q": [[1]], "k": [[1]], "v": [[' + "9" * 5000 + "]]}", '{"q": [["a"]], "k": 1, "v": {}}', "\0"],
)
def test_matrices_that_are_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    refused("trace", str(file))
