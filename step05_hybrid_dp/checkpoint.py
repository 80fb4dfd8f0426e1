"""Checkpoints that open at any (tp, dp), are whole or not there, and run nobody's code.

What is where: tensors (weights, Adam's moments, random streams) in DCP's files, described by their
cut (parts.py, dcp_storage.py); everything else in state.json, with DCP's index (tensor_index.py);
sha256 of all in manifest.json, and which folder is the newest (manifest.py). A failure on one rank
is raised on all (agreement.py).

DP replicas are equal, so only the ranks of DP rank 0 write, each its own part and its share of
what is replicated over the TP group: one TP group (one server) writes, whatever dp_size is.
Saving is synchronous: weights can't change under it, and its collectives can't cross training's.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from step03_attention_parallel.rng import RNGTracker

from .agreement import CheckpointError, Layout, rank_zero, together
from .dcp_storage import Part, write_parts
from .loading import STATE, Arrival, find, read_state
from .manifest import (
    check_files,
    check_keep,
    fingerprint,
    free_name,
    keep_newest,
    newest_checkpoint,
    publish,
    remove_leftovers,
    temporary,
    write_through,
)
from .parts import check_groups, model_tensors, optimizer_state, part_of
from .random_state import own_streams, stacked

__all__ = [
    "CheckpointError",
    "keep_newest",
    "load_checkpoint",
    "newest_checkpoint",
    "save_checkpoint",
]


def save_checkpoint(
    folder: str | Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    *,
    step: int,
    rng: RNGTracker | None = None,
    extra: Mapping[str, Any] | None = None,
    grid: Layout | None = None,
    keep: int | None = None,
) -> Path:
    """Write a checkpoint of optimizer step `step` into `folder`; returns its own folder.

    Collective over the grid: all ranks call it; those of DP rank 0 write. `extra` (plain values
    that JSON holds: options, data position) is taken from rank 0. With `keep` all but the newest
    `keep` checkpoints are deleted afterwards. Wire: object collectives, no tensor but the random
    streams. Raises ValueError for what can't be saved and CheckpointError if writing fails on any
    rank (named), on all ranks; then older checkpoints, model and optimizer are as they were.
    A folder is for one run at a time: the next save deletes what a killed one left.
    """
    folder = Path(folder)
    ranks = together(grid, lambda: _prepared(model, optimizer, step, rng, extra, grid, keep))
    steps = [rank["step"] for rank in ranks]
    if len(set(steps)) > 1:
        raise ValueError(f"the ranks are at different steps: {steps} in order of rank")
    parts, plain = _own_state(model, optimizer)
    streams, plain["rng"] = stacked([rank["rng"] for rank in ranks])
    first = _size_and_rank(grid)[1] == 0
    if first:
        parts |= {f"rng.{n}": Part(t, (0, 0), tuple(t.shape)) for n, t in streams.items()}
    plain |= {"step": step, "extra": dict(extra or {}), "layout": _layout(grid)}
    name, hidden = rank_zero(grid, lambda: _begin(folder, step))
    try:
        written = together(grid, lambda: _write(hidden, parts, plain, grid))
        files = {file: entry for rank in written for file, entry in rank.items()}
        return rank_zero(grid, lambda: _finish(folder, hidden, name, files, keep))
    finally:
        if first:
            shutil.rmtree(hidden, ignore_errors=True)


def load_checkpoint(
    folder: str | Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    rng: RNGTracker | None = None,
    grid: Layout | None = None,
) -> dict[str, Any]:
    """Load the newest checkpoint in `folder`, or the one that `folder` is, at any (tp, dp).

    Collective over the grid. Values are cast to the model's dtype. With `optimizer`: its moments,
    and torch's global random stream if the layout is the same. With `rng`: its streams go on where
    they were at the same layout, and are started anew, keyed by (seed, step), at another.
    Returns {"step", "extra", "path", "layout": {"tp_size", "dp_size"} of the save, "rng":
    "continued", "restarted" or None}. Raises ValueError on all ranks, before anything is changed,
    for a missing, damaged or incomplete checkpoint, or one of another model, optimizer or seed.
    """
    size, rank = _size_and_rank(grid)
    path, files = rank_zero(grid, lambda: find(Path(folder)))
    together(grid, lambda: check_files(path, files, rank, size))
    plain = rank_zero(grid, lambda: read_state(path, files))
    arrival, layout = Arrival(model, optimizer, rng), _layout(grid)
    whose = rank if plain["layout"] == layout else None
    together(grid, lambda: arrival.read(path, plain, layout["tp_size"], whose))
    arrival.swap_in(plain)
    result = {key: plain[key] for key in ("step", "extra", "layout")}
    return result | {"path": path, "rng": arrival.rng_goes_on}


def _prepared(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    step: int,
    rng: RNGTracker | None,
    extra: Mapping[str, Any] | None,
    grid: Layout | None,
    keep: int | None,
) -> dict[str, Any]:
    """Everything that one rank can refuse is refused here; returns its step and streams."""
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ValueError(f"step is {step!r}; it must be a whole number from 0 up")
    if keep is not None:
        check_keep(keep)
    if grid is None and dist.is_initialized() and dist.get_world_size() > 1:
        raise ValueError(
            f"there are {dist.get_world_size()} ranks and no grid: each would write the same "
            "files; pass grid="
        )
    try:
        json.dumps(dict(extra or {}))
    except (TypeError, ValueError) as error:
        raise ValueError(f"extra must hold plain values that JSON has: {error}") from error
    check_groups(model_tensors(model), 1 if grid is None else grid.tp_size)
    _own_state(model, optimizer)
    return {"step": step, "rng": own_streams(rng)}


def _own_state(
    model: nn.Module, optimizer: torch.optim.Optimizer | None
) -> tuple[dict[str, Part], dict[str, Any]]:
    """This rank's parts, and what of the optimizer is no tensor. No copies."""
    tensors = model_tensors(model)
    parts = {f"model.{name}": part_of(*entry) for name, entry in tensors.items()}
    if optimizer is None:
        return parts, {"optimizer": None}
    found, plain = optimizer_state(tensors, optimizer)
    return parts | {f"optimizer.{n}": part_of(*e) for n, e in found.items()}, {"optimizer": plain}


def _layout(grid: Layout | None) -> dict[str, int]:
    return {
        "tp_size": 1 if grid is None else grid.tp_size,
        "dp_size": 1 if grid is None else grid.dp_size,
    }


def _begin(folder: Path, step: int) -> tuple[str, Path]:
    """On rank 0: the new checkpoint's name, and its temporary folder, made."""
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    name = free_name(folder, step)
    hidden = temporary(folder, name)
    hidden.mkdir()
    return name, hidden


def _write(
    hidden: Path, parts: Mapping[str, Part], plain: dict[str, Any], grid: Layout | None
) -> dict[str, Any]:
    """This rank's files, on the disk; returns their fingerprints by name."""
    if grid is not None and grid.dp_rank > 0:
        return {}
    group, me = (None, 0) if grid is None else (grid.tp_group, grid.tp_rank)
    index = write_parts(hidden, parts, group)
    own = list(hidden.glob(f"__{me}_*"))  # DCP names a file after the rank that writes it
    if index is None:
        return {}  # a peer failed, and says so itself
    if me == 0:
        write_through(hidden / STATE, json.dumps(plain | {"index": index}))
        own += [hidden / STATE, hidden / ".metadata"]
    return {file.name: fingerprint(file) for file in own}


def _finish(folder: Path, hidden: Path, name: str, files: dict[str, Any], keep: int | None) -> Path:
    """On rank 0: make it visible, then delete what is too old."""
    path = publish(folder, hidden, name, files)
    if keep is not None:
        with contextlib.suppress(OSError):  # the new one stands, whatever becomes of the old
            keep_newest(folder, keep)
    return path


def _size_and_rank(grid: Layout | None) -> tuple[int, int]:
    """Ranks of the grid, and this one's number in the order of `together`."""
    if grid is None:
        return 1, 0
    return grid.tp_size * grid.dp_size, grid.dp_rank * grid.tp_size + grid.tp_rank
