"""A model with the text that it read, to be run again with edits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from limelight.lens.edits import Edit
from limelight.lens.metrics import has_logits, is_decoder, logits_of
from limelight.lens.next_tokens import last_logits
from limelight.lens.watching import edit

_LIKELIEST = 10  # next tokens


@dataclass(frozen=True)
class Replay:
    """A model, its tokenizer and its inputs; ``run`` gives its output with and without edits."""

    model: nn.Module
    tokenizer: Tokenizer
    source: Tensor  # (1, tokens)
    target: Tensor | None  # what an encoder-decoder wrote without edits
    ours: bool  # made of limelight's layers
    dense: bool  # computes attention itself
    positions: int | None  # how many tokens the model has positions for

    @torch.no_grad()
    def run(self, edits: Mapping[int | str, Edit]) -> dict[str, Any]:
        """Return the output with edits: next tokens, a translation, or how far the tokens' vectors moved."""
        with edit(self.model, edits, dense=self.dense):
            output = self._forward()
            written = self._written() if self.target is not None and edits else self.target
        if self.target is not None:
            assert written is not None
            scores = logits_of(output)[0].log_softmax(-1)
            chosen = scores[:-1].gather(1, self.target[0, 1:, None])[:, 0]
            text = self.tokenizer.decode(written[0].tolist())
            return {"kind": "translation", "text": text, "probabilities": chosen.exp().tolist()}
        if is_decoder(self.model) and has_logits(output, {"ids": self.source}):
            likely = logits_of(output)[0, -1].float().softmax(-1).topk(min(_LIKELIEST, logits_of(output).shape[-1]))
            names = [self.tokenizer.decode([i]) or str(i) for i in likely.indices.tolist()]
            return {"kind": "next", "tokens": names, "probabilities": likely.values.tolist()}
        return {"kind": "embedding", **self._moved(output)}

    def _forward(self) -> Any:
        if self.target is None:
            return last_logits(self.model, self.source) if is_decoder(self.model) else self.model(self.source)
        if self.ours:
            return self.model(self.source, self.target)
        return self.model(input_ids=self.source, decoder_input_ids=self.target)

    def _written(self) -> Tensor:
        from limelight.lens.reading import write_target

        written = write_target(self.model, self.source, self.ours, self.positions, None)
        assert written is not None
        return written

    def _moved(self, output: Any) -> dict[str, Any]:
        """Return the cosine between each token's vector with and without edits, and of their means."""
        hidden = output if isinstance(output, Tensor) else output[0]
        clean = self._forward()
        clean = clean if isinstance(clean, Tensor) else clean[0]
        each = functional.cosine_similarity(hidden[0], clean[0], dim=-1)
        return {
            "cosine": float(functional.cosine_similarity(hidden[0].mean(0), clean[0].mean(0), dim=-1)),
            "cosines": each.tolist(),
        }
