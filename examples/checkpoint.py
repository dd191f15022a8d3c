"""From a checkpoint to text: a folder with config.json, model.safetensors and tokenizer.json, as they are published.

`python examples/checkpoint.py FOLDER "A text"`; without a folder it takes the translator that comes with limelight.
"""

import sys
from importlib.resources import files
from pathlib import Path

import torch
from tokenizers import Tokenizer

import limelight as ll

folder = Path(sys.argv[1] if len(sys.argv) > 1 else str(files("limelight.translate") / "english-french"))
prompt = sys.argv[2] if len(sys.argv) > 2 else "I would like a cup of coffee, please."

model = ll.models.load(folder, dtype=torch.float32)
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
ids = torch.tensor([tokenizer.encode(prompt).ids])
parameters = sum(x.numel() for x in model.parameters())
print(f"{model.config['model_type']}, {parameters / 1e6:.1f} million parameters, {ids.shape[1]} tokens in the prompt")

for beams in (1, 4):
    with torch.no_grad():
        out = ll.models.generate(model, ids, max_new_tokens=40, beams=beams)
    print(f"{beams} beam{'s' * (beams > 1)}: {tokenizer.decode(out[0].tolist())}")
