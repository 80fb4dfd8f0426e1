from __future__ import annotations

import pytest
import torch

from step02_mlp_parallel import RankError, run_ranks
from step05_hybrid_dp.batches import check_same_rows, own_rows
from step05_hybrid_dp.grid import Grid, check_world, figure_8, grid_coordinates
from tests.step02 import ranks as launch_ranks

from . import grid_ranks as ranks


def test_tensor_parallel_ranks_are_neighbours() -> None:
    """The paper's figure 8: 8-way model parallel, 64-way data parallel; rank 9 is on server 1."""
    assert grid_coordinates(9, 8, 64) == (1, 1)
    for tp_size, dp_size in ((8, 64), (1, 3), (3, 1), (2, 5)):
        places = [grid_coordinates(r, tp_size, dp_size) for r in range(tp_size * dp_size)]
        assert places == [(dp, tp) for dp in range(dp_size) for tp in range(tp_size)]


def test_groups_are_the_rows_and_columns() -> None:
    """Members as the group says, and as a sum over it finds."""
    sizes = [1, 2, 4, 8]
    for rank, row in enumerate(run_ranks(ranks.groups_of, 8, sizes)):
        for tp_size, found in zip(sizes, row, strict=True):
            dp, tp = rank // tp_size, rank % tp_size
            neighbours = [dp * tp_size + i for i in range(tp_size)]
            column = [tp + i * tp_size for i in range(8 // tp_size)]
            assert found["place"] == (dp, tp)
            assert found["shape"] == (8 // tp_size, tp_size)
            for name, members in (("tp", neighbours), ("dp", column), ("world", list(range(8)))):
                assert found[name] == (members, sum(2**r for r in members)), (rank, name)


def test_pitfall_69_every_rank_makes_all_groups_in_one_order() -> None:
    """gloo tolerates members-only calls, so the call list is what counts."""
    lists = [row[0] for row in run_ranks(ranks.making, 4, [(2, 2)])]
    assert lists == [lists[0]] * 4
    made, said = lists[0]
    assert said == ""
    assert sorted(made) == [[0, 1], [0, 2], [1, 3], [2, 3]]


def test_a_grid_that_does_not_fit_is_refused_on_every_rank() -> None:
    layouts: list[tuple[int, int]] = [(3, 2), (4, 2), (0, 4), (-2, -2), (4, True)]
    for row in run_ranks(ranks.making, 4, layouts):
        for (tp_size, dp_size), (made, said) in zip(layouts, row, strict=True):
            assert made == [], "a group was made before the sizes were looked at"
            if tp_size < 1 or dp_size is True:
                assert "it must be a whole number of at least 1" in said
            else:
                assert f"tp_size {tp_size} × dp_size {dp_size} is {tp_size * dp_size} ranks" in said
                assert "4 are running" in said
                assert "1 × 4, 2 × 2, 4 × 1" in said


def test_alone_without_a_process_group() -> None:
    grid = Grid(1, 1, device_type="cpu")
    assert (grid.mesh, grid.tp_group, grid.dp_group, grid.world_group) == (None,) * 4
    assert (grid.rank, grid.dp_rank, grid.tp_rank) == (0, 0, 0)
    with pytest.raises(ValueError, match=r"2 × dp_size 1 is 2 ranks, but 1 is running.*: 1 × 1$"):
        Grid(2, 1, device_type="cpu")
    with pytest.raises(ValueError, match="there is no rank 4 in a grid of tp_size 2 × dp_size 2"):
        grid_coordinates(4, 2, 2)
    check_world(6, 3, 2)


def test_figure_8_as_text() -> None:
    assert figure_8(2, 3).splitlines() == [
        "6 ranks: 2-way tensor × 3-way data parallel",
        "",
        "      tp 0  tp 1",
        "dp 0     0     1",
        "dp 1     2     3",
        "dp 2     4     5",
        "",
        "row:    a tensor-parallel group (3 of them): one copy of the model",
        "column: a data-parallel group (2 of them): the same part of the model",
    ]
    paper = figure_8(8, 64, most=4).splitlines()
    assert paper[2:7] == [
        "       tp 0  tp 1     …  tp 7",
        "dp 0      0     1     …     7",
        "dp 1      8     9     …    15",
        "…         …     …     …     …",
        "dp 63   504   505     …   511",
    ]
    assert max(len(line) for line in figure_8(512, 512).splitlines()) <= 100


# ---- rows


@pytest.mark.parametrize("dp_size", [1, 2, 3, 4, 12])
def test_pitfall_77_ranks_have_all_rows_together_and_none_twice(dp_size: int) -> None:
    whole = torch.randn(12, 3)
    parts = [own_rows(whole, rank, dp_size) for rank in range(dp_size)]
    assert torch.equal(torch.cat(parts), whole)
    assert len({len(part) for part in parts}) == 1


def test_rows_that_do_not_divide_are_named() -> None:
    with pytest.raises(ValueError, match="10 rows doesn't divide by dp_size 4; 8 or 12 would"):
        own_rows(torch.zeros(10, 3), 0, 4)
    with pytest.raises(ValueError, match="3 rows doesn't divide by dp_size 4; 4 would"):
        own_rows(torch.zeros(3, 3), 0, 4)
    with pytest.raises(ValueError, match="no dp_rank 4 of dp_size 4"):
        own_rows(torch.zeros(8, 3), 4, 4)


def test_pitfall_78_another_batch_inside_a_tensor_parallel_group_is_seen() -> None:
    """By all ranks of that group, and by no other."""
    kinds = ["nothing", "values", "dtype", "shape"]
    said = run_ranks(ranks.same_rows, 4, kinds)
    assert said[:2] == [["no error"] * 4] * 2
    for row in said[2:]:
        assert row[0] == "no error"
        assert all("rank 1 of the tensor-parallel group has another batch" in s for s in row[1:])
    check_same_rows([torch.zeros(2)], None)


# ---- what gloo doesn't tell (the rest of pitfalls 70 and 71: step 2)


def test_pitfall_70_what_the_debug_mode_catches() -> None:
    """Without it, differing dtypes give garbage (step 2), and of differing shapes one rank never
    hears (the other waits for the group's timeout, here 1 s). With it both are errors on all."""
    rows = run_ranks(ranks.mismatches, 2, [("shape", True), ("dtype", True), ("shape", False)])
    for row in rows:
        assert all("mismatch" in said.lower() for said in row[:2]), row
    assert rows[0][2] == "no error"


def test_pitfall_71_a_rank_that_raises_ends_the_others_that_wait() -> None:
    with pytest.raises(RankError, match="rank 1 of 4 raised"):
        run_ranks(launch_ranks.raise_on, 4, 1, "bad", timeout=30.0)
