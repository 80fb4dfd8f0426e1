"""DCP's index of a checkpoint (which chunk of which tensor lies where) as JSON.

DCP keeps it in `.metadata`, a pickle: whoever writes that file can run commands on the machine that
reads it. It is still written, so that torch's own tools open our checkpoints, but never read here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)


def to_json(metadata: Metadata) -> dict[str, Any]:
    """Per tensor: dtype, whole shape, and its chunks with the file and bytes that hold them."""
    index = {}
    for name, saved in metadata.state_dict_metadata.items():
        assert isinstance(saved, TensorStorageMetadata)
        chunks = []
        for chunk in saved.chunks:
            place = metadata.storage_data[MetadataIndex(name, chunk.offsets)]
            chunks.append(
                {
                    "offsets": list(chunk.offsets),
                    "sizes": list(chunk.sizes),
                    "file": place.relative_path,
                    "at": place.offset,
                    "bytes": place.length,
                }
            )
        dtype = str(saved.properties.dtype).removeprefix("torch.")
        index[name] = {"dtype": dtype, "shape": list(saved.size), "chunks": chunks}
    return index


def from_json(index: Mapping[str, Any]) -> Metadata:
    """What `to_json` took, for DCP's reader. Raises some error or other for what isn't an index."""
    tensors: dict[str, STORAGE_TYPES] = {}
    places = {}
    for name, entry in index.items():
        chunks = []
        for chunk in entry["chunks"]:
            offsets, sizes = torch.Size(chunk["offsets"]), torch.Size(chunk["sizes"])
            chunks.append(ChunkStorageMetadata(offsets, sizes))
            place = _Place(str(chunk["file"]), int(chunk["at"]), int(chunk["bytes"]))
            places[MetadataIndex(name, offsets)] = place
        properties = TensorProperties(named_dtype(entry["dtype"]))
        tensors[name] = TensorStorageMetadata(properties, torch.Size(entry["shape"]), chunks)
    return Metadata(tensors, storage_data=places, storage_meta=StorageMeta())


def check_index(index: Mapping[str, Any], files: Collection[str]) -> None:
    """Raise ValueError unless `index` is well formed and points at nothing but `files`."""
    try:
        from_json(index)
        used = {str(chunk["file"]) for entry in index.values() for chunk in entry["chunks"]}
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"its index of tensors is damaged: {error!r}") from error
    if not used <= set(files):
        raise ValueError(f"its index names unknown files: {', '.join(sorted(used - set(files)))}")


def named_dtype(name: str) -> torch.dtype:
    """torch.float32 for "float32". Raises ValueError for what is no dtype."""
    dtype = getattr(torch, str(name), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is not a torch dtype")
    return dtype


@dataclass(frozen=True)
class _Place:
    """Where a chunk lies: what FileSystemReader asks of an entry of `storage_data`."""

    relative_path: str
    offset: int
    length: int
    transform_descriptors: None = None
