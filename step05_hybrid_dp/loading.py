"""From a checkpoint's folder into fresh tensors, and only when all is there into the model.

Until `swap_in` nothing that the caller owns has changed, so a checkpoint that turns out to be
damaged, or of another model, leaves a running model as it was, on every rank.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from step02_mlp_parallel.sharding import Cut
from step03_attention_parallel.rng import RNGTracker

from .dcp_storage import Part, read_parts
from .manifest import MANIFEST, newest_checkpoint, read_manifest
from .parts import check_groups, group_names, model_tensors, part_of, put_optimizer_state
from .random_state import check_stream, check_tracker, next_state, set_global
from .tensor_index import check_index, named_dtype

STATE = "state.json"
SHOWN = 6  # names in a message; a whole model's would fill the screen


class Arrival:
    """What has been read for a model, an optimizer and a tracker, before they get it."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer | None, rng: RNGTracker | None
    ) -> None:
        self.model, self.optimizer, self.rng = model, optimizer, rng
        self.tensors: dict[str, tuple[Tensor, Cut]] = {}
        self.rng_goes_on: str | None = None
        self._weights: dict[str, Tensor] = {}
        self._moments: dict[str, Tensor] = {}
        self._streams: dict[str, Tensor] = {}
        self._rng_state: dict[str, Any] = {}

    def read(self, path: Path, plain: dict[str, Any], tp_size: int, rank: int | None) -> None:
        """Read this rank's parts of everything. `rank`: whose random streams; None for nobody's.

        Not collective. Raises ValueError if the checkpoint is of another model, optimizer or seed.
        """
        index, self.tensors = plain["index"], model_tensors(self.model)
        check_groups(self.tensors, tp_size)
        self._check_model(index)
        if self.optimizer is not None:
            self._check_optimizer(index, plain["optimizer"])
        check_tracker(plain["rng"], self.rng)
        parts: dict[str, Part] = {}

        def fresh(name: str, parameter: str) -> Tensor:
            like, cut = self.tensors[parameter]
            dtype = named_dtype(index[name]["dtype"])
            buffer = torch.zeros(like.shape, dtype=dtype, device="cpu")  # padding stays zero
            parts[name] = part_of(buffer, cut)
            return buffer

        self._weights = {name: fresh(f"model.{name}", name) for name in self.tensors}
        if self.optimizer is not None:
            for parameter, key in _moments(plain["optimizer"]):
                name = f"{parameter}.{key}"
                self._moments[name] = fresh(f"optimizer.{name}", parameter)
        if rank is not None:
            for name in (n for n in index if n.startswith("rng.")):
                shape = tuple(index[name]["shape"])
                buffer = torch.zeros(1, shape[1], dtype=torch.uint8)
                parts[name] = Part(buffer, (rank, 0), shape)
                self._streams[name.removeprefix("rng.")] = buffer[0]
        read_parts(path, index, parts)
        if "global.cpu" in self._streams:
            check_stream("cpu", self._streams["global.cpu"])
        if self.rng is not None:
            self._rng_state, self.rng_goes_on = next_state(
                plain["rng"], self._streams, self.rng, rank or 0, plain["step"]
            )

    @torch.no_grad()
    def swap_in(self, plain: dict[str, Any]) -> None:
        """Give it all to its owners."""
        for name, (tensor, _) in self.tensors.items():
            tensor.copy_(self._weights[name])
        if self.optimizer is not None:
            dtypes = {name: buffer.dtype for name, buffer in self._weights.items()}
            put_optimizer_state(
                self.tensors, self.optimizer, plain["optimizer"], self._moments, dtypes
            )
            set_global(self._streams)
        if self.rng is not None:
            self.rng.load_state_dict(self._rng_state)

    def _check_model(self, index: dict[str, Any]) -> None:
        saved = {n.removeprefix("model."): index[n]["shape"] for n in index if n[:6] == "model."}
        ours = {n: list(cut.full_shape(tensor)) for n, (tensor, cut) in self.tensors.items()}
        wrong = [f"{n} is not in the checkpoint" for n in sorted(ours.keys() - saved.keys())]
        wrong += [f"{n} is unknown here" for n in sorted(saved.keys() - ours.keys())]
        wrong += [
            f"{n} has shape {saved[n]} there and {ours[n]} here"
            for n in sorted(ours.keys() & saved.keys())
            if saved[n] != ours[n]
        ]
        if wrong:
            more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
            raise ValueError(
                f"the checkpoint is of another model: {'; '.join(wrong[:SHOWN])}{more}"
            )

    def _check_optimizer(self, index: dict[str, Any], saved: dict[str, Any] | None) -> None:
        assert self.optimizer is not None
        if saved is None:
            raise ValueError("the checkpoint was saved without an optimizer; load it without one")
        kind = type(self.optimizer).__name__
        if saved["kind"] != kind:
            raise ValueError(f"the checkpoint's optimizer is {saved['kind']}, this one is {kind}")
        names = {id(tensor): name for name, (tensor, _) in self.tensors.items()}
        ours = [set(group_names(group, names)) for group in self.optimizer.param_groups]
        theirs = [set(group["names"]) for group in saved["groups"]]
        if ours != theirs:
            differ = sorted(set().union(*ours) ^ set().union(*theirs))
            raise ValueError(
                "the optimizer's groups are not the checkpoint's: "
                + (", ".join(differ[:SHOWN]) + " is in one of them only" if differ else "")
                + f" ({[len(g) for g in theirs]} parameters a group there, "
                f"{[len(g) for g in ours]} here)"
            )
        for parameter, key in _moments(saved):
            entry = index.get(f"optimizer.{parameter}.{key}")
            if entry is None or entry["shape"] != index[f"model.{parameter}"]["shape"]:
                raise ValueError(f"optimizer state {key!r} of {parameter} is missing or misshapen")


def find(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The checkpoint meant by `folder`, and the files that it must have."""
    one = (folder / STATE).exists() or (folder / MANIFEST).exists()
    path = folder if one else newest_checkpoint(folder)
    if path is None:
        raise ValueError(f"there is no whole checkpoint in {folder}")
    return path, read_manifest(path)


def read_state(path: Path, files: dict[str, Any]) -> dict[str, Any]:
    """What isn't a tensor, with the index of the tensors."""
    try:
        plain: dict[str, Any] = json.loads((path / STATE).read_text(encoding="utf-8"))
        for key in ("step", "extra", "layout", "optimizer", "rng", "index"):
            plain[key]
        check_index(plain["index"], files)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path / STATE} is not of this program: {error}") from error
    return plain


def _moments(saved: dict[str, Any]) -> list[tuple[str, str]]:
    """(parameter, key) of the optimizer's tensors; numbers are in state.json itself."""
    return [
        (name, key)
        for name, values in saved["state"].items()
        for key, number in values.items()
        if number is None
    ]
