"""The speed of whole models: limelight and transformers with SDPA, the same random weights, in one run.

    python benchmarks/models.py                    # one thread, every case; writes benchmarks/results/models-CPU.json
    python benchmarks/models.py --quick            # fewer repetitions
    python benchmarks/models.py --case SmolLM2     # only the cases whose name contains this

Needs transformers (`pip install '.[test]'`). Both models are loaded from the same checkpoint, and their tokens or
hidden states are compared before anything is timed. A step of generation reads every weight and the whole cache once:
the bandwidth of the machine says how long that takes at least.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from rich.console import Console
from rich.progress import track
from rich.table import Table

import limelight as ll
from limelight import backends, models
from limelight.cli._bench import machine
from limelight.cli._bench.measuring import best, best_when_steady, is_steady
from limelight.models import checkpoint

NEW, PROMPT, LONG = 64, 2048, 4096


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


def long_text(kind: Any, config: Any) -> dict[str, Callable[[], Any]]:
    """One text of 4,096 tokens, of which Longformer's first is global."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        theirs = kind(config).eval()
        theirs.save_pretrained(folder)
        ours = models.load(folder)
    ids = torch.randint(5, config.vocab_size, (1, LONG), generator=torch.Generator().manual_seed(1))
    there, first = torch.ones_like(ids), torch.arange(LONG)[None] == 0
    with_global = kind is hf.LongformerModel
    mine = {"global_tokens": first} if with_global else {}
    yours = {"global_attention_mask": first.long()} if with_global else {}
    calls = {
        "limelight": lambda: ours(ids, **mine),
        "transformers": lambda: theirs(ids, attention_mask=there, **yours).last_hidden_state,
    }
    torch.testing.assert_close(calls["limelight"](), calls["transformers"](), rtol=1e-3, atol=1e-4)
    return calls


def longformer() -> Any:
    return hf.LongformerConfig(num_hidden_layers=2, vocab_size=8192, max_position_embeddings=LONG + 2)


def big_bird() -> Any:
    return hf.BigBirdConfig(num_hidden_layers=2, vocab_size=8192, max_position_embeddings=LONG)


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
    f"Longformer, 2 × 768, 12 heads: {LONG} tokens": (lambda: long_text(hf.LongformerModel, longformer()), 2.0),
    f"BigBird, 2 × 768, 12 heads: {LONG} tokens": (lambda: long_text(hf.BigBirdModel, big_bird()), 2.0),
}


@dataclass(frozen=True)
class Shape:
    """A published model's shape, with random weights: a step of generation after prompts of several lengths."""

    name: str
    kind: Any
    config: Any
    prompts: dict[int, float]  # length: how many times as fast as transformers a step is to be
    reading: float | None = None  # how many times reading its weights and its cache a step may take

    def case(self, length: int) -> str:
        return f"{self.name}, after {length}"


SMOLLM2 = hf.LlamaConfig(
    hidden_size=576,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    intermediate_size=1536,
    vocab_size=49152,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
)
LLAMA_1B = hf.LlamaConfig(
    hidden_size=2048,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=64,
    intermediate_size=8192,
    vocab_size=128256,
    max_position_embeddings=131072,
    tie_word_embeddings=True,
)
SHAPES = [
    Shape("SmolLM2-135M", hf.LlamaForCausalLM, SMOLLM2, {32: 1.3, 1024: 1.3, 4096: 1.8}),
    Shape("GPT-2", hf.GPT2LMHeadModel, hf.GPT2Config(), {32: 1.0, 960: 1.0}, reading=1.15),
    Shape("Llama-3.2-1B", hf.LlamaForCausalLM, LLAMA_1B, {32: 1.0, 1024: 1.0}, reading=1.15),
]


def share(ours: Any, theirs: Any, config: Any) -> None:
    """Let our parameters lie where theirs do, so that large models are in memory once."""
    architecture = checkpoint.ARCHITECTURES[config.model_type]
    found = {name.removeprefix(architecture.PREFIX): x for name, x in theirs.state_dict().items()}
    parameters = dict(ours.named_parameters())
    for one in architecture.tensors(config.to_dict()):
        for name, x in zip(one.ours, one.split(found[one.theirs]), strict=True):
            parameters[name].data = x.contiguous()
    backends.move_to_large_pages(ours.parameters())


def step_cases(shape: Shape, wanted: str, threads: int, seconds: float) -> list[dict[str, Any]]:
    """Measure a step of generation and, once or twice, the prompt, for both."""
    lengths = [length for length in shape.prompts if wanted in shape.case(length)]
    if not lengths:
        return []
    torch.manual_seed(0)
    theirs = shape.kind._from_config(shape.config, attn_implementation="sdpa").eval()
    ours = models.build({**shape.config.to_dict(), "architectures": [shape.kind.__name__]}).eval()
    share(ours, theirs, shape.config)
    weights = sum(x.numel() * x.itemsize for x in ours.parameters())
    found = []
    for length in lengths:
        ids = torch.randint(0, shape.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(1))
        token = ids[:, -1:]
        cache, other = ll.KVCache(capacity=length + 1), hf.DynamicCache(config=shape.config)

        def mine(ids: torch.Tensor, cache: ll.KVCache = cache, length: int = length) -> torch.Tensor:
            if cache.count > length:
                cache.truncate(length)
            return ours(ids, cache=cache, last=True)

        def yours(ids: torch.Tensor, cache: Any = other, length: int = length) -> torch.Tensor:
            if cache.get_seq_length() > length:
                cache.crop(-1)
            return theirs(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits

        prompt = {}
        for name, call in (("limelight", mine), ("transformers", yours)):
            start = time.perf_counter()
            call(ids)
            prompt[name] = time.perf_counter() - start
        torch.testing.assert_close(mine(token), yours(token), rtol=1e-3, atol=1e-3)
        calls = {"limelight": partial(mine, token), "transformers": partial(yours, token)}
        times, ratios = best_when_steady(calls, seconds, lambda t: t["transformers"] / t["limelight"])
        size = weights + sum(2 * slot.buffers["k"][:, :, :length].numel() * 4 for slot in cache.slots)
        reading = size / backends.read_bandwidth(threads, 1 << 28)
        found.append(
            {
                "case": shape.case(length),
                "threads": threads,
                "goal": shape.prompts[length],
                "ratio": times["transformers"] / times["limelight"],
                "steady": is_steady(ratios),
                "milliseconds": {name: t * 1e3 for name, t in times.items()},
                "reading": reading * 1e3,
                "of reading": times["limelight"] / reading,
                "of reading, at most": shape.reading,
                "prompt": prompt["transformers"] / prompt["limelight"],
            }
        )
    return found


def steps_table(steps: list[dict[str, Any]], threads: int) -> Table:
    """Return one row a shape and a length."""
    table = Table(title=f"a step of generation, {threads} thread{'s' if threads > 1 else ''}, float32: milliseconds")
    table.title_justify = "left"
    columns = "limelight", "transformers", "transformers / limelight", "reading it once", "step / reading", "prompt"
    for column in ("case", *columns):
        table.add_column(column, justify="left" if column == "case" else "right")
    for s in steps:
        most = s["of reading, at most"]
        ratio = f"{'' if s['steady'] else '~'}{s['ratio']:.2f} ({s['goal']:g}){' ✗' if s['ratio'] < s['goal'] else ''}"
        limit = "" if most is None else f" ({most:g}){' ✗' if s['of reading'] > most else ''}"
        both = (f"{s['milliseconds'][name]:.2f}" for name in ("limelight", "transformers"))
        table.add_row(
            s["case"], *both, ratio, f"{s['reading']:.2f}", f"{s['of reading']:.2f}{limit}", f"{s['prompt']:.2f}"
        )
    return table


def after_the_prompt(ms: dict[str, float]) -> float | None:
    """The ratio for all tokens but the first, which the prompt gives."""
    if "limelight, one token" not in ms:
        return None
    return (ms["transformers"] - ms["transformers, one token"]) / (ms["limelight"] - ms["limelight, one token"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="benchmarks/results/models-CPU.json if every case is run")
    args = parser.parse_args()
    hf.logging.set_verbosity_error()
    torch.set_num_threads(args.threads)
    seconds = 0.5 if args.quick else 3.0
    console, progress = Console(width=160), Console(stderr=True)
    warning = machine.busy()
    if warning:
        progress.print(f"warning: {warning}")
    results = []
    chosen = [(n, c) for n, c in CASES.items() if args.case in n]
    with torch.inference_mode():
        for name, (make, goal) in track(chosen, "models", console=progress):
            times = best(make(), seconds)
            ratio = times["transformers"] / times["limelight"]
            ms = {n: t * 1e3 for n, t in times.items()}
            rest = after_the_prompt(ms)
            results.append({"case": name, "goal": goal, "ratio": ratio, "milliseconds": ms, "the rest": rest})
        steps = []
        for shape in track(SHAPES, "steps", console=progress):
            steps += step_cases(shape, args.case, args.threads, seconds / 2)
    if results:
        console.print(generations_table(results, args.threads))
    if steps:
        console.print(steps_table(steps, args.threads))
    out = args.out
    if out is None and not args.case:
        out = Path(__file__).parent / "results" / f"models-{machine.file_name(machine.cpu_name())}"
    if out is not None:
        about = {"cpu": machine.cpu_name(), "isa": backends.isa(), "torch": torch.__version__, "threads": args.threads}
        out.write_text(json.dumps({**about, "results": results, "steps": steps}, indent=1) + "\n")
        console.print(f"wrote {out}")


def generations_table(results: list[dict[str, Any]], threads: int) -> Table:
    """Return one row a case."""
    table = Table(title=f"{threads} thread{'s' if threads > 1 else ''}, float32, random weights: milliseconds")
    table.title_justify = "left"
    for column in ("case", "limelight", "transformers", "transformers / limelight", "to reach", "after the prompt"):
        table.add_column(column, justify="left" if column == "case" else "right")
    for r in results:
        ms, mark = r["milliseconds"], "" if r["ratio"] >= r["goal"] else " ✗"
        rest = "" if r["the rest"] is None else f"{r['the rest']:.2f}"
        both = f"{ms['limelight']:.1f}", f"{ms['transformers']:.1f}"
        table.add_row(r["case"], *both, f"{r['ratio']:.2f}{mark}", f"{r['goal']}", rest)
    return table


if __name__ == "__main__":
    main()
