"""The package builds with GCC and Clang without a warning, and without any compiler, and what comes out computes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from build import build
from conftest import need

CPP = Path(__file__).parents[1] / "cpp"
# An editable install would find itself instead of a copy of the package.
HIDE_EDITABLE = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
"""
CODE = f"""{HIDE_EDITABLE}
import limelight, torch
from limelight import backends
for isa in backends.available_isas():
    backends.set_isa(isa)
    q, k, v = (torch.randn(2, 3, n, 17) for n in (29, 31, 31))
    got = limelight.attention(q, k, v, mask=limelight.Causal(), backend="native")
    torch.testing.assert_close(got, limelight.attention(q, k, v, mask=limelight.Causal(), backend="portable"))
    print(isa, limelight.__file__)
"""


def test_kernels_use_names_of_the_stable_abi_only() -> None:
    # From Python 3.12 on they are built for every later version, without private names and those that came after it.
    files = [*CPP.glob("*.cpp"), *CPP.glob("*.h")]
    assert any("PyErr_CheckSignals" in file.read_text(encoding="utf-8") for file in files)
    for file in files:
        assert not re.search(r"\b(?:_Py\w+|Py_IsFinalizing)\(", file.read_text(encoding="utf-8")), file.name


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_builds_without_warnings(compiler: str, tmp_path: Path) -> None:
    path = build(tmp_path, compiler=need(compiler), flags="-Werror")
    environment = {**os.environ, "PYTHONPATH": str(path)}
    run = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert str(path) in run.stdout
    assert "baseline" in run.stdout


WITHOUT_KERNELS = f"""{HIDE_EDITABLE}
import warnings
import torch, limelight as ll
from limelight import backends, models
from limelight.cli import main

assert not backends.built, backends.isa()
q, k, v = (torch.randn(2, 3, n, 17, requires_grad=True) for n in (29, 31, 31))
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    y, A = ll.attention(q, k, v, mask=ll.Causal()), ll.weights(q, k, mask=ll.Causal())
    received, entropy = A.received(), A.entropy()
    torch.autograd.grad(y.sum() + entropy.sum(), (q, k, v))
    model = models.build(CONFIG).eval()
    ids = torch.arange(7)[None]
    cached, again = (models.generate(model, ids, max_new_tokens=5, stop=[], cache=cache) for cache in (True, False))
said = [str(w.message) for w in found if "without its kernels" in str(w.message)]
assert len(said) == 1, said
dense = A.dense()
allowed = ll.Causal().dense(29, 31)
want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
torch.testing.assert_close(y, want)
torch.testing.assert_close(dense @ v, want)
torch.testing.assert_close(received, dense.sum(2))
torch.testing.assert_close(entropy, -torch.xlogy(dense, dense).sum(-1))
assert torch.equal(cached, again)
assert ll.backend_for(q, k, v).name == "portable"
try:
    ll.attention(q, k, v, backend="native")
except ValueError as error:
    assert "without its kernels" in str(error)
else:
    raise AssertionError("backend='native' without kernels")
main(["trace"], standalone_mode=False)
main(["translate", "The cat sat on the mat."], standalone_mode=False)
try:
    main(["bench", "--quick"], standalone_mode=False)
except Exception as error:
    assert "without its kernels" in str(error), error
else:
    raise AssertionError("bench without kernels")
"""
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "vocab_size": 53,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernels", "compiler", "flags"),
    [
        pytest.param("OFF", "c++", "", id="switched off"),
        pytest.param("AUTO", "", "", id="no compiler"),
        pytest.param("AUTO", "c++", "-Dvector_size=unknown", id="no vector extensions"),
    ],
)
def test_works_without_kernels(kernels: str, compiler: str, flags: str, tmp_path: Path) -> None:
    path = build(tmp_path, compiler=compiler, flags=flags, kernels=kernels)
    assert not list((path / "limelight" / "backends").glob("_native*"))
    code = WITHOUT_KERNELS.replace("CONFIG", repr(LLAMA))
    environment = {**os.environ, "PYTHONPATH": str(path), "PYTHONIOENCODING": "utf-8"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "tapis" in run.stdout


@pytest.mark.slow
def test_kernels_that_are_required_and_cannot_be_built_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="The kernels cannot be built"):
        build(tmp_path, compiler="", kernels="ON")
