"""Random configurations, indexes, headers, tokenizers, tables, matrices and arguments: success, or one line of error.

    python -m tests.fuzz --cases 100000 --seed 1

``tests/test_fuzz.py`` runs 2,000 cases; the environment variable LIMELIGHT_FUZZ_CASES sets another number.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers import models as tokenizer_models

from limelight import models, translate
from limelight.cli import main

# Messages of Python itself, where a value was not checked.
UNCHECKED = (
    "object has no attribute",
    "unhashable",
    "object is not",
    "domain error",
    "empty sequence",
    "index out of range",
    "unexpected keyword",
    "missing 1 required",
    "not supported between",
    "unsupported operand",
    "Traceback",
)
SIZES = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 13, "vocab_size": 17}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**SIZES, "architectures": ["LlamaForCausalLM"], "rope_parameters": {"rope_type": "default"}},
    "mistral": {**SIZES, "architectures": ["MistralForCausalLM"], "sliding_window": 3, "num_key_value_heads": 1},
    "gpt_neox": {**SIZES, "architectures": ["GPTNeoXForCausalLM"], "rotary_pct": 0.5},
    "bert": {**SIZES, "architectures": ["BertModel"], "max_position_embeddings": 19, "hidden_act": "gelu"},
    "gpt2": {"n_embd": 12, "n_layer": 1, "n_head": 3, "vocab_size": 17, "n_positions": 19},
    "bloom": {"hidden_size": 12, "n_layer": 1, "n_head": 3, "vocab_size": 17},
    "t5": {
        "d_model": 12,
        "d_kv": 5,
        "d_ff": 13,
        "num_layers": 1,
        "num_heads": 3,
        "vocab_size": 17,
        "decoder_start_token_id": 0,
        "eos_token_id": 1,
    },
}
WORDS = ("</s>", "<unk>", "a", "cat", "sat", ".", ",")

numbers = st.one_of(
    st.integers(-3, 40),
    st.sampled_from([10**12, -(10**12), 2**31, 2**63, 10**40, 10**400, 0.1, -0.5, 1e300, 1e-300]),
    st.floats(),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=8), st.sampled_from(["gelu", "yarn", "linear"]))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["a", "rope_type", "factor", "0"]), inner, max_size=3),
    ),
    max_leaves=6,
)


def make_folders(root: Path) -> None:
    """Save a tiny model of every architecture with a tokenizer."""
    for kind, config in CONFIGS.items():
        models.save(models.build({"model_type": kind, **config}), root / kind)
        tokenizer = Tokenizer(tokenizer_models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.save(str(root / kind / "tokenizer.json"))


def command(*arguments: str) -> str:
    """Run a command; raise ``AssertionError`` unless it succeeds or fails with one line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = CliRunner().invoke(main, list(arguments))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise AssertionError(f"{arguments}: {done.exception!r}") from done.exception
    assert done.exit_code in (0, 1, 2), (arguments, done.exit_code)
    if done.exit_code == 0:
        if "--json" in arguments and not {"--help", "-h"} & set(arguments):
            json.loads(done.stdout, parse_constant=_refuse_constant)
        return "success"
    errors = [line for line in done.stderr.splitlines() if not line.startswith(("Usage: ", "Try ")) and line.strip()]
    assert len(errors) == 1, (arguments, done.stderr)
    assert errors[0].startswith("Error: "), (arguments, done.stderr)
    assert not any(text in errors[0] for text in UNCHECKED), (arguments, errors[0])
    assert len(errors[0]) > len("Error: ") + 5, (arguments, errors[0])
    return "error"


def _refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


@st.composite
def changed_configs(draw: st.DrawFn) -> tuple[str, str]:
    """A model, and the text of its configuration with some entries replaced, added or removed."""
    kind = draw(st.sampled_from(sorted(CONFIGS)))
    config = {"model_type": kind, **CONFIGS[kind]}
    more = ("architectures", "rope_parameters", "model_type", "eos_token_id", "head_dim", "tie_word_embeddings")
    for name in draw(st.lists(st.sampled_from(sorted({*config, *more})), min_size=1, max_size=3)):
        config[name] = draw(values)
    return kind, draw(
        st.sampled_from([json.dumps(config), json.dumps(config)[:-3], "[" * 99_999, "\0"][:1] * 20 + ["[" * 9999])
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, Any]:
    """A kind of input, and the input."""
    kind = draw(st.sampled_from(["config", "index", "header", "tokenizer", "table", "matrices", "arguments"]))
    if kind == "config":
        return kind, draw(changed_configs())
    if kind == "index":
        names = st.one_of(st.sampled_from(["../x.safetensors", "/etc/passwd", "a.safetensors", ""]), values)
        return kind, draw(st.one_of(values, st.dictionaries(st.text(max_size=3), names, max_size=3)))
    if kind == "header":
        return kind, draw(st.tuples(st.integers(-1, 200), st.binary(max_size=20), values))
    if kind == "tokenizer":
        name = draw(st.sampled_from(["version", "model", "pre_tokenizer", "normalizer", "added_tokens", "decoder"]))
        return kind, (name, draw(values))
    if kind == "table":
        lines = st.lists(st.text(max_size=6), max_size=4).map("\t".join)
        return kind, draw(
            st.one_of(
                st.binary(max_size=40),
                st.lists(lines, max_size=4).map(lambda x: "\n".join(x).encode("utf-8", "replace")),
            )
        )
    if kind == "matrices":
        matrix = st.one_of(st.lists(st.lists(numbers, min_size=2, max_size=2), max_size=3), values)
        keys = draw(st.sampled_from([("q", "k", "v"), ("x", "W_Q", "W_K", "W_V"), ("q",)]))
        return kind, {**{name: draw(matrix) for name in keys}, **draw(st.sampled_from([{}, {"tokens": draw(values)}]))}
    options = ["--causal", "--window", "--scale", "--softcap", "--temperature", "--json", "--layer", "--head", "--top"]
    options += ["--file", "--html", "--model", "--beams", "--help", "-h", "--nothing", "-"]
    words = st.one_of(st.sampled_from(options), st.integers(-3, 30).map(str), st.floats().map(str), st.text(max_size=6))
    name = draw(st.sampled_from(["trace", "look", "translate", "train", "experiment", "nothing"]))
    return kind, [name, *draw(st.lists(words, max_size=4))]


def check(root: Path, case: tuple[str, Any]) -> str:
    """Give one case to the command that reads it; return whether it was a success or an error."""
    kind, data = case
    work = root / "work"
    shutil.rmtree(work, ignore_errors=True)
    if kind == "config":
        shutil.copytree(root / data[0], work)
        (work / "config.json").write_text(data[1])
        return command("look", "a cat sat.", "--model", str(work), "--json")
    if kind == "index":
        shutil.copytree(root / "llama", work)
        (work / "model.safetensors").unlink()
        (work / "model.safetensors.index.json").write_text(json.dumps({"weight_map": data}))
        return command("look", "a cat sat.", "--model", str(work))
    if kind == "header":
        return _check_header(root, work, *data)
    if kind == "tokenizer":
        shutil.copytree(root / "gpt2", work)
        content = json.loads((work / "tokenizer.json").read_text())
        (work / "tokenizer.json").write_text(json.dumps({**content, data[0]: data[1]}))
        return command("look", "a cat sat.", "--model", str(work))
    work.mkdir()
    if kind == "table":
        (work / "pairs.tsv").write_bytes(data)
        try:
            translate.read_pairs(work / "pairs.tsv")
        except ValueError:
            return "error"
        return "success"
    if kind == "matrices":
        (work / "x.json").write_text(json.dumps(data))
        return command("trace", str(work / "x.json"), "--json")
    return command(*_harmless(data, root, work))


def _check_header(root: Path, work: Path, at: int, put: bytes, header: Any) -> str:
    """Overwrite a part of a safetensors file, or replace its whole header."""
    shutil.copytree(root / "bert", work)
    file = work / "model.safetensors"
    content = bytearray(file.read_bytes())
    if at >= 0:
        content[at : at + len(put)] = put
    else:
        text = json.dumps({"a": header}).encode()
        content = bytearray(struct.pack("<Q", len(text)) + text + put)
    file.write_bytes(bytes(content))
    return command("look", "a cat sat.", "--model", str(work))


def _harmless(arguments: list[str], root: Path, work: Path) -> list[str]:
    """Keep files inside a folder and models small; nothing is trained and no experiment runs."""
    name, *rest = arguments
    rest = [str(work / "page.html") if before == "--html" else x for before, x in zip(["", *rest], rest, strict=False)]
    if name == "look":
        return [name, *rest, "--model", str(root / "llama")]
    if name == "translate":
        return [name, *rest, "--model", str(root / "t5")]
    if name == "train":
        return [name, *rest, str(work / "nothing.tsv")]
    if name == "experiment":
        return [name, "nothing", *rest]
    return [name, *rest]


def run(count: int, seed: int) -> Counter[tuple[str, str]]:
    """Check ``count`` random cases; return how many of each kind ended how."""
    outcomes: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_folders(root)

        @hypothesis.seed(seed)
        @settings(
            max_examples=count,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @given(cases())
        def every(case: tuple[str, Any]) -> None:
            outcomes[case[0], check(root, case)] += 1

        before = Path.cwd()
        (root / "here").mkdir()
        os.chdir(root / "here")  # where a command that takes a strange word for a file would leave it
        try:
            every()
        finally:
            os.chdir(before)
    return outcomes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    begin = time.monotonic()
    for (kind, outcome), n in sorted(run(wanted.cases, wanted.seed).items()):
        print(f"{kind:10} {outcome:8} {n:7}")
    print(f"{wanted.cases} cases in {time.monotonic() - begin:.0f} s: every outcome is a success or one line of error")
