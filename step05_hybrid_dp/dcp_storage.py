"""Parts of tensors to and from torch.distributed.checkpoint (DCP).

DCP's planners are its public place to say what is cut how. Ours take a `Part`: this rank's numbers
and where they stand in the whole tensor. One description serves all: evenly cut, replicated,
rows of a vocabulary that doesn't divide, a rank that has none. It needs no DTensor, so a
checkpoint opens in one process without a process group, too. No pickle is read: the index comes
from JSON (tensor_index.py), and DCP reads tensor files with torch.load's `weights_only=True`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from step02_mlp_parallel.wire import Group, group_rank, group_size

from .tensor_index import from_json, to_json


@dataclass(frozen=True)
class Part:
    """`tensor`, this rank's numbers, stands at `offsets` in a whole tensor of shape `whole`."""

    tensor: Tensor
    offsets: tuple[int, ...]
    whole: tuple[int, ...]

    @property
    def chunk(self) -> ChunkStorageMetadata:
        return ChunkStorageMetadata(torch.Size(self.offsets), self.tensor.size())


def write_parts(folder: Path, parts: Mapping[str, Part], group: Group) -> dict[str, Any] | None:
    """Write all ranks' parts into `folder`, a file a rank; returns the index, for JSON.

    Collective over `group` (object collectives of DCP's). What several ranks hold alike is
    written once, by the rank with least to write. A rank that fails raises what it failed with;
    its peers get None.
    """
    try:
        with _alone_is_fine():
            metadata = save(
                dict(parts),
                storage_writer=FileSystemWriter(folder),
                planner=_SavePlanner(),
                process_group=group,
                no_dist=group_size(group) == 1,
            )
    except CheckpointException as error:  # a BaseException that holds each rank's own
        if group_rank(group) in error.failures:
            raise error.failures[group_rank(group)][0] from error
        return None
    return to_json(metadata)


def read_parts(folder: Path, index: Mapping[str, Any], parts: Mapping[str, Part]) -> None:
    """Fill `parts` in place with what `folder` holds. Not collective: each rank reads its own.

    `index` is what `write_parts` returned. Raises ValueError where it doesn't cover a part, and for
    a file that holds anything but tensors.
    """
    try:
        with _alone_is_fine():
            load(
                dict(parts),
                storage_reader=_Reader(folder, from_json(index)),
                planner=_LoadPlanner(),
                no_dist=True,
            )
    except CheckpointException as error:
        cause = error.failures[0][0]
        if isinstance(cause, OSError):
            raise cause from error
        raise ValueError(f"{folder} can't be read: {cause}") from error


class _SavePlanner(DefaultSavePlanner):
    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def create_local_plan(self) -> SavePlan:
        # SHARD also for whole tensors: their one chunk has the same index on all ranks, by which
        # DCP sees that they are the same.
        self.plan = SavePlan(
            [
                WriteItem(
                    MetadataIndex(name, part.offsets),
                    WriteItemType.SHARD,
                    tensor_data=TensorWriteData(
                        part.chunk, TensorProperties(part.tensor.dtype), torch.Size(part.whole)
                    ),
                )
                for name, part in self.state_dict.items()
                if part.tensor.numel()
            ]
        )
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        part: Part = self.state_dict[index.fqn]
        return part.tensor.detach()


class _LoadPlanner(DefaultLoadPlanner):
    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        metadata: Metadata | None = None,
        is_coordinator: bool = False,
    ) -> None:
        self.state_dict, self.metadata = state_dict, metadata

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        items = []
        for name, part in self.state_dict.items():
            if not part.tensor.numel():
                continue
            saved = self.metadata.state_dict_metadata[name]
            assert isinstance(saved, TensorStorageMetadata)
            reads = create_read_items_for_chunk_list(name, saved, [part.chunk])
            # Numbers that no file has would stay zero, in silence.
            if sum(item.lengths.numel() for item in reads) != part.tensor.numel():
                raise ValueError(f"{name}: the checkpoint's chunks don't cover this rank's part")
            items += reads
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        part: Part = self.state_dict[index.fqn]
        return part.tensor


class _Reader(FileSystemReader):
    """DCP's reader of tensor files, with an index that was made without unpickling."""

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        super().__init__(folder)
        self._metadata = metadata

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._metadata


@contextmanager
def _alone_is_fine() -> Iterator[None]:
    """DCP warns when it works without a process group, which is what we ask of it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield
