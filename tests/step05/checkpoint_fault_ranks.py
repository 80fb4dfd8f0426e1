"""Functions that run inside ranks: checkpoints that are hindered, damaged, or of something else."""

from __future__ import annotations

import builtins
import os
import pickle
import resource
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from step01_single_gpu.optimizer import make_optimizer
from step02_mlp_parallel import ColumnParallelLinear, RowParallelLinear
from step02_mlp_parallel.wire import Group
from step05_hybrid_dp.checkpoint import CheckpointError, load_checkpoint, save_checkpoint

from .checkpoint_ranks import Place


class Little(nn.Module):
    """A column- and a row-parallel layer."""

    def __init__(self, group: Group = None, width: int = 8) -> None:
        super().__init__()
        self.up = ColumnParallelLinear(4, width, group=group, name="up")
        self.down = RowParallelLinear(width, 4, group=group, name="down")


def little(place: Place, value: float) -> tuple[Little, torch.optim.Optimizer]:
    """All weights and moments are `value`, so one sees which save a state is of."""
    model = Little(place.tp_group)
    optimizer = make_optimizer(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
            optimizer.state[parameter] = {
                "step": torch.tensor(value),
                "exp_avg": torch.full_like(parameter, value),
                "exp_avg_sq": torch.full_like(parameter, value),
            }
    return model, optimizer


def values(model: nn.Module, optimizer: torch.optim.Optimizer) -> set[float]:
    tensors = [*model.parameters(), *(t for s in optimizer.state.values() for t in s.values())]
    return {v for tensor in tensors for v in tensor.flatten().tolist()}


def writers(folder: str, tp_size: int, dp_size: int) -> list[str]:
    """Every path that this rank opens for writing while it saves."""
    opened, real = [], builtins.open

    def watched(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if set(mode) & set("wax+"):
            opened.append(str(file))
        return real(file, mode, *args, **kwargs)

    place = Place(tp_size, dp_size)
    model, optimizer = little(place, 1.0)
    builtins.open = watched  # type: ignore[assignment]
    Path.open = lambda self, mode="r", *a, **k: watched(self, mode, *a, **k)  # type: ignore
    save_checkpoint(folder, model, optimizer, step=1, grid=place)
    return opened


def attempt(action: Callable[[], Any]) -> str:
    try:
        action()
    except (ValueError, CheckpointError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def full_disk(folder: str, bad: int) -> dict[str, Any]:
    """Rank `bad` may write 100 bytes a file, at the second save."""
    place = Place(dist.get_world_size(), 1)
    model, optimizer = little(place, 1.0)
    save_checkpoint(folder, model, optimizer, step=1, grid=place)
    model, optimizer = little(place, 2.0)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if dist.get_rank() == bad:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    said = attempt(lambda: save_checkpoint(folder, model, optimizer, step=2, grid=place))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    dist.barrier()
    intact, left = values(model, optimizer), sorted(p.name for p in Path(folder).iterdir())
    told = load_checkpoint(folder, model, optimizer, grid=place)
    again = save_checkpoint(folder, model, optimizer, step=2, grid=place)
    return {
        "said": said,
        "intact": intact,
        "left": left,
        "step": told["step"],
        "older": values(model, optimizer),
        "again": again.name,
    }


def refused(folder: str, blind: int | None = None, other: str = "") -> dict[str, Any]:
    """What each rank says to loading, and what its state is afterwards. Rank `blind` sees no file;
    `other`: this rank's model or optimizer is another."""
    place = Place(dist.get_world_size(), 1)
    model, optimizer = little(place, 5.0)
    if other == "width":
        model = Little(place.tp_group, width=16)
    if other == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = values(model, optimizer)
    if dist.get_rank() == blind:
        for name in ("exists", "is_file", "is_dir"):
            setattr(Path, name, lambda self: False)
    said = attempt(lambda: load_checkpoint(folder, model, optimizer, grid=place))
    return {"said": said, "untouched": values(model, optimizer) == before}


def saving_is_refused(folder: str) -> dict[str, str]:
    place, across = Place(1, dist.get_world_size()), Place(dist.get_world_size(), 1)
    model, optimizer = little(place, 1.0)
    first = dist.get_rank() == 0

    def save(**changed: Any) -> str:
        given: dict[str, Any] = {"step": 1, "grid": place, "optimizer": optimizer, **changed}
        return attempt(lambda: save_checkpoint(folder, model, **given))

    return {
        "no grid": save(grid=None),
        "step on rank 1": save(step=1 if first else -1),
        "two steps": save(step=1 if first else 2),
        "extra": save(extra={"model": model}),
        "keep": save(keep=0),
        "foreign": save(optimizer=make_optimizer(nn.Linear(2, 2))),
        "another grid": attempt(
            lambda: save_checkpoint(folder, *little(across, 1.0), step=1, grid=place)
        ),
        "load without grid": attempt(lambda: load_checkpoint(folder, model)),
    }


def saving_until_killed(folder: str, after: float | None, operation: int | None) -> None:
    """Save over and over in one process; kill -9 after some seconds, or at the n-th call of what
    changes the disk."""
    place = Place(1, 1)
    if after is not None:
        threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL)).start()
    calls = [0]

    def fatal(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            if calls[0] == operation:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return call

    if operation is not None:
        for name in ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir"):
            setattr(os, name, fatal(getattr(os, name)))
        builtins.open = fatal(builtins.open)
    step = 100
    while True:
        step += 1
        model, optimizer = little(place, float(step))
        save_checkpoint(folder, model, optimizer, step=step, grid=place, keep=1)


class RunsACommand:
    """Unpickling it makes the file `path`."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.path}'",)


def crafted(path: str) -> bytes:
    return pickle.dumps(RunsACommand(path))
