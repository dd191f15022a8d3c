"""The sizes of a model, in the words of the papers, with what each means."""

from __future__ import annotations

from torch import nn

from limelight.lens.record import Record
from limelight.matrix.lazy import LazyWeights
from limelight.nn.attention import MultiHeadAttention

MEANINGS = {
    "d_model": "numbers that stand for a token",
    "heads": "attention matrices of a layer",
    "d_k": "numbers of a query and of a key in a head",
    "d_v": "numbers of a value in a head",
    "layers": "layers of a stack",
    "n": "tokens of the text",
}
_WIDTHS = ("hidden_size", "d_model", "n_embd", "dim")
_VALUE_WIDTHS = ("v_head_dim", "value_head_dim")


def model_sizes(model: nn.Module, record: Record, n: int) -> dict[str, int]:
    """Return the sizes of a model that read ``n`` tokens; those that cannot be told are left out."""
    sizes: dict[str, int] = {}
    config = getattr(model, "config", None)
    layers = [m for m in model.modules() if isinstance(m, MultiHeadAttention)]
    width = next((getattr(config, name) for name in _WIDTHS if isinstance(getattr(config, name, None), int)), None)
    if layers:
        width = layers[0].query.in_features
    if width is not None:
        sizes["d_model"] = width
    if record.log:
        call = record.log[0]
        sizes["heads"] = call.shape[1]
        if isinstance(call.seen, LazyWeights):
            sizes["d_k"] = call.seen.tensors()[0].shape[-1]
        given = next((getattr(config, name) for name in _VALUE_WIDTHS if hasattr(config, name)), sizes.get("d_k"))
        d_v = layers[0].out.in_features // layers[0].num_heads if layers else given
        if d_v is not None:
            sizes["d_v"] = d_v
        kinds: dict[tuple[str, str], set[str]] = {}
        for call in record.log:
            kinds.setdefault((call.stack, call.kind), set()).add(call.name)
        sizes["layers"] = max(map(len, kinds.values()))
    sizes["n"] = n
    return sizes
