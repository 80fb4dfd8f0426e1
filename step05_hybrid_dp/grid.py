"""Who works with whom: ranks on a (dp, tp) grid (paper, figure 8 and appendix B.1).

Tensor-parallel ranks talk four times a layer, data-parallel ranks once a step. So the TP ranks are
adjacent, which under torchrun means on one server, and the slow wires between servers carry
gradients only.
"""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout

from step02_mlp_parallel.wire import Group


# exercise 5.1
def grid_coordinates(rank: int, tp_size: int, dp_size: int) -> tuple[int, int]:
    """(dp_rank, tp_rank) of a global rank, where rank = dp_rank · tp_size + tp_rank.

    Raises ValueError for a rank that the grid doesn't have.
    """
    check_sizes(tp_size, dp_size)
    if not 0 <= rank < tp_size * dp_size:
        raise ValueError(
            f"there is no rank {rank} in a grid of tp_size {tp_size} × dp_size {dp_size}: "
            f"ranks go from 0 to {tp_size * dp_size - 1}"
        )
    return divmod(rank, tp_size)


class Grid:
    """This rank's place and its two groups, out of a DeviceMesh of shape (dp_size, tp_size).

    All ranks must make it, in the same order among other groups, since making a group is a
    collective of the whole world: each rank also makes the groups that it isn't in. A process
    without a process group is a grid of 1 × 1, whose groups and mesh are None. The groups of one
    rank otherwise are real ones (to torch's own functions None would mean the whole world).
    Ranks inside groups differ from global ranks; torch's `src=` and `dst=` want global ones.
    `timeout`: seconds that a rank waits in these groups' collectives; None is torch's default.
    Raises ValueError, before any group is made and on every rank alike, unless the sizes are
    positive and tp_size · dp_size is the number of ranks.
    """

    def __init__(
        self, tp_size: int, dp_size: int, *, device_type: str, timeout: float | None = None
    ) -> None:
        world_size = dist.get_world_size() if dist.is_initialized() else 1
        check_world(world_size, tp_size, dp_size)
        self.tp_size, self.dp_size, self.device_type = tp_size, dp_size, device_type
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.dp_rank, self.tp_rank = grid_coordinates(self.rank, tp_size, dp_size)
        self.mesh: DeviceMesh | None = None
        self.tp_group: Group = None
        self.dp_group: Group = None
        self.world_group: Group = None
        if dist.is_initialized():
            self.mesh = init_device_mesh(
                device_type, (dp_size, tp_size), mesh_dim_names=("dp", "tp")
            )
            self.tp_group = self.mesh.get_group("tp")
            self.dp_group = self.mesh.get_group("dp")
            self.world_group = dist.group.WORLD
            for group in (self.tp_group, self.dp_group):
                if timeout is not None:  # a mesh's groups have torch's half an hour, whatever
                    # the world's is; there is no public name to change that
                    _set_pg_timeout(timedelta(seconds=timeout), group)

    def __repr__(self) -> str:
        return (
            f"Grid(tp_size={self.tp_size}, dp_size={self.dp_size}), rank {self.rank}: "
            f"dp_rank {self.dp_rank}, tp_rank {self.tp_rank}"
        )


def figure_8(tp_size: int, dp_size: int, *, most: int = 8) -> str:
    """The paper's figure 8 as text: every rank's number in its row and column.

    A row is a tensor-parallel group, a column a data-parallel group; beyond `most` of either, the
    middle is "…".
    """
    check_sizes(tp_size, dp_size)
    columns, rows = _ends(tp_size, most), _ends(dp_size, most)
    width = max(len(f"tp {tp_size - 1}"), len(str(tp_size * dp_size - 1)))
    left = len(f"dp {dp_size - 1}")

    def line(name: str, cells: list[str]) -> str:
        return f"{name:<{left}}  " + "  ".join(f"{cell:>{width}}" for cell in cells)

    lines = [line("", ["…" if tp is None else f"tp {tp}" for tp in columns])]
    for dp in rows:
        if dp is None:
            lines.append(line("…", ["…"] * len(columns)))
        else:
            numbers = ["…" if tp is None else str(dp * tp_size + tp) for tp in columns]
            lines.append(line(f"dp {dp}", numbers))
    return "\n".join(
        [
            f"{tp_size * dp_size} ranks: {tp_size}-way tensor × {dp_size}-way data parallel",
            "",
            *lines,
            "",
            f"row:    a tensor-parallel group ({dp_size} of them): one copy of the model",
            f"column: a data-parallel group ({tp_size} of them): the same part of the model",
        ]
    )


def check_world(world_size: int, tp_size: int, dp_size: int) -> None:
    """Raise ValueError, naming layouts that would work, unless they multiply to world_size."""
    check_sizes(tp_size, dp_size)
    if tp_size * dp_size != world_size:
        works = [n for n in range(1, world_size + 1) if world_size % n == 0]
        layouts = ", ".join(f"{n} × {world_size // n}" for n in works)
        raise ValueError(
            f"tp_size {tp_size} × dp_size {dp_size} is {tp_size * dp_size} ranks, but {world_size} "
            f"{'is' if world_size == 1 else 'are'} running; with {world_size} these would work "
            f"(tp_size × dp_size): {layouts}"
        )


def check_sizes(tp_size: int, dp_size: int) -> None:
    """Raise ValueError unless both are whole numbers of at least 1."""
    for name, value in (("tp_size", tp_size), ("dp_size", dp_size)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value!r}; it must be a whole number of at least 1")


def _ends(count: int, most: int) -> list[int | None]:
    """0 … count - 1, or its first and last with None for what is left out between them."""
    if count <= most:
        return list(range(count))
    return [*range(most - 2), None, count - 1]
