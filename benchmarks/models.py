"""How fast whole models are: limelight and transformers with SDPA, the same random weights, in one run.

    python benchmarks/models.py           # one thread; writes benchmarks/models.json
    python benchmarks/models.py --quick   # fewer repetitions

Needs transformers (`pip install '.[test]'`). Both models are loaded from the same checkpoint, and their tokens or
hidden states are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from rich.console import Console
from rich.progress import track
from rich.table import Table

import limelight as ll
from attention import best
from limelight import backends, models

NEW, PROMPT = 64, 2048


def pair(kind: Any, config: Any) -> tuple[Any, Any]:
    """Theirs with SDPA and ours, with the same weights."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        kind(config).save_pretrained(folder)
        theirs = kind.from_pretrained(folder, attn_implementation="sdpa").eval()
        return theirs, models.load(folder)


def generation(kind: Any, config: Any) -> dict[str, Callable[[], Any]]:
    """Greedy tokens after a prompt."""
    theirs, ours = pair(kind, config)
    ids = torch.randint(0, config.vocab_size, (1, PROMPT), generator=torch.Generator().manual_seed(1))
    there = torch.ones_like(ids)

    def mine(new: int) -> torch.Tensor:
        return models.generate(ours, ids, max_new_tokens=new, stop=[])

    def yours(new: int) -> torch.Tensor:
        settings = hf.GenerationConfig(max_new_tokens=new, do_sample=False, eos_token_id=None, pad_token_id=0)
        found: torch.Tensor = theirs.generate(ids, attention_mask=there, generation_config=settings)
        return found

    assert torch.equal(mine(NEW), yours(NEW))
    return {
        "limelight": lambda: mine(NEW),
        "transformers": lambda: yours(NEW),
        "limelight, one token": lambda: mine(1),
        "transformers, one token": lambda: yours(1),
    }


def padded_batch() -> dict[str, Callable[[], Any]]:
    """16 inputs of 20 to 128 tokens, padded to 128."""
    config = hf.BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536, vocab_size=30522
    )
    theirs, ours = pair(hf.BertModel, config)
    g = torch.Generator().manual_seed(1)
    ids, lengths = torch.randint(0, 30000, (16, 128), generator=g), torch.randint(20, 129, (16,), generator=g)
    lengths[0] = 128
    there = (torch.arange(128) < lengths[:, None]).long()
    calls = {
        "limelight": lambda: ours(ids, mask=ll.Padding(lengths)),
        "transformers": lambda: theirs(ids, attention_mask=there).last_hidden_state,
    }
    a, b = calls["limelight"](), calls["transformers"]()
    torch.testing.assert_close(a[there.bool()], b[there.bool()], rtol=1e-3, atol=1e-4)
    return calls


def gpt2() -> Any:
    return hf.GPT2Config(n_embd=512, n_layer=6, n_head=8, vocab_size=8192, n_positions=4096)


def llama() -> Any:
    return hf.LlamaConfig(
        hidden_size=1024,
        num_hidden_layers=6,
        num_attention_heads=16,
        num_key_value_heads=4,
        intermediate_size=2816,
        vocab_size=8192,
        max_position_embeddings=4096,
    )


CASES: dict[str, tuple[Callable[[], dict[str, Callable[[], Any]]], float]] = {
    f"GPT-2, 6 × 512, 8 heads: {NEW} tokens after {PROMPT}": (lambda: generation(hf.GPT2LMHeadModel, gpt2()), 1.5),
    f"LLaMA, 6 × 1024, 16 heads over 4: {NEW} tokens after {PROMPT}": (
        lambda: generation(hf.LlamaForCausalLM, llama()),
        2.0,
    ),
    "BERT, 6 × 384, 12 heads: 16 inputs of 20 to 128 tokens": (padded_batch, 1.2),
}


def decode_steps(seconds: float) -> list[dict[str, float]]:
    """The time of one step of the LLaMA above by the length of its cache, and what reading the cache takes."""
    _, ours = pair(hf.LlamaForCausalLM, llama())
    token, bandwidth = torch.tensor([[1]]), backends.read_bandwidth(1)
    found = []
    for length in (256, 1024, 4000):
        cache = ll.KVCache(capacity=length + 1)
        ours(torch.ones(1, length, dtype=torch.long), cache=cache)

        def step(cache: ll.KVCache = cache, length: int = length) -> None:
            ours(token, cache=cache)
            cache.truncate(length)

        t = best({"step": step}, seconds)["step"]
        size = sum(2 * slot.buffers["k"][:, :, :length].numel() * 4 for slot in cache.slots)
        found.append({"length": length, "milliseconds": t * 1e3, "reading": size / bandwidth * 1e3})
    return found


def after_the_prompt(ms: dict[str, float]) -> float | None:
    """The ratio for all tokens but the first, which the prompt gives."""
    if "limelight, one token" not in ms:
        return None
    return (ms["transformers"] - ms["transformers, one token"]) / (ms["limelight"] - ms["limelight, one token"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    hf.logging.set_verbosity_error()
    torch.set_num_threads(1)
    seconds = 0.5 if args.quick else 3.0
    results = []
    chosen = [(n, c) for n, c in CASES.items() if args.case in n]
    with torch.inference_mode():
        for name, (make, goal) in track(chosen, "models", console=Console(stderr=True)):
            times = best(make(), seconds)
            ratio = times["transformers"] / times["limelight"]
            ms = {n: t * 1e3 for n, t in times.items()}
            results.append(
                {"case": name, "goal": goal, "ratio": ratio, "milliseconds": ms, "the rest": after_the_prompt(ms)}
            )
        steps = decode_steps(seconds / 2)
    table = Table(title="one thread, float32, random weights: milliseconds, best of several", title_justify="left")
    for column in ("case", "limelight", "transformers", "transformers / limelight", "to reach", "after the prompt"):
        table.add_column(column, justify="left" if column == "case" else "right")
    for r in results:
        ms, mark = r["milliseconds"], "" if r["ratio"] >= r["goal"] else " ✗"
        rest = "" if r["the rest"] is None else f"{r['the rest']:.2f}"
        both = f"{ms['limelight']:.1f}", f"{ms['transformers']:.1f}"
        table.add_row(r["case"], *both, f"{r['ratio']:.2f}{mark}", f"{r['goal']}", rest)
    console = Console(width=160)
    console.print(table)
    for s in steps:
        console.print(
            f"one step of the LLaMA with {s['length']} tokens in its cache: {s['milliseconds']:.2f} ms "
            f"(reading the cache takes {s['reading']:.2f} ms)"
        )
    machine = {"machine": platform.processor() or platform.machine(), "isa": backends.isa(), "torch": torch.__version__}
    args.out.write_text(json.dumps({**machine, "results": results, "decode steps": steps}, indent=1))
    console.print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
