"""`python -m step05_hybrid_dp.export`: a run's newest checkpoint in Hugging Face's form
(`make export RUN=… TO=folder`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from step01_single_gpu.programs import run_program
from step02_mlp_parallel import gather_full_state_dict
from step04_embeddings_loss import ParallelGPT
from step04_embeddings_loss.weights_file import write_gpt2

from .load import load_run


@dataclass(frozen=True)
class Options:
    """Write model.safetensors, config.json and tokenizer.json, which transformers opens."""

    to: Path
    run: Path | None = None
    """A run folder; None is the newest."""


def check_folder(options: Options) -> None:
    """Raise ValueError for `make export` without TO=."""
    if options.to == Path():
        raise ValueError("where to? Name a folder: make export TO=folder")


def main(options: Options) -> None:
    check_folder(options)
    model, data = load_run(options.run)
    ours = isinstance(model, ParallelGPT)  # else step 1's
    state = gather_full_state_dict(model) if ours else model.state_dict()
    write_gpt2(options.to, model.config, state)
    data.tokenizer.save(str(options.to / "tokenizer.json"))
    print(f"{options.to}: model.safetensors, config.json, tokenizer.json")


if __name__ == "__main__":
    run_program(main, Options)
