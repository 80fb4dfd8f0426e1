"""A corpus as one row of token ids in a file that is read through memory, not into it.

Layout, little-endian: a header of 64 bytes, then the ids.
    8 bytes magic · u32 version · u32 bytes per id (2 or 4) · u64 count · u64 vocabulary size
    · 32 bytes sha256 of the vocabulary
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

MAGIC, VERSION = b"MLMTOKEN", 1
HEADER = struct.Struct("<8sIIQQ32s")
DTYPES: dict[int, np.dtype[Any]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}


@dataclass(frozen=True)
class TokenFile:
    """The ids (read-only memory map, uint16 or uint32), and the vocabulary they belong to."""

    ids: np.ndarray[Any, Any]
    vocab_size: int
    vocab_hash: str


def write_tokens(
    path: Path, pieces: Iterable[list[int]], *, vocab_size: int, vocab_hash: str
) -> int:
    """Write lists of ids one after another to `path`; returns how many ids there are.

    Written under a temporary name and renamed when complete: nobody ever opens half a file.
    """
    size = 2 if vocab_size <= 2**16 else 4
    temporary, count = path.with_name(f"{path.name}.{os.getpid()}.tmp"), 0
    try:
        with open(temporary, "wb") as file:
            file.write(bytes(HEADER.size))
            for piece in pieces:
                file.write(np.asarray(piece, dtype=DTYPES[size]).tobytes())
                count += len(piece)
            file.seek(0)
            digest = bytes.fromhex(vocab_hash)
            file.write(HEADER.pack(MAGIC, VERSION, size, count, vocab_size, digest))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return count


def read_tokens(path: Path, vocab_hash: str | None = None) -> TokenFile:
    """Open a token file. Raises ValueError, naming the file and the cure, if it is foreign,
    truncated, or made with another vocabulary than `vocab_hash`."""
    again = "make it again with `make data`"
    if not path.is_file():
        raise ValueError(f"there is no token file {path}; {again}")
    with open(path, "rb") as file:
        header = file.read(HEADER.size)
    if len(header) < HEADER.size or header[:8] != MAGIC:
        raise ValueError(f"{path} is not a token file of this project (wrong magic); {again}")
    _, version, size, count, vocab_size, digest = HEADER.unpack(header)
    if version != VERSION or size not in DTYPES:
        raise ValueError(
            f"{path} has version {version}, this code reads version {VERSION}; {again}"
        )
    expected, found = HEADER.size + count * size, path.stat().st_size
    if found != expected:
        raise ValueError(f"{path} has {found} bytes where its header says {expected}; {again}")
    if vocab_hash is not None and digest.hex() != vocab_hash:
        raise ValueError(
            f"{path} was made with vocabulary {digest.hex()[:12]}, "
            f"not with {vocab_hash[:12]}; {again}"
        )
    empty = np.empty(0, dtype=DTYPES[size])
    ids = np.memmap(path, DTYPES[size], "r", HEADER.size, (count,)) if count else empty
    return TokenFile(ids, vocab_size, digest.hex())
