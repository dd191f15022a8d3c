"""Each head of a transformers model on a sentence: what it does, and where the strongest one looks.

`python examples/watch_model.py [MODEL]` (with `pip install '.[hf]'`); MODEL is a folder or a name on the hub.
"""

import sys

import torch
from transformers import AutoModel, AutoTokenizer

import limelight as ll

name = sys.argv[1] if len(sys.argv) > 1 else "sentence-transformers/all-MiniLM-L6-v2"
tokenizer, model = AutoTokenizer.from_pretrained(name), AutoModel.from_pretrained(name)
inputs = tokenizer("The animal didn't cross the street because it was too tired.", return_tensors="pt")
tokens = tokenizer.convert_ids_to_tokens(inputs.input_ids[0])

with torch.no_grad(), ll.watch(model) as record:  # the model is as it was before, afterwards
    model(**inputs)

heads = record.heads(tokens)
for label in sorted({head["label"] for head in heads}):
    found = [f"{head['layer']}.{head['head']}" for head in heads if head["label"] == label]
    print(f"{len(found):>3} × {label:<15} (layer.head {', '.join(found[:6])}{', …' if len(found) > 6 else ''})")

sharpest = min(heads, key=lambda head: head["entropy"])
print(f"\nthe sharpest is head {sharpest['head']} of layer {sharpest['layer']}:")
values, keys = record[sharpest["module"]].top(1)
for token, weight, key in zip(tokens, values[0, sharpest["head"], :, 0], keys[0, sharpest["head"], :, 0], strict=True):
    print(f"{token:>10} → {tokens[key]:<10} {weight:.2f}")
