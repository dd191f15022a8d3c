"""Saved pages: one file that holds the weights, at most ten megabytes, and all modules."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import limelight as ll
from explorer_cases import pooled, random_weights
from limelight.explorer import save_page
from limelight.explorer.bundle import bundle


def data_of(file: Path) -> dict[str, Any]:
    text = file.read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text.split('id="limelight-data">')[1].split("</script>")[0])
    return found


def unpacked(stored: dict[str, Any], shape: tuple[int, int]) -> np.ndarray:
    levels = np.frombuffer(base64.b64decode(stored["cells"]), "<u2").reshape(shape)
    return np.where(levels == 65535, -1, (levels / 65534) ** 2 * stored["top"])


def test_a_saved_page_holds_the_weights(tmp_path: Path) -> None:
    A = random_weights(29, 29, mask=ll.Causal())
    save_page(A, tmp_path / "page.html", ["</script><!--", *"abcdefghijklmnopqrstuvwxyz01"])
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.count("</script>") == 2
    assert "<!--" not in text.replace("<!doctype", "")
    data = data_of(tmp_path / "page.html")
    truth = A.dense()[1, 3].numpy()
    found = unpacked(data["heads"]["0/1/3"]["mean"], (29, 29))
    assert ((found < 0) == np.triu(np.ones((29, 29), bool), 1)).all()
    np.testing.assert_allclose(np.maximum(found, 0), truth, atol=4e-5)
    assert data["about"]["note"] == ""


def test_a_saved_page_has_at_most_ten_megabytes(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(0)
    A = ll.weights(torch.randn(1, 16, 601, 8, generator=g), torch.randn(1, 16, 601, 8, generator=g))
    ll.lens.save_page(A, tmp_path / "page.html")
    assert 10**6 < (tmp_path / "page.html").stat().st_size <= 10**7
    data = data_of(tmp_path / "page.html")
    level = data["about"]["calls"][0]["finest"]
    assert level > 0
    assert f"{2**level} × {2**level} weights" in data["about"]["note"]
    cells = pooled(A[0, 13].double().numpy(), 2**level, "mean")
    np.testing.assert_allclose(unpacked(data["heads"]["0/0/13"]["mean"], cells.shape), cells, rtol=1e-3)
    many = ll.weights(torch.randn(1, 9000, 40, 1), torch.randn(1, 1, 40, 1))
    with pytest.raises(ValueError, match="9000 heads are more than a page"):
        save_page(many, tmp_path / "never.html")
    assert not (tmp_path / "never.html").exists()


def test_modules_become_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for entry in ("main.js", "saved.js", "widget.js"):
        text = bundle(entry)
        assert not re.search(r"^(import|export)\b", text, re.MULTILINE)
        assert text.count("class HeadGrid") == 1
    monkeypatch.setattr("limelight.explorer.bundle.FRONT", tmp_path)
    (tmp_path / "a.js").write_text('import { b } from "./b.js";\nexport const a = b;\n')
    (tmp_path / "b.js").write_text('import { a } from "./a.js";\nexport const b = a;\n')
    with pytest.raises(ValueError, match=r"a\.js imports itself"):
        bundle("a.js")
    (tmp_path / "a.js").write_text("export default 3;\n")
    with pytest.raises(ValueError, match="export default"):
        bundle("a.js")
