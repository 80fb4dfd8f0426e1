from __future__ import annotations

import copy
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from step01_single_gpu import GPTConfig
from step01_single_gpu.block import MLP
from step02_mlp_parallel import (
    ColumnParallelLinear,
    ParallelMLP,
    RowParallelLinear,
    gather_full_state_dict,
    load_full_state_dict,
    run_ranks,
)
from step02_mlp_parallel.rejected import RejectedMLP
from step02_mlp_parallel.sharding import cuts
from tests.compare import assert_close
from tests.equivalence import WORLDS, Case, prove, random_state

from . import layer_ranks as ranks


def mlp_case(hidden: int, b: int, s: int, seed: int = 0, **options: object) -> Case:
    config = GPTConfig(9, 8, hidden_size=hidden, num_layers=2, num_heads=1)
    return Case(
        partial(MLP, config), partial(ParallelMLP, config), (b, s, hidden), seed=seed, **options
    )  # type: ignore[arg-type]


@pytest.mark.parametrize("n", WORLDS)
@settings(max_examples=3)
@given(data=st.data())
def test_the_parallel_mlp_equals_the_whole_one(n: int, data: st.DataObject) -> None:
    """Forward, input gradient, every parameter gradient and three SGD steps, float64, 1e-12."""
    shapes = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 5))
    drawn = data.draw(st.lists(shapes, min_size=2, max_size=3))
    cases = [mlp_case(2 * k, b, s, i, steps=3) for i, (k, b, s) in enumerate(drawn)]
    # hidden = n / 4: one column a rank; batch and sequence of one.
    prove([mlp_case(max(1, n // 4), 1, 1, steps=3), *cases], n)


@pytest.mark.parametrize("n", WORLDS)
def test_each_layer_alone_equals_torch(n: int) -> None:
    cases = []
    for bias in (True, False):
        linear = partial(nn.Linear, 16, 24, bias=bias)
        column = partial(ColumnParallelLinear, 16, 24, bias=bias, gather_output=True)
        for shape in ((16,), (1, 16), (3, 5, 16), (0, 16)):
            cases.append(Case(linear, column, shape, extra={"overlap": len(shape) % 2 == 0}))
    prove(cases, n)


@pytest.mark.parametrize("n", WORLDS)
@pytest.mark.parametrize(
    ("dtype", "bound"),
    # A sum of k products carries up to k roundings; 4h = 96 of them, and their errors average out.
    [(torch.float32, 96 * 2**-24), (torch.bfloat16, 96**0.5 * 2**-8)],
)
def test_lower_precision_stays_within_its_rounding(
    n: int, dtype: torch.dtype, bound: float
) -> None:
    prove(mlp_case(24, 3, 5, dtype=dtype, bound=bound), n)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_overlap_switch_changes_no_bit(dtype: torch.dtype, autocast: bool) -> None:
    if autocast and dtype != torch.float32:
        dtype = torch.float32
    for row in run_ranks(ranks.overlap_on_and_off, 2, dtype, autocast):
        assert row == [True] * 4, "output, input, weight, bias"


def test_pitfalls_18_and_19_the_row_bias_is_added_once_and_stays_the_same() -> None:
    first, *others = run_ranks(ranks.bias_gradients, 2, 4)
    assert first[0].abs().min() > 0, "the bias must have moved for this to test it"
    for row in others:
        assert all(torch.equal(a, b) for a, b in zip(row, first, strict=True))


def test_pitfall_22_parts_are_not_copies_of_each_other() -> None:
    one, other = run_ranks(ranks.parts_differ, 2)
    assert not torch.equal(one, other)


def test_pitfall_23_the_start_does_not_depend_on_the_ranks() -> None:
    (whole,) = run_ranks(ranks.fresh_weights, 1, (64, 32))
    for n in (2, 8):
        for got in run_ranks(ranks.fresh_weights, n, (64, 32)):
            assert torch.equal(got["column"], whole["column"])
            assert torch.equal(got["row"], whole["row"])
    assert whole["row"].std().item() == pytest.approx(0.02, rel=0.05)


def test_a_fresh_parallel_mlp_starts_as_the_reference() -> None:
    config = GPTConfig(9, 8, hidden_size=24, num_layers=2, num_heads=3)
    ours, theirs = ParallelMLP(config, seed=4, name="m"), MLP(config, seed=4, name="m")
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], tensor), name


def test_one_all_reduce_each_way_whatever_the_shape() -> None:
    for n in (2, 4):
        for b, s in ((1, 1), (3, 5)):
            expected = [("all_reduce(sum)", (b, s, 24), tuple(range(n)))]
            for forward, backward in run_ranks(ranks.counted, n, b, s):
                assert forward == expected
                assert backward == expected


def test_the_rejected_option_is_wrong_without_a_sum_and_dear_with_one() -> None:
    config = ranks.CONFIG
    reference = MLP(config).double()
    full = random_state(reference, 3)
    reference.load_state_dict(full)
    x = torch.randn(2, 3, 24, dtype=torch.float64, requires_grad=True)
    y = reference(x)
    y.backward(torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view(y.shape))
    ours = 2 * x.numel()  # one all-reduce of b·s·h each way
    for output, grad, sent in run_ranks(ranks.rejected, 2, True, full, x.detach()):
        assert_close(output, y, 1e-12)
        assert_close(grad, x.grad, 1e-12)
        assert sent >= 3 * ours
    for output, *_ in run_ranks(ranks.rejected, 2, False, full, x.detach()):
        with pytest.raises(AssertionError, match="off by"):
            assert_close(output, y, 1e-2)
    one = RejectedMLP(config, synchronize=False).double()
    load_full_state_dict(one, full)
    assert_close(one(x), y, 1e-12, "at one rank nothing is missing")


def test_replicas_around_the_mlp_stay_bit_equal_in_training() -> None:
    first, *others = run_ranks(ranks.parameters_drift_without_f, 4)
    for row in others:
        assert all(torch.equal(a, b) for a, b in zip(row, first, strict=True))


def test_pitfall_21_loading_keeps_the_row_bias_whole_and_gathering_gives_all_back() -> None:
    full = random_state(MLP(ranks.CONFIG), 1)
    for n in (1, 2, 8):
        for got in run_ranks(ranks.round_trip, n, full):
            assert got.keys() == full.keys()
            assert all(torch.equal(got[k], full[k].float()) for k in full)


def test_a_state_dict_that_does_not_fit_is_refused_whole() -> None:
    mlp = ParallelMLP(ranks.CONFIG)
    before = copy.deepcopy(mlp.state_dict())
    full = {k: v + 1 for k, v in before.items()}
    full["up.weight"] = full["up.weight"][:5]
    full["extra"] = full.pop("down.bias")
    with pytest.raises(ValueError, match="not a full state dict") as caught:
        load_full_state_dict(mlp, full)
    for part in (
        "down.bias is missing",
        "extra is unknown here",
        r"up.weight has shape [5, 24], expected [96, 24] (whole)",
    ):
        assert part in str(caught.value)
    assert all(torch.equal(v, before[k]) for k, v in mlp.state_dict().items()), "half loaded"


def test_a_layer_without_a_table_is_an_error_not_replicated() -> None:
    class Forgotten(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3))

    module = nn.Sequential(nn.LayerNorm(3), Forgotten())
    with pytest.raises(ValueError, match=r"1\.weight: Forgotten doesn't say how it is cut"):
        cuts(module)
    assert cuts(nn.Sequential(nn.LayerNorm(3)))["0.weight"].shard_dim is None


def test_copies_and_materialised_modules_keep_their_cut(tmp_path: Path) -> None:
    """Marks on tensors are lost by deepcopy, to_empty and assign; the table isn't."""
    with torch.device("meta"):
        empty = ParallelMLP(ranks.CONFIG)
    empty = empty.to_empty(device="cpu")
    assigned = ParallelMLP(ranks.CONFIG)
    assigned.load_state_dict(ParallelMLP(ranks.CONFIG).state_dict(), assign=True)
    for module in (copy.deepcopy(assigned), empty, assigned):
        assert {name: c.shard_dim for name, c in cuts(module).items()} == {
            "up.weight": 0, "up.bias": 0, "down.weight": 1, "down.bias": None,
        }  # fmt: skip


def test_a_copy_shares_the_group_and_nothing_else() -> None:
    assert run_ranks(ranks.deep_copied, 2) == [[True, True, True]] * 2


def test_a_layer_that_is_registered_twice_loads_and_gathers_under_both_names() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = ColumnParallelLinear(4, 4)
            self.b = self.a

    module = Twice()
    load_full_state_dict(module, module.state_dict())
    assert gather_full_state_dict(module).keys() == module.state_dict().keys()


def test_marks_are_there_for_readers() -> None:
    layer = RowParallelLinear(4, 6)
    assert (layer.weight.shard_dim, layer.weight.full_shape) == (1, (6, 4))  # type: ignore[attr-defined]
    assert (layer.bias.shard_dim, layer.bias.full_shape) == (None, (6,))  # type: ignore[union-attr]
