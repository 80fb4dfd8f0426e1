"""`python -m step01_single_gpu.sample`: let a trained model write (`make sample`)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from . import checkpoint
from .config import PAPER_MODELS
from .data import Data, open_data, prepare
from .model import GPT
from .programs import run_program
from .run_folder import newest_run


@dataclass(frozen=True)
class Options:
    """Continue a prompt with a trained model."""

    run: Path | None = None
    """A run folder; None is the newest."""
    prompt: str = "Fellow citizens,"
    tokens: int = 120
    temperature: float = 0.8
    top_k: int = 40
    seed: int = 1


def main(options: Options, load: Callable[[Path | None], tuple[Any, Data]] | None = None) -> None:
    """`load`: how to open a run's folder; None is `load_run`, for those of this step's program."""
    model, data = (load or load_run)(options.run)
    print(
        sample_text(
            model,
            data.tokenizer,
            options.prompt,
            tokens=options.tokens,
            temperature=options.temperature,
            top_k=options.top_k,
            seed=options.seed,
        )
    )


def sample_text(
    model: Any,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    tokens: int = 120,
    temperature: float = 0.8,
    top_k: int = 40,
    seed: int = 1,
) -> str:
    """The prompt and what the model writes after it; the same for the same seed."""
    ids = torch.tensor([tokenizer.encode(prompt).ids], device=next(model.parameters()).device)
    if ids.numel() == 0:
        raise ValueError("the prompt is empty; give at least one character")
    generator = torch.Generator(ids.device).manual_seed(seed)
    written = model.generate(ids, tokens, temperature=temperature, top_k=top_k, generator=generator)
    return str(tokenizer.decode(written[0].tolist()))


def load_run(run: Path | None) -> tuple[GPT, Data]:
    """The trained model of a run folder (the newest if None) on the CPU, and its data."""
    run = run or newest_run()
    state = checkpoint.read(run / "checkpoint.pt")
    options = json.loads((run / "config.json").read_text())
    data = open_data(prepare(options["corpus"], options["tokenizer"], Path(options["root"])))
    config = PAPER_MODELS[options["model"]]
    config = dataclasses.replace(
        config,
        vocab_size=data.train.vocab_size,
        seq_length=options["seq_length"] or config.seq_length,
    )
    model = GPT(config)
    checkpoint.load_weights(state, model)
    return model, data


if __name__ == "__main__":
    run_program(main, Options)
