from __future__ import annotations

import pytest
import torch

from step02_mlp_parallel import f, g, gather_last_dim, record_collectives, run_ranks, split_last_dim
from tests.compare import assert_close

from . import layer_ranks, ranks


def test_pitfall_12_without_f_a_replicated_gain_has_a_partial_gradient_on_each_rank() -> None:
    """Loss 2(r+1) on rank r: the parts are 2 and 4, their sum is 6. Differs before, equal after."""
    assert run_ranks(ranks.gradient_of_replicated, 2, False) == [[2.0, 2.0], [4.0, 4.0]]
    assert run_ranks(ranks.gradient_of_replicated, 2, True) == [[6.0, 6.0], [6.0, 6.0]]


def test_pitfall_13_the_backward_of_g_does_not_sum_again() -> None:
    assert run_ranks(ranks.gradient_through_g, 2, "g") == [[1.0, 1.0]] * 2
    assert run_ranks(ranks.gradient_through_g, 4, "g") == [[1.0, 1.0]] * 4
    # What torch's differentiable all_reduce gives instead: n times too much.
    assert run_ranks(ranks.gradient_through_g, 2, "torch") == [[2.0, 2.0]] * 2


def test_pitfall_14_a_saved_activation_is_not_written_into() -> None:
    for gradient, caught in run_ranks(ranks.g_after_sigmoid, 2):
        assert gradient == pytest.approx(0.24445831169074586, rel=1e-12)
        assert "modified by an inplace operation" in caught


def test_pitfalls_16_and_17_strided_and_expanded_tensors() -> None:
    for rank, good in enumerate(run_ranks(ranks.inputs_survive, 2)):
        assert all(good.values()), f"rank {rank}: {[k for k, v in good.items() if not v]}"


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("operator", ["f", "g", "split", "gather"])
def test_pitfall_26_in_place_after_an_operator(operator: str, n: int) -> None:
    """The same at one rank as at two: there too, the input isn't what comes back."""
    for x, y, grad in run_ranks(ranks.changed_in_place, n, operator):
        assert torch.equal(x, torch.arange(4.0)), "the input was changed"
        if operator in ("f", "g"):
            value = x * (n if operator == "g" else 1)
            assert torch.equal(y, (value + 1) * 3)
            assert torch.equal(grad, torch.full((4,), 3.0 * (n if operator == "f" else 1)))
        else:
            assert torch.equal(grad, torch.full((4,), 3.0))


def test_inputs_and_results_used_twice() -> None:
    """y = (1+2)x · (1+2)x², dy/dx = 27x² and twice that, at x = 2."""
    assert run_ranks(ranks.used_twice, 2) == [[72.0, 216.0]] * 2


@pytest.mark.parametrize("layer", ["f", "behind_g", "column", "weight"])
def test_second_derivatives_equal_the_uncut_ones(layer: str) -> None:
    (expected,) = run_ranks(ranks.second_derivative, 1, layer)
    for n in (2, 4):
        for got in run_ranks(ranks.second_derivative, n, layer):
            for one, other in zip(got, expected, strict=True):
                assert_close(one, other, 1e-12)


@pytest.mark.parametrize("what", ["column", "replicated"])
def test_pitfall_25_gather_has_the_right_conjugate_for_what_follows(what: str) -> None:
    ((loss, grad),) = run_ranks(ranks.gather_then, 1, what)
    for n in (2, 4):
        for other in run_ranks(ranks.gather_then, n, what):
            assert_close(other[0], loss, 1e-12)
            assert_close(other[1], grad, 1e-12)


def test_a_world_of_one_makes_no_collective_and_copies() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    for operator in (f, g, split_last_dim, gather_last_dim):
        with record_collectives() as ledger:
            y = operator(x)
            y.sum().backward()
        assert torch.equal(y, x)
        assert y.data_ptr() != x.data_ptr()
        assert not ledger


def test_groups_side_by_side_stay_apart() -> None:
    got = run_ranks(layer_ranks.groups_of_two, 4)
    assert [row[0] for row in got] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert [row[1] for row in got] == [1.0, 1.0, 5.0, 5.0]
    assert [row[2].tolist() for row in got] == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_pitfall_74_half_types_are_summed() -> None:
    for row in run_ranks(layer_ranks.half_types, 2):
        assert set(row.values()) == {3.0}


def test_messages_name_the_value_and_what_would_work() -> None:
    for said in run_ranks(layer_ranks.messages, 4):
        assert "out_features: 10 doesn't divide by the 4 ranks" in said["column"]
        assert "8 or 12 would, or a group of 1, 2, 5, 10 ranks" in said["column"]
        assert "in_features: 6 doesn't divide" in said["row"]
        assert (
            "the input's last dimension is 8, this rank's part of in_features is 2" in said["width"]
        )
        assert "the last dimension, 6, doesn't divide by the 4 ranks" in said["split"]
        assert "all_reduce(sum) of torch.complex64" in said["dtype"]
        assert "all_reduce(sum) of torch.bool" in said["bool"]
        assert 'it must be "sum" or "max"' in said["op"]
        assert "group is 'tp'; it must be a ProcessGroup" in said["group"]
        for name in ("closed g", "closed size", "closed layer"):
            assert "the process group is closed" in said[name], name
