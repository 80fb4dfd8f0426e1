"""A fine-tuned run in one process, whatever layout trained it: to score it again, to export it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from torch import nn

from step01_single_gpu.run_folder import write_text
from step02_mlp_parallel import gather_full_state_dict
from step05_hybrid_dp.agreement import World

from .finetune import FineTuning, built
from .finetune_open import folder_of, ready
from .finetune_options import Options, resumed
from .finetune_report import results, table
from .finetune_seeds import load_seed, saved_seeds
from .finetune_step import Place, predict
from .pretrained import write_finetuned


def is_finetuned(run: Path) -> bool:
    """Whether finetune.py made the folder."""
    path = run / "config.json"
    return path.is_file() and "task" in json.loads(path.read_text(encoding="utf-8"))


def open_finetuned(run: Path) -> tuple[FineTuning, list[int]]:
    """The run's task, opened again, and its finished seeds. Raises ValueError if there are none."""
    seeds = saved_seeds(run)
    if not seeds:
        raise ValueError(
            f"no seed of {run} is finished, so it has no weights; go on with it: "
            f"make finetune RESUME={run}"
        )
    options = resumed(Options(resume=run))
    config, weights, task, pad_id, _ = ready(options)
    place = Place(World(), pad_id, torch.device("cpu"))
    return FineTuning(options, config, weights, task, task, place, run, None), seeds


def finetuned_model(tuning: FineTuning, seed: int) -> nn.Module:
    """The whole model of a finished seed, encoder and head."""
    model, _ = built(tuning, seed)
    load_seed(tuning.run, seed, model, tuning.grid)
    return model


def evaluate_finetuned(run: Path) -> dict[str, object]:
    """Score all finished seeds on the held-out rows; printed, and in the run's evaluation.json."""
    t, seeds = open_finetuned(run)
    logits = [predict(finetuned_model(t, seed), t.task.valid, t.place) for seed in seeds]
    found = results(t.task, seeds, logits)
    print(f"{run}, {t.task.name}\n{table(found)}")
    write_text(run / "evaluation.json", json.dumps(found, indent=2) + "\n")
    return found


def export_finetuned(run: Path, to: Path, seed: int | None) -> None:
    """Write one seed's model (None: the first one's) in Hugging Face's form. Raises ValueError for
    a seed that isn't there."""
    t, seeds = open_finetuned(run)
    chosen = seeds[0] if seed is None else seed
    if chosen not in seeds:
        raise ValueError(
            f"--seed is {chosen}; the finished ones of {run} are {', '.join(map(str, seeds))}"
        )
    state = gather_full_state_dict(finetuned_model(t, chosen))
    kind = write_finetuned(to, t.config, state, t.task.architecture)
    shutil.copyfile(folder_of(t.options) / "vocab.txt", to / "vocab.txt")
    print(f"{to}: model.safetensors, config.json, vocab.txt of a {kind}, {run}, seed {chosen}")
