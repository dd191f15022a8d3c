"""Make the pictures of docs/pictures.md: ``python docs/pictures.py FOLDER`` trains a small ViT and looks into it.

Each picture has a disc and a square, and the model learns to name the colour of the disc. FOLDER gets the model and one
picture, for ``limelight look --image FOLDER/picture.png --model FOLDER``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import ViTConfig, ViTForImageClassification

import limelight as ll

SIDE, PATCH = 56, 8
COLOURS = np.array([[230, 60, 50], [60, 170, 80], [60, 110, 230], [235, 190, 40]])
STEPS, BATCH = 400, 48


def draw(random: np.random.Generator) -> tuple[np.ndarray, int]:
    """Return a picture of a disc and a square that do not touch, and the number of the disc's colour."""
    y, x = np.mgrid[:SIDE, :SIDE]
    image = np.full((SIDE, SIDE, 3), 40) + random.normal(0, 12, (SIDE, SIDE, 3))
    disc, square = random.choice(4, 2, replace=False)
    while True:
        (a, b), (c, d) = random.integers(9, SIDE - 9, (2, 2))
        if max(abs(a - c), abs(b - d)) > 20:
            break
    image[np.hypot(y - a, x - b) < 8] = COLOURS[disc]
    image[np.maximum(abs(y - c), abs(x - d)) < 7] = COLOURS[square]
    return image.clip(0, 255).astype(np.uint8), int(disc)


def batch(random: np.random.Generator, count: int) -> tuple[Tensor, Tensor]:
    """Return normalised pixels and colours of some pictures."""
    images, colours = zip(*(draw(random) for _ in range(count)), strict=True)
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2) / 127.5 - 1, torch.tensor(colours)


def main(folder: Path) -> None:
    """Train, report the accuracy on new pictures, and save the model, a picture and the figure."""
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    config = ViTConfig(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        image_size=SIDE,
        patch_size=PATCH,
        num_labels=len(COLOURS),
    )
    model = ViTForImageClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=STEPS)
    for _ in range(STEPS):
        pixels, colours = batch(random, BATCH)
        optimizer.zero_grad()
        model(pixel_values=pixels, labels=colours).loss.backward()
        optimizer.step()
        schedule.step()
    pixels, colours = batch(np.random.default_rng(1), 500)
    with torch.no_grad():
        right = (model.eval()(pixel_values=pixels).logits.argmax(-1) == colours).float().mean()
    print(f"{right:.1%} of 500 new pictures are named by the disc's colour")
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    image, _ = draw(np.random.default_rng(4))
    Image.fromarray(image).save(folder / "picture.png")
    shown = torch.from_numpy(image).permute(2, 0, 1)[None] / 127.5 - 1
    with torch.no_grad(), ll.watch(model) as record:
        model(pixel_values=shown)
    call = record.log[-1]
    figure = call.weights.show(image=image, grid=call.grids[1], query="class", on="figure")
    file = Path(__file__).parent / "pictures.png"
    figure.savefig(file, dpi=70)
    Image.open(file).convert("RGB").quantize(128).save(file, optimize=True)  # a third of the size


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/pictures.py FOLDER")
    main(Path(sys.argv[1]))
