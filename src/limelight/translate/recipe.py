"""The recipe of a training: sizes of the model, schedule, regularisation, and how the pairs are changed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tokenizers import Tokenizer

from limelight.translate import vocabulary
from limelight.translate.augmentation import Shares

_SHARES = ("names", "numbers", "phrases", "quotes", "joined")
_MAY_BE_ZERO = (
    *("dropout", "label_smoothing", "merges_dropped", "consistency", "warm_up", "seed", "average", "bfloat16", "muon"),
    *_SHARES,
)


@dataclass(frozen=True)
class Recipe:
    """The settings of a training: the same recipe on the same pairs gives the same model.

    Args:
        vocabulary: the number of tokens that are learned, for both languages.
        width: the width of the model.
        heads: the number of heads in a layer.
        encoder_layers: layers of the encoder.
        decoder_layers: layers of the decoder.
        hidden: the hidden width of feed-forward layers.
        dropout: share of each layer's output that is dropped.
        label_smoothing: share of the target's probability that is spread over all tokens.
        merges_dropped: probability that a merge of the vocabulary is left out while the pairs of an epoch are encoded.
        consistency: weight of the divergence between two passes with different dropout (R-Drop).
        epochs: passes over the pairs, at most.
        part: share of the pairs in each epoch.
        tokens: target tokens in a batch.
        muon: matrices inside the layers change by orthogonal steps (Muon); everything else, and by default
            everything, by those of Adam.
        rate: peak learning rate, after the warm-up; it falls to 0 along a cosine.
        warm_up: updates in which the rate rises.
        clip: largest norm of the gradient.
        average: decay of the moving average of the parameters, which is validated and kept.
        blend: share of the trained parameters in those that are kept; the rest is those at the start.
        held_out: sentences that are not used at all, for a test.
        validated: sentences for the BLEU of every epoch, apart from those that are held out.
        patience: the training ends after so many epochs without a better BLEU.
        falling: share of the training, at its end, during which the rate falls.
        names: share of the pairs with a name on both sides that get another name in an epoch.
        numbers: the same for numbers.
        phrases: share of all pairs that get a phrase with a number or a name.
        quotes: share of all pairs that get quotation marks.
        joined: share of all pairs that are joined to long sentences.
        longest: words of a joined sentence, at most.
        bfloat16: matrix products in bfloat16: twice as fast on processors with matrix units for it.
        seed: seed of everything random.

    """

    vocabulary: int = 5800
    width: int = 256
    heads: int = 8
    encoder_layers: int = 4
    decoder_layers: int = 2
    hidden: int = 768
    dropout: float = 0.1
    label_smoothing: float = 0.1
    merges_dropped: float = 0.0
    consistency: float = 0.0
    epochs: int = 20
    part: float = 1.0
    tokens: int = 2500
    muon: bool = False
    rate: float = 1e-3
    warm_up: int = 1500
    clip: float = 1.0
    average: float = 0.999
    blend: float = 1.0
    held_out: int = 1500
    validated: int = 300
    patience: int = 5
    falling: float = 1.0
    names: float = 0.6
    numbers: float = 0.6
    phrases: float = 0.06
    quotes: float = 0.02
    joined: float = 0.45
    longest: int = 65
    bfloat16: bool = False
    seed: int = 1

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            least = 0 if name in _MAY_BE_ZERO else 1e-12
            if not isinstance(value, (int, float)):
                raise TypeError(f"{name} = {value!r} must be a number")
            if not value >= least:
                raise ValueError(f"{name} = {value} must be {'at least' if least == 0 else 'above'} 0")
        for name in ("dropout", "label_smoothing", "average"):
            if getattr(self, name) >= 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be below 1")
        for name in ("merges_dropped", "part", "falling", "blend", *_SHARES):
            if getattr(self, name) > 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be at most 1")
        if self.width % self.heads:
            raise ValueError(f"width = {self.width} must be a multiple of heads = {self.heads}")

    @property
    def shares(self) -> Shares:
        """The shares of the pairs that are changed in an epoch."""
        return Shares(**{name: getattr(self, name) for name in _SHARES}, longest=self.longest)

    def config(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """Return the configuration of the model with this tokenizer, by the names that Marian's checkpoints use."""
        shape: dict[str, Any] = {}
        for stack, depth in (("encoder", self.encoder_layers), ("decoder", self.decoder_layers)):
            shape |= {f"{stack}_layers": depth, f"{stack}_attention_heads": self.heads, f"{stack}_ffn_dim": self.hidden}
        end, padding = vocabulary.number(tokenizer, vocabulary.END), vocabulary.number(tokenizer, vocabulary.PADDING)
        return {
            "model_type": "marian",
            "architectures": ["MarianMTModel"],
            "vocab_size": tokenizer.get_vocab_size(),
            "d_model": self.width,
            **shape,
            "activation_function": "relu",
            "dropout": self.dropout,
            "attention_dropout": 0.0,
            "activation_dropout": 0.0,
            "scale_embedding": True,
            "initializer_range": self.width**-0.5,
            "max_position_embeddings": 512,
            "eos_token_id": end,
            "forced_eos_token_id": None,
            "pad_token_id": padding,
            "decoder_start_token_id": padding,
            "is_encoder_decoder": True,
            "share_encoder_decoder_embeddings": True,
            "tie_word_embeddings": True,
        }
