"""Real notebooks: what objects show as a cell's value, and the explorer's widget inside JupyterLab."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

import limelight as ll
from browser import colour, missing

pytestmark = pytest.mark.slow
N = 23
BEGIN = f"""
import torch
import limelight as ll
g = torch.Generator().manual_seed(0)
q, k = (3 * torch.randn(1, 2, {N}, 8, generator=g) for _ in range(2))
A = ll.weights(q, k, mask=ll.Causal())
"""
SHOW = "ll.explore(A, tokens=[f'w{n}' for n in range(%d)])" % N  # noqa: UP031


def truth() -> np.ndarray:
    g = torch.Generator().manual_seed(0)
    q, k = (3 * torch.randn(1, 2, N, 8, generator=g) for _ in range(2))
    return ll.weights(q, k, mask=ll.Causal()).dense()[0].numpy()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a kernel that is this interpreter."""
    kernel = tmp_path / "share/kernels/here"
    kernel.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "here", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share"))
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    return tmp_path


def notebook(*cells: str) -> Any:
    nbformat = pytest.importorskip("nbformat", reason="pip install nbclient")
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    made.metadata.kernelspec = {"name": "here", "display_name": "here", "language": "python"}
    return made


@pytest.mark.parametrize("pyplot", ["", "import matplotlib.pyplot as plt"])
def test_values_of_cells(home: Path, pyplot: str) -> None:
    nbclient = pytest.importorskip("nbclient", reason="pip install nbclient")
    cells = (f"{BEGIN}\n{pyplot}", "A", "A.show(on='figure')", "figure = A.show(on='figure')", "ll.Causal()", SHOW)
    made = notebook(*cells, "import numpy as np\nnp.asarray(A).dtype, np.asarray(A).shape")
    nbclient.NotebookClient(made, timeout=300, kernel_name="here").execute()
    _, weights, shown, kept, mask, page, array = (cell.outputs for cell in made.cells)
    assert "<table" in weights[0].data["text/html"] or "<img" in weights[0].data["text/html"]
    assert [output.output_type for output in shown] == ["execute_result"]
    assert "image/png" in shown[0].data
    assert kept == []
    assert "<svg" in mask[0].data["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in page[0].data
    assert array[0].data["text/plain"] == f"(dtype('float32'), (1, 2, {N}, {N}))"


@pytest.fixture
def lab(home: Path) -> Iterator[str]:
    """The address of JupyterLab with a notebook that explores."""
    program = shutil.which("jupyter-lab")
    if program is None:
        missing("JupyterLab is missing: pip install jupyterlab anywidget")
    import nbformat

    nbformat.write(notebook(f"{BEGIN}\n{SHOW}"), home / "page.ipynb")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    command = [str(program), "--no-browser", "--allow-root", f"--port={port}", "--ServerApp.port_retries=0"]
    command += ["--IdentityProvider.token=here", f"--ServerApp.root_dir={home}"]
    command += ["--LabApp.extension_manager=readonly", "--LabApp.news_url="]
    environment = {**os.environ, "HOME": str(home)}
    with (home / "log").open("w") as log, subprocess.Popen(command, stderr=log, env=environment) as process:
        try:
            address = f"http://127.0.0.1:{port}"
            for _ in range(600):
                try:
                    if httpx.get(f"{address}/api", trust_env=False).status_code == 200:
                        break
                except httpx.HTTPError:
                    pass
                assert process.poll() is None, (home / "log").read_text()
                time.sleep(0.2)
            yield f"{address}/lab/tree/page.ipynb?token=here"
        finally:
            process.terminate()


def test_the_widget_in_jupyterlab(lab: str, chromium: Any) -> None:
    page = chromium.new_page(viewport={"width": 1280, "height": 1000})
    page.set_default_timeout(180_000)
    page.goto(lab)
    page.locator(".jp-CodeCell .cm-content").first.click()
    page.locator('[data-status="idle"]').first.wait_for(state="attached")
    page.keyboard.press("Shift+Enter")
    page.locator(".limelight .thumb.drawn").nth(1).wait_for()
    code = """(n) => {
        const canvas = document.querySelectorAll(".limelight .thumb canvas")[n];
        return [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data];
    }"""
    for head, matrix in enumerate(truth()):
        image = np.array(page.evaluate(code, head)).reshape(N, N, 4)
        for i, j in ((0, 0), (N - 1, 3), (11, 11)):
            assert np.abs(image[i, j, :3] - colour(matrix[i, j], matrix.max())).max() <= 3
        assert image[2, 9, 3] == 0
    page.locator(".limelight nav a", has_text="Map").click()
    page.locator(".limelight .plot canvas").first.wait_for()
    page.locator(".limelight .status", has_text="a cell is one weight").wait_for()
    page.locator(".limelight .plot canvas").first.focus()
    for key in ("0", "0", "ArrowDown"):  # JupyterLab would restart the kernel, and go to the next cell
        page.keyboard.press(key)
    page.locator(".limelight .facts", has_text=f"query {N // 2}").wait_for()
    assert page.locator(".jp-Dialog").count() == 0
    assert page.evaluate("document.activeElement.closest('.limelight') !== null")
    page.close()
