"""``limelight look --image``: preprocessing as transformers does it, the output, and hostile input."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from click.testing import CliRunner, Result
from PIL import Image

import test_pictures_lens as models
from limelight.cli import main
from limelight.lens.picture_reading import PictureReader
from limelight.lens.preprocessing import read_preprocessing

SIZE = (57, 83)  # of the picture: height and width


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("picture") / "picture.png"
    smooth = Image.fromarray(np.random.default_rng(0).integers(0, 255, (7, 9, 3), dtype=np.uint8))
    smooth.resize(SIZE[::-1], Image.Resampling.BICUBIC).save(file)
    return file


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of small models, each with the file of its own image processor."""
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("models")
    for family, processor in PROCESSORS.items():
        models.vision_model(family).save_pretrained(root / family)
        processor.save_pretrained(root / family)
    for name in ("trocr", "blip"):
        getattr(models, name)().save_pretrained(root / name)
    tf.BertModel(tf.BertConfig(hidden_size=12, num_attention_heads=2, num_hidden_layers=1)).save_pretrained(
        root / "bert"
    )
    return {folder.name: folder for folder in root.iterdir()}


SQUARE = {"height": 20, "width": 20}
PROCESSORS: dict[str, Any] = {
    "vit": tf.ViTImageProcessorPil(size=SQUARE),
    "deit": tf.DeiTImageProcessorPil(size={"height": 23, "width": 23}, crop_size=SQUARE),
    "clip": tf.CLIPImageProcessorPil(size={"shortest_edge": 20}, crop_size=SQUARE),
    "dinov2": tf.BitImageProcessorPil(size={"shortest_edge": 24}, crop_size={"height": 20, "width": 28}),
}


def look(*arguments: Any) -> Result:
    return CliRunner().invoke(main, ["look", *map(str, arguments)])


@pytest.mark.parametrize("family", PROCESSORS)
def test_pixels_are_those_of_transformers(family: str, folders: dict[str, Path], picture: Path) -> None:
    ours, seen = read_preprocessing(folders[family], family, None)(Image.open(picture))
    theirs = PROCESSORS[family](Image.open(picture), return_tensors="pt")["pixel_values"]
    assert ours.shape == theirs.shape
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert seen.shape == (*ours.shape[2:], 3)


def test_a_crop_larger_than_the_picture_has_edges(tmp_path: Path, picture: Path) -> None:
    processor = tf.CLIPImageProcessorPil(size={"shortest_edge": 20}, crop_size={"height": 31, "width": 37})
    processor.save_pretrained(tmp_path)
    ours, _ = read_preprocessing(tmp_path, "clip", None)(Image.open(picture))
    assert torch.allclose(ours, processor(Image.open(picture), return_tensors="pt")["pixel_values"], atol=1e-5)


@pytest.mark.parametrize("family", PROCESSORS)
def test_a_reading_is_the_models_attention(family: str, folders: dict[str, Path], picture: Path) -> None:
    reading = PictureReader.load(folders[family]).read(picture)
    make, _, _, special = models.FAMILIES[family]
    model = make.from_pretrained(folders[family]).eval()
    pixels = PROCESSORS[family](Image.open(picture), return_tensors="pt")["pixel_values"]
    truth = models.eager(model, pixel_values=pixels).attentions
    assert len(reading.record.log) == len(truth)
    for call, weights in zip(reading.record.log, truth, strict=True):
        assert torch.allclose(call.weights.dense(), weights, atol=1e-5)
        assert call.grids[1] is not None
        assert call.grids[1].before == special


def test_the_output(folders: dict[str, Path], picture: Path, tmp_path: Path) -> None:
    result = look("--image", picture, "--model", folders["dinov2"])
    assert result.exit_code == 0, result.output
    for part in (
        "5 × 7 patches of a picture of 20 × 28 pixels, after class, register 0",
        "entropy",
        "what [class] looks at",
        "rollout",
    ):
        assert part in result.output
    result = look(
        "--image", picture, "--model", folders["dinov2"], "--patch", "3,6", "--layer", 1, "--head", 2, "--json"
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["picture"] == {"pixels": [20, 28], "rows": 5, "cols": 7, "before": ["class", *models.REGISTERS]}
    reading = PictureReader.load(folders["dinov2"]).read(picture)
    row = reading.record.log[1].weights[0, 2, 6 + 3 * 7 + 6]
    assert found["heat"]["of"] == "what 3,6 looks at"
    assert np.allclose(found["heat"]["head 2"], row[6:].reshape(5, 7), atol=1e-6)
    page = tmp_path / "page.html"
    result = look("--image", picture, "--model", folders["vit"], "--html", page)
    assert result.exit_code == 0, result.output
    assert '"pictures":["data:image/png;base64,' in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["trocr", "blip"])
def test_captions(name: str, folders: dict[str, Path], picture: Path) -> None:
    PROCESSORS["vit"].save_pretrained(folders[name])
    result = look("--image", picture, "--model", folders[name], "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    written = [int(x) for x in found["wrote"].split()]
    assert [word["word"] for word in found["words"]] == [str(x) for x in written[1:]]
    model = (tf.BlipForConditionalGeneration if name == "blip" else tf.VisionEncoderDecoderModel).from_pretrained(
        folders[name]
    )
    pixels = PROCESSORS["vit"](Image.open(picture), return_tensors="pt")["pixel_values"]
    truth = models.cross_attentions(model.eval(), pixels, torch.tensor([written[:-1]])).mean((0, 1))
    assert np.allclose([word["heat"] for word in found["words"]], truth[:, -25:].reshape(-1, 5, 5), atol=1e-5)
    result = look("--image", picture, "--model", folders[name], "--word", written[1])
    assert result.exit_code == 0, result.output
    assert "where it looked" in result.output
    result = look("--image", picture, "--model", folders[name], "--word", "giraffe")
    assert_one_line(result, "there is no word 'giraffe'")


def assert_one_line(result: Result, says: str) -> None:
    assert result.exit_code != 0
    assert isinstance(result.exception, SystemExit), result.exception
    lines = [line for line in result.output.splitlines() if not line.startswith(("Usage:", "Try "))]
    assert len([line for line in lines if line.strip()]) == 1, result.output
    assert says in result.output


def bomb(file: Path) -> Path:
    """A PNG that says it has 900 million pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0))
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b""))
    return file


def test_hostile_input_gets_one_line(folders: dict[str, Path], picture: Path, tmp_path: Path) -> None:
    vit = folders["vit"]
    text, cut, empty = tmp_path / "a.png", tmp_path / "cut.png", tmp_path / "empty.png"
    text.write_text("no picture")
    cut.write_bytes(picture.read_bytes()[:300])
    empty.write_bytes(b"")
    for file, says in (
        (text, "is not a picture that Pillow can read"),
        (empty, "is not a picture that Pillow can read"),
        (cut, "cannot be read as a picture"),
        (tmp_path / "missing.png", "there is no file"),
        (tmp_path, "is a folder"),
        (bomb(tmp_path / "bomb.png"), "30000 × 30000 pixels"),
    ):
        assert_one_line(look("--image", file, "--model", vit), says)
    assert_one_line(
        look("--image", picture, "--model", folders["bert"]), "a bert model, which reads text and no pictures"
    )
    assert_one_line(look("--image", picture), "--image needs the folder of a model")
    assert_one_line(look("a text", "--image", picture, "--model", vit), "not both")
    assert_one_line(look("a text", "--model", vit), "give it a picture with --image")
    assert_one_line(look("a text", "--patch", "1,2"), "there is no --image")
    assert_one_line(look("--image", picture, "--model", vit, "--patch", "1;2"), "is not ROW,COLUMN")
    assert_one_line(look("--image", picture, "--model", vit, "--patch", "1,5"), "must be from 0 to 4")
    assert_one_line(look("--image", picture, "--model", vit, "--word", "cat"), "writes no words")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("[]", "it is not an object"),
        ("{", "cannot be used"),
        ('{"size": {"height": 20}, "image_mean": [0.5], "image_std": [0.5]}', "width = None"),
        ('{"size": 10000000, "image_mean": [0.5], "image_std": [0.5]}', "from 1 to 4096"),
        ('{"size": 20, "image_mean": [0.5], "image_std": [0]}', "other than 0"),
        ('{"size": 20, "image_mean": "x", "image_std": [1]}', "image_mean = 'x'"),
        ('{"size": 20, "image_mean": [0.5, 1], "image_std": [1, 1]}', "2 means and deviations for 3 channels"),
        ('{"size": 20, "resample": "nearest", "image_mean": [0.5], "image_std": [1]}', "resample = 'nearest'"),
    ],
)
def test_a_hostile_preprocessor(given: str, says: str, tmp_path: Path, picture: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(given)
    with pytest.raises(ValueError, match=says):
        read_preprocessing(tmp_path, "vit", (20, 20))(Image.open(picture))


def test_without_the_file_published_values_serve_or_an_error(tmp_path: Path, picture: Path) -> None:
    ours, _ = read_preprocessing(tmp_path, "vit", (20, 20))(Image.open(picture))
    assert torch.allclose(ours, PROCESSORS["vit"](Image.open(picture), return_tensors="pt")["pixel_values"], atol=1e-5)
    with pytest.raises(FileNotFoundError, match="no usual way for a siglip model"):
        read_preprocessing(tmp_path, "siglip", (20, 20))
