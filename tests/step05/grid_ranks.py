"""Functions that run inside ranks: the grid, and who sees which rows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from step05_hybrid_dp.batches import check_same_rows
from step05_hybrid_dp.grid import Grid


def groups_of(tp_sizes: list[int]) -> list[dict[str, Any]]:
    return [groups_at(tp_size) for tp_size in tp_sizes]


def groups_at(tp_size: int) -> dict[str, Any]:
    grid = Grid(tp_size, dist.get_world_size() // tp_size, device_type="cpu")
    assert grid.mesh is not None
    found: dict[str, Any] = {"place": (grid.dp_rank, grid.tp_rank), "shape": tuple(grid.mesh.shape)}
    for name in ("tp", "dp", "world"):
        group = getattr(grid, f"{name}_group")
        number = torch.tensor([float(2 ** dist.get_rank())])
        dist.all_reduce(number, group=group)  # the set of members, as bits
        found[name] = (dist.get_process_group_ranks(group), int(number.item()))
    return found


def making(layouts: list[tuple[int, int]]) -> list[tuple[list[list[int]], str]]:
    return [making_one(*layout) for layout in layouts]


def making_one(tp_size: int, dp_size: int) -> tuple[list[list[int]], str]:
    """The groups that this rank makes, in order, and what was said."""
    from torch.distributed import device_mesh

    made, make = [], device_mesh.new_group

    def recorded(ranks: list[int], **options: Any) -> Any:
        made.append(list(ranks))
        return make(ranks=ranks, **options)

    device_mesh.new_group = recorded
    try:
        Grid(tp_size, dp_size, device_type="cpu")
        return made, ""
    except ValueError as error:
        return made, str(error)


def mismatches(cases: list[tuple[str, bool]]) -> list[str]:
    return [mismatch(*case) for case in cases]


def mismatch(what: str, checked: bool) -> str:
    """Pitfall 70: the ranks bring different dtypes or shapes, with or without torch's checks."""
    dist.set_debug_level(dist.DebugLevel.DETAIL if checked else dist.DebugLevel.OFF)
    group = dist.new_group(timeout=timedelta(seconds=1.0))
    x = torch.ones(2)
    if dist.get_rank() == 1:
        x = torch.ones(3) if what == "shape" else x.int()
    try:
        dist.all_reduce(x, group=group)
        return "no error"
    except RuntimeError as error:
        return str(error)


def same_rows(kinds: list[str]) -> list[str]:
    grid = Grid(2, 2, device_type="cpu")
    return [same_rows_with(kind, grid) for kind in kinds]


def same_rows_with(kind: str, grid: Grid) -> str:
    """tp = 2, dp = 2; rank 3, of the second TP group, has something else."""
    x = torch.arange(6).view(2, 3)
    other = {"values": x + 1, "dtype": x.int(), "shape": x.view(3, 2), "nothing": x}[kind]
    try:
        check_same_rows([x, other if dist.get_rank() == 3 else x], grid.tp_group)
        return "no error"
    except ValueError as error:
        return str(error)
