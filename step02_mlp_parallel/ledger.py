"""Counting what goes over the wire: each collective, in order, on this rank.

    with record_collectives() as ledger:
        mlp(x)
    print([entry.op for entry in ledger])

The project's only module-level state: the open ledgers. Behind a lock, since a CUDA backward runs
in other threads. Set-up and checkpoints don't pass through here, and are not counted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Collective:
    """One call: what was sent by this rank, and to whom."""

    op: str  # "all_reduce(sum)", "all_reduce(max)", "all_gather"
    shape: tuple[int, ...]
    dtype: torch.dtype
    ranks: tuple[int, ...]  # global ranks of the group
    began: float = field(compare=False)  # seconds, time.perf_counter()
    ended: float = field(compare=False)  # when the call came back; the work may go on if async

    @property
    def numel(self) -> int:
        """Numbers in the buffer."""
        return torch.Size(self.shape).numel()

    @property
    def nbytes(self) -> int:
        """Bytes in the buffer (what an algorithm really sends is a multiple of it)."""
        return self.numel * self.dtype.itemsize


_open: list[list[Collective]] = []
_lock = threading.Lock()


@contextmanager
def record_collectives() -> Iterator[list[Collective]]:
    """A list that fills with this rank's collectives while the `with` is open; may be nested."""
    ledger: list[Collective] = []
    with _lock:
        _open.append(ledger)
    try:
        yield ledger
    finally:
        with _lock:  # by identity: two empty ledgers are equal
            _open[:] = [other for other in _open if other is not ledger]


@contextmanager
def note(op: str, buffer: Tensor, ranks: list[int]) -> Iterator[None]:
    """Enter one collective into all open ledgers, when its call has come back without error."""
    began = time.perf_counter()
    yield
    entry = Collective(
        op, tuple(buffer.shape), buffer.dtype, tuple(ranks), began, time.perf_counter()
    )
    with _lock:
        for ledger in _open:
            ledger.append(entry)
