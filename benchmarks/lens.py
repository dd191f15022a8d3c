"""The speed of models of transformers under limelight, watched and not, against their own attention, in one run.

    python benchmarks/lens.py           # one thread; writes benchmarks/lens.json
    python benchmarks/lens.py --quick   # fewer repetitions

Needs transformers (`pip install '.[test]'`).
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

import limelight as ll
from limelight.cli._bench.measuring import best
from limelight.lens.hf import registration

LENGTH = 4096
BASE = {"vocab_size": 1000, "hidden_size": 768, "num_hidden_layers": 2, "num_attention_heads": 12}
LONG = {**BASE, "intermediate_size": 2048, "num_key_value_heads": 4, "max_position_embeddings": 4096, "pad_token_id": 0}
STACKS = {
    **{f"{s}_layers": 2 for s in ("encoder", "decoder")},
    **{f"{s}_attention_heads": 12 for s in ("encoder", "decoder")},
    **{f"{s}_ffn_dim": 3072 for s in ("encoder", "decoder")},
    "vocab_size": 1000,
    "d_model": 768,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
SIGNS = {"bos_token_id": 1, "eos_token_id": 2}
SPECIAL = {"num_local_experts": 4, "num_experts_per_tok": 1, "sliding_window": 128, "head_dim": 64}


def families(n: int) -> dict[str, tuple[Any, Any, dict[str, Tensor]]]:
    """A model, its configuration and an input of ``n`` tokens (or patches, or frames) of every family."""
    g = torch.Generator().manual_seed(1)
    ids = {"input_ids": torch.randint(3, 1000, (1, n), generator=g)}
    both = {**ids, "decoder_input_ids": torch.randint(3, 1000, (1, n // 4), generator=g)}
    side = 16 * round(n**0.5)
    image = {"pixel_values": torch.randn(1, 3, side, side, generator=g)}
    frames = {"input_features": torch.randn(1, 80, 2 * n, generator=g), "decoder_input_ids": both["decoder_input_ids"]}
    return {
        "BERT": (hf.BertModel, hf.BertConfig(**BASE, max_position_embeddings=4096), ids),
        "GPT-2": (
            hf.GPT2LMHeadModel,
            hf.GPT2Config(vocab_size=1000, n_layer=2, n_positions=4096, bos_token_id=1, eos_token_id=2),
            ids,
        ),
        "LLaMA": (hf.LlamaForCausalLM, hf.LlamaConfig(**LONG), ids),
        "Mistral": (hf.MistralForCausalLM, hf.MistralConfig(**LONG, sliding_window=256), ids),
        "Gemma-2": (hf.Gemma2ForCausalLM, hf.Gemma2Config(**LONG, head_dim=64, sliding_window=256), ids),
        "gpt-oss": (hf.GptOssForCausalLM, hf.GptOssConfig(**LONG, **SPECIAL), ids),
        "GPT-NeoX": (
            hf.GPTNeoXForCausalLM,
            hf.GPTNeoXConfig(**BASE, intermediate_size=3072, bos_token_id=1, eos_token_id=2),
            ids,
        ),
        "T5": (
            hf.T5ForConditionalGeneration,
            hf.T5Config(vocab_size=1000, d_model=768, d_ff=3072, num_layers=2, num_heads=12, decoder_start_token_id=0),
            both,
        ),
        "BART": (hf.BartForConditionalGeneration, hf.BartConfig(**STACKS, max_position_embeddings=4096), both),
        "Whisper": (
            hf.WhisperForConditionalGeneration,
            hf.WhisperConfig(**STACKS, max_source_positions=n, max_target_positions=4096),
            frames,
        ),
        "ViT": (hf.ViTModel, hf.ViTConfig(num_hidden_layers=2, image_size=side), image),
        "Qwen-2": (hf.Qwen2ForCausalLM, hf.Qwen2Config(**LONG), ids),
    }


def forward(kind: Any, config: Any, given: dict[str, Tensor], seconds: float) -> dict[str, float]:
    """Seconds of a forward pass with each implementation, and the largest difference between their outputs."""
    torch.manual_seed(0)
    own = "sdpa" if kind._supports_sdpa else "eager"
    model = kind._from_config(config, attn_implementation=own).eval()

    def run(implementation: str) -> Callable[[], Any]:
        def call() -> Any:
            model.set_attn_implementation(implementation)
            out = model(**given, use_cache=False) if "pixel_values" not in given else model(**given)
            return out.logits if hasattr(out, "logits") else out.last_hidden_state

        return call

    calls = {"limelight": run("limelight"), own: run(own)}
    difference = float((calls["limelight"]() - calls[own]()).abs().max())
    return {**best(calls, seconds), "difference": difference}


def bert() -> Any:
    """Six layers of BERT's size, for long texts."""
    torch.manual_seed(0)
    config = hf.BertConfig(num_hidden_layers=6, max_position_embeddings=LENGTH)
    return hf.BertModel._from_config(config, attn_implementation="eager").eval()


def watched(model: Any, ids: Tensor) -> Any:
    """The report on its heads, by limelight."""
    with ll.watch(model) as record:
        model(ids)
    return record.heads()


def eagerly(model: Any, ids: Tensor) -> Any:
    """The same numbers from the matrices that ``output_attentions=True`` makes."""
    matrices = model(ids, output_attentions=True).attentions
    n = ids.shape[1]
    i = torch.arange(n)
    away = (i[:, None] - i).abs().float()
    order = torch.argsort(ids[0], stable=True)
    again = ids[0][order][1:] == ids[0][order][:-1]
    later, earlier = order[1:][again], order[:-1][again]
    rows = []
    for a in matrices:
        a = a[0]
        flat = torch.nn.functional.normalize(a.flatten(1), dim=-1)
        rows.append(
            {
                "entropy": torch.special.entr(a).sum(-1).mean(-1),
                "received": a.sum(-2),
                "distance": (a * away).sum(-1).mean(-1),
                "profile": torch.stack([a.diagonal(d, -2, -1).sum(-1) / n for d in range(-8, 9)], -1),
                "similarity": ((flat @ flat.mT).sum(-1) - 1) / (len(a) - 1),
                "duplicate": a[:, torch.cat([later, earlier]), torch.cat([earlier, later])].sum(-1),
                "induction": a[:, later, (earlier + 1).clamp(max=n - 1)].sum(-1),
            }
        )
    return rows


WAYS = {"limelight": watched, "eager": eagerly}


def alone(way: str) -> dict[str, float]:
    """Seconds and peak memory beyond the model of one way, in a process of its own."""
    code = f"import lens; print(lens.json.dumps(lens.measured({way!r})))"
    folder = Path(__file__).parent
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measured(way: str) -> dict[str, float]:
    """Run one way, in the process that ``alone`` starts."""
    torch.set_num_threads(1)
    model, ids = bert(), torch.randint(1000, 30000, (1, LENGTH), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        WAYS[way](model, ids[:, :64])
        before = _peak()
        begin = time.perf_counter()
        report = WAYS[way](model, ids)
        seconds = time.perf_counter() - begin
    entropy = report[0]["entropy"]
    return {
        "seconds": seconds,
        "bytes": _peak() - before,
        "entropy": float(entropy if way == "limelight" else entropy[0]),
    }


def _peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    registration.register()
    hf.logging.set_verbosity_error()
    console = Console()
    found: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "torch": torch.__version__}
    seconds = 2.0 if quick else 5.0

    table = Table("family", "tokens", "limelight ms", "its own ms", "ratio", "difference")
    found["forward"] = []
    with torch.no_grad():
        for n in (512, 2048):
            for name, (kind, config, given) in track(families(n).items(), description=f"{n} tokens", console=console):
                times = forward(kind, config, given, seconds)
                own = next(x for x in times if x in ("sdpa", "eager"))
                row = {"family": name, "tokens": n, "own": own, **times, "ratio": times[own] / times["limelight"]}
                found["forward"].append(row)
                ms = [f"{1e3 * times[x]:.1f}" for x in ("limelight", own)]
                table.add_row(
                    name, str(n), ms[0], f"{ms[1]} ({own})", f"{row['ratio']:.2f}", f"{times['difference']:.0e}"
                )
    console.print(table)

    turns = [{way: alone(way) for way in WAYS} for _ in range(1 if quick else 4)]
    runs = {way: [turn[way] for turn in turns] for way in WAYS}
    fastest = {way: min(x["seconds"] for x in each) for way, each in runs.items()}
    memory = {way: min(x["bytes"] for x in each) for way, each in runs.items()}
    found["watched"] = {
        "seconds": fastest,
        "bytes": memory,
        "ratio": fastest["eager"] / fastest["limelight"],
        "memory": memory["limelight"] / memory["eager"],
        "entropy": [runs[way][0]["entropy"] for way in WAYS],
    }
    table = Table(f"6 layers, {LENGTH} tokens, report on heads", "seconds", "MB beyond the model")
    for way in WAYS:
        table.add_row(way, f"{fastest[way]:.1f}", f"{memory[way] / 1e6:.0f}")
    console.print(table)
    console.print(f"{found['watched']['ratio']:.2f} times as fast, in {found['watched']['memory']:.3f} of the memory")
    Path(__file__).with_suffix(".json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
