"""torch's own behaviour that the code leans on or guards against (D1 to D10 of the pitfalls).

When a new torch changes one of these, this says so, and a guard may go.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from step02_mlp_parallel import run_ranks

from . import torch_ranks as ranks


def test_d1_gloo_checks_neither_strides_nor_dtypes_nor_order() -> None:
    for rank, found in enumerate(run_ranks(ranks.raw_gloo, 2)):
        assert found["strided"] == [[2.0, 100.0], [1.0, 60.0]], "a neighbour was overwritten"
        assert found["mixed dtypes"] != 2 or rank == 1, "float and int bits were added up"
        assert found["swapped order"] == (101.0, 101.0), "two sums were mixed, without an error"


def test_pitfall_75_averages_of_whole_numbers_are_refused() -> None:
    assert run_ranks(ranks.average, 2, torch.float32) == [[1.5, 3.0, 4.5]] * 2
    assert all(isinstance(row, str) for row in run_ranks(ranks.average, 2, torch.int64))


class Same(torch.autograd.Function):
    """Returns its input."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


def test_d2_an_unmarked_all_reduce_gives_a_wrong_gradient_without_an_error() -> None:
    """sigmoid(0.3) -> the naive g -> sum: with s summed over two ranks, 2s(1 - 2s) for s(1 - s).
    (With mark_dirty it raises, with a copy it is right: test_operators.py, pitfall 14.)"""
    s = torch.tensor(0.3, dtype=torch.float64).sigmoid().item()
    assert run_ranks(ranks.naive_g_after_sigmoid, 2) == pytest.approx([2 * s * (1 - 2 * s)] * 2)


def test_d3_a_returned_input_is_a_view_that_refuses_in_place_operations() -> None:
    x = torch.ones(2, requires_grad=True) * 1.0
    y = Same.apply(x)
    assert y._is_view()
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        y.add_(1.0)


def test_d4_is_pitfall_13_and_d5_a_plain_all_reduce_has_no_derivative() -> None:
    """(D4: torch's differentiable all_reduce, see test_operators.py.)"""
    for warnings, grad in run_ranks(ranks.plain_all_reduce_under_autograd, 2):
        assert any("autograd kernel was not registered" in text for text in warnings)
        assert grad == 1.0, "it passes as the identity"


def test_pitfall_68_and_d6_ddp_needs_the_data_parallel_group() -> None:
    """Inputs are 1 on TP rank 0 and 2 on TP rank 1, so gradients of a cut weight must be too."""
    wrong = run_ranks(ranks.ddp_gradients, 4, False)
    assert wrong == [(1.0, 1.5)] * 4, "one shard copied over the other, gradients averaged over TP"
    right = run_ranks(ranks.ddp_gradients, 4, True)
    assert right == [(1.0, 1.0), (2.0, 2.0)] * 2


def test_d7_sources_are_global_ranks() -> None:
    got = run_ranks(ranks.source_is_global, 4)
    assert got[:2] == [0.0, 0.0]
    assert all("not part of group" in str(text) for text in got[2:])


def test_d8_and_pitfall_73_open_again_over_a_fresh_file(tmp_path: Path) -> None:
    assert run_ranks(ranks.a_second_group_in_one_process, 2, str(tmp_path)) == [[3.0, 3.0]] * 2


def test_d9_a_monitored_barrier_names_who_is_missing() -> None:
    said = run_ranks(ranks.late_to_the_barrier, 3)
    assert "1" in said[0]
    assert "no error" not in said[0]


def test_d10_device_id_is_for_accelerators_only(tmp_path: Path) -> None:
    """It binds NCCL's communicators to a GPU: join_torchrun passes it only where there is one."""
    file, device = f"file://{tmp_path}/file", torch.device("cpu", 0)
    with pytest.raises(ValueError, match="must be an accelerator"):
        dist.init_process_group("gloo", init_method=file, rank=0, world_size=1, device_id=device)
