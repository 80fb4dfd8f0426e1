"""Opening a run's newest checkpoint in one process, whatever layout trained it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import step01_single_gpu.sample as single
from step01_single_gpu.data import Data, open_data, prepare
from step01_single_gpu.run_folder import newest_run
from step01_single_gpu.train import model_config
from step04_embeddings_loss import ParallelGPT

from .checkpoint import load_checkpoint
from .options import Options


def load_run(run: Path | None) -> tuple[Any, Data]:
    """The trained model of a run (the newest if None), whole and on the CPU, and its data.

    Opens the runs of step 1's program too. Raises ValueError for a folder without a checkpoint.
    """
    run = run or newest_run()
    if (run / "checkpoint.pt").is_file():
        return single.load_run(run)
    options = saved_options(run)
    data = open_data(prepare(options.corpus, options.tokenizer, options.root))
    model = ParallelGPT(model_config(options, data.train.vocab_size))
    load_checkpoint(run / "checkpoints", model)
    return model, data


def saved_options(run: Path) -> Options:
    """config.json of a run."""
    path = run / "config.json"
    if not path.is_file():
        raise ValueError(f"{run} is not a run folder: it has no config.json")
    values = json.loads(path.read_text(encoding="utf-8"))
    name = values.get("model", values.get("task"))  # a fine-tuned run says its task
    if name not in Options.models:
        raise ValueError(
            f"{run} is a run of {name}, which is no GPT-2. A BERT's run opens with make "
            "evaluate and make export; it doesn't write (its guesses are in sample.txt)"
        )
    return Options(**{**values, "root": Path(values["root"]), "run": None, "resume": None})
