"""Everything a run needs to go on bit for bit, in one file that is never half-written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, **extra: Any) -> None:
    """Write model, optimizer, random state and `extra` (numbers, strings, tensors) to `path`.

    Written beside it, flushed to the disk, then renamed: a crash leaves the older file whole.
    """
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        **extra,
    }
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: Path) -> dict[str, Any]:
    """The file's content on the CPU. Raises ValueError if it is missing, cut short or foreign.

    `weights_only` runs no code from the file, so a checkpoint from a stranger is only data.
    """
    if not path.is_file():
        raise ValueError(f"there is no checkpoint {path}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises a different type for each kind of damage
        raise ValueError(f"{path} is not a whole checkpoint: {error}") from error
    if not isinstance(state, dict) or not {"model", "optimizer", "rng"} <= state.keys():
        raise ValueError(f"{path} is not a checkpoint of this program")
    return state


def restore(state: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put what `read` returned back: weights, Adam's moments, random state."""
    load_weights(state, model)
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"])
    if state["cuda_rng"]:
        torch.cuda.set_rng_state_all(state["cuda_rng"])


def load_weights(state: dict[str, Any], model: nn.Module) -> None:
    """Only the weights. Raises ValueError if they are of another model."""
    try:
        model.load_state_dict(state["model"])
    except RuntimeError as error:
        raise ValueError(f"the checkpoint is of another model: {error}") from error
