"""`python -m step04_embeddings_loss.write`: a downloaded GPT-2 writes, over several ranks
(`make write-gpt2 WEIGHTS=folder`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from step01_single_gpu.programs import run_program
from step01_single_gpu.vocabulary import gpt2_bpe
from step02_mlp_parallel import load_full_state_dict, run_ranks

from .gpt import ParallelGPT
from .weights_file import read_config, read_gpt2


@dataclass(frozen=True)
class Options:
    """Continue a prompt with a GPT-2 in Hugging Face's form, cut over gloo ranks."""

    weights: Path
    """A folder with model.safetensors and config.json."""
    tp: int = 2
    """Ranks; must divide the model's heads."""
    prompt: str = "My fellow citizens,"
    tokens: int = 40
    temperature: float = 0.8
    top_k: int = 40
    seed: int = 1
    root: Path = Path("data")
    """Where GPT-2's vocabulary is, or is put."""


def main(options: Options) -> None:
    config = read_config(options.weights)
    tokenizer = gpt2_bpe(options.root)
    ids = tokenizer.encode(options.prompt).ids
    if not ids:
        raise ValueError("the prompt is empty; give at least one character")
    if options.tp < 1 or config.num_heads % options.tp:
        raise ValueError(f"tp {options.tp} doesn't divide the model's {config.num_heads} heads")
    written = run_ranks(continued, options.tp, options, ids, timeout=3600.0)
    print(tokenizer.decode(written[0]))


def continued(options: Options, prompt: list[int]) -> list[int]:
    """Token ids of the prompt and what follows: inside a rank, the same on all."""
    config, state = read_gpt2(options.weights)
    model = ParallelGPT(config, group=dist.group.WORLD)
    load_full_state_dict(model, state)
    del state  # the whole model, which this rank has its part of now
    generator = torch.Generator().manual_seed(options.seed)
    tokens = model.generate(
        torch.tensor([prompt]),
        options.tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        generator=generator,
    )
    return [int(i) for i in tokens[0]]


if __name__ == "__main__":
    run_program(main, Options)
