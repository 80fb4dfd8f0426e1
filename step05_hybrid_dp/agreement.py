"""What one rank knows, all know: a failure anywhere is raised everywhere, with the rank named.

A rank that finds the disk full, or a file missing, must not leave its peers waiting in the next
collective. So everything that can fail alone runs inside `together`, and nothing between two calls
of it may fail on one rank only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch.distributed as dist

from step02_mlp_parallel.wire import Group

T = TypeVar("T")


class Layout(Protocol):
    """What is needed of a Grid: who is where, and the two groups (None where there is one rank)."""

    @property
    def tp_group(self) -> Group: ...
    @property
    def dp_group(self) -> Group: ...
    @property
    def tp_rank(self) -> int: ...
    @property
    def dp_rank(self) -> int: ...
    @property
    def tp_size(self) -> int: ...
    @property
    def dp_size(self) -> int: ...


class Agreed(ValueError):
    """A refusal that every rank raises alike, so that one of them may say it for all."""


class World:
    """All ranks as one group, before there is a grid: a Layout for `together`."""

    def __init__(self) -> None:
        self.tp_group: Group = dist.group.WORLD if dist.is_initialized() else None
        self.dp_group: Group = None
        self.tp_rank = dist.get_rank() if dist.is_initialized() else 0
        self.tp_size = dist.get_world_size() if dist.is_initialized() else 1
        self.dp_rank, self.dp_size = 0, 1


class CheckpointError(RuntimeError):
    """Reading or writing failed on some rank: a full disk, no permission."""


def together(grid: Layout | None, action: Callable[[], T]) -> list[T]:
    """Run `action` on every rank; returns all values, ordered by dp_rank * tp_size + tp_rank.

    Collective over the whole grid: two all-gathers of objects, first over the TP group, then over
    the DP group, so no rank comes back before all have finished. If it raised anywhere, every rank
    raises: Agreed, a ValueError, if all failures are ValueErrors, else CheckpointError.
    """
    value, error = None, None
    try:
        value = action()
    except Exception as caught:
        error = caught
    text = None if error is None else f"{error}" or repr(error)
    if isinstance(error, (OSError, KeyError)):
        text = f"{type(error).__name__}: {text}"
    row = [(value, text, isinstance(error, ValueError))]
    if grid is not None:
        row = _gather(row[0], grid.tp_group)
        rows = [entry for part in _gather(row, grid.dp_group) for entry in part]
    else:
        rows = row
    failures = {rank: entry[1:] for rank, entry in enumerate(rows) if entry[1] is not None}
    if failures:
        kind = Agreed if all(refused for _, refused in failures.values()) else CheckpointError
        raise kind(_told(failures, len(rows))) from error
    return [entry[0] for entry in rows]


def rank_zero(grid: Layout | None, action: Callable[[], T]) -> T:
    """`action` on rank 0 alone; its value, or its failure, on every rank. Collective."""
    first = grid is None or (grid.tp_rank == 0 and grid.dp_rank == 0)
    value: Any = together(grid, lambda: action() if first else None)[0]
    return value  # type: ignore[no-any-return]


def _gather(value: Any, group: Group) -> list[Any]:
    if group is None or dist.get_world_size(group) == 1:
        return [value]
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def _told(failures: dict[int, tuple[str, bool]], world_size: int) -> str:
    """Each message once, with the ranks that say so."""
    by_text: dict[str, list[int]] = {}
    for rank, (text, _) in failures.items():
        by_text.setdefault(text, []).append(rank)
    if world_size == 1 or (len(by_text) == 1 and len(failures) == world_size):
        return next(iter(by_text))
    return "; ".join(
        f"rank {', '.join(map(str, ranks))} of {world_size}: {text}"
        for text, ranks in by_text.items()
    )
