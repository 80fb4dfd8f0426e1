from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from step01_single_gpu import GPT
from step02_mlp_parallel import run_ranks
from step03_attention_parallel import RNGTracker
from step05_hybrid_dp.data_parallel import average_gradients, backward_global_mean
from step05_hybrid_dp.ddp import DataParallel
from tests.compare import assert_close
from tests.equivalence import random_state

from . import dp_ranks as ranks

LAYOUTS = [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4)]
FULL = random_state(GPT(ranks.CONFIG), 1)


def reference(whole: ranks.Batch) -> tuple[float, dict[str, Tensor]]:
    """One unpartitioned process on the global batch."""
    gpt = GPT(ranks.CONFIG).double()
    gpt.load_state_dict(FULL)
    loss = gpt.loss(*whole)
    loss.backward()
    return loss.item(), {n: p.grad for n, p in gpt.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("tp_size", "dp_size"), LAYOUTS)
def test_gradients_are_those_of_one_process_on_the_global_batch(tp_size: int, dp_size: int) -> None:
    """By the page and by the engine; ranks with unequal numbers of valid tokens, one with none."""
    cases = [(a, ignored) for a in (1, 3) for ignored in ("some", "last")] + [(3, "all")]
    results = run_ranks(ranks.gradients, tp_size * dp_size, tp_size, FULL, cases)
    for index, (accumulation, ignored) in enumerate(cases):
        loss, expected = reference(ranks.batch(3, 12, ignored, dp_size))
        for rank, row in enumerate(results):
            for how, (got_loss, got) in row[index].items():
                where = f"rank {rank}, {how}, {accumulation} micro-batches, {ignored} ignored"
                assert got_loss == pytest.approx(loss, rel=1e-12), where
                assert got.keys() == expected.keys(), where
                for name in expected:
                    assert_close(got[name], expected[name], 1e-12, f"{where}: {name}")
                    assert ignored != "all" or not got[name].any(), where


@pytest.mark.parametrize(("tp_size", "dp_size"), [(1, 1), (2, 2), (1, 4), (4, 1), (2, 4)])
def test_training_is_the_same_at_every_layout_dropout_and_clipping_on(
    tp_size: int, dp_size: int
) -> None:
    rng = RNGTracker(5, mode="invariant")
    gpt = GPT(ranks.DROPPING, dropout=rng.dropout).double()
    gpt.load_state_dict(FULL)
    optimizer = torch.optim.SGD(gpt.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        optimizer.zero_grad()
        rng.at(step, 0)
        gpt.loss(*ranks.batch(step, 8, "some", 1)).backward()
        assert torch.nn.utils.clip_grad_norm_(gpt.parameters(), 0.5) > 0.5
        optimizer.step()
    for rank, got in enumerate(run_ranks(ranks.trained, tp_size * dp_size, tp_size, FULL, 3)):
        for name, expected in gpt.state_dict().items():
            assert_close(got[name], expected, 1e-11, f"rank {rank}: {name}")


def test_the_mean_of_each_ranks_mean_is_another_number() -> None:
    """Why the count is global: the loss that plain DDP would train."""
    tokens, targets = ranks.batch(3, 12, "some", 1)
    loss, _ = reference((tokens, targets))
    halves = [reference((tokens[i : i + 6], targets[i : i + 6]))[0] for i in (0, 6)]
    assert abs(sum(halves) / 2 - loss) > 1e-3


def test_a_resumed_run_sums_in_the_order_of_the_uninterrupted_one() -> None:
    """dp = 4: settled, bit for bit; not settled, the first step after resume rounds differently."""
    for straight, again in run_ranks(ranks.resumed, 4, FULL, True):
        assert all(torch.equal(a, b) for a, b in zip(straight, again, strict=True))
    differs = []
    for straight, again in run_ranks(ranks.resumed, 4, FULL, False):
        differs.append(any(not torch.equal(a, b) for a, b in zip(straight, again, strict=True)))
    assert all(differs), "torch no longer rebuilds its buckets: settle may go"


def test_settling_leaves_no_trace() -> None:
    for found in run_ranks(ranks.settle_leaves_no_trace, 4, FULL):
        assert all(found.values()), [name for name, good in found.items() if not good]


def test_pitfall_68_over_the_world_ddp_would_overwrite_the_parts_of_the_model() -> None:
    for state, _ in run_ranks(ranks.wrapped_by, 4, FULL, "dp"):
        assert all(torch.equal(state[name], FULL[name]) for name in FULL)
    wrong = run_ranks(ranks.wrapped_by, 4, FULL, "world")
    for state, _ in wrong:
        weight = state["blocks.0.mlp.up.weight"]
        assert torch.equal(weight[32:], weight[:32]), "rank 0's half on both"
        assert not torch.equal(weight, FULL["blocks.0.mlp.up.weight"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_gradients_go_over_the_wire_once_in_float32(dtype: torch.dtype, accumulation: int) -> None:
    """The ledger sees the count, the buckets, which are all parameters once, and the loss."""
    for found in run_ranks(ranks.traffic, 4, dtype, accumulation, 25.0):
        assert found["kinds"] == {"all_reduce(sum)"}, "gloo's own average is not for all types"
        count, *buckets, loss = found["counts"]
        assert (count, loss) == (1, 1)
        assert sum(buckets) == found["parameters"]
        assert set(found["dtypes"][1:-1]) == {torch.float32}
    small = run_ranks(ranks.traffic, 4, dtype, accumulation, 0.002)[0]
    assert sum(small["counts"][1:-1]) == small["parameters"]
    assert len(small["counts"]) > len(found["counts"]), "several buckets"


@pytest.mark.parametrize(("dtype", "large"), [(torch.bfloat16, 256.0), (torch.float16, 2048.0)])
def test_half_gradients_are_summed_in_float32(dtype: torch.dtype, large: float) -> None:
    """In the half type, large + 1 is large: the ones are lost unless they happen to come first."""
    assert torch.tensor(large, dtype=dtype) + 1 == large
    expected = [torch.tensor((large + 3.0) / 4).to(dtype).item()] * 4
    for found in run_ranks(ranks.halves, 4, dtype, large):
        assert found == {"page": expected, "engine": expected}


def test_a_missing_gradient_counts_as_zero_on_all_ranks() -> None:
    rows = run_ranks(ranks.missing_and_frozen, 2)
    for rank, (a, b, c, d, kept) in enumerate(rows):
        assert a == [[1.5] * 3] * 2
        assert b == [[2.0] * 3] * 2
        assert c is None
        assert d == torch.arange(6.0).view(3, 2).T.tolist(), "reduced with its strides"
        assert kept == [[1.0 + rank] * 3] * 2, "somebody else's tensor was written into"


def test_ranks_may_have_different_numbers_of_micro_batches() -> None:
    loss, expected = reference(ranks.batch(3, 12, "some", 1))
    for said, got_loss, got in run_ranks(ranks.empty_and_uneven, 2, FULL):
        assert "this rank has no micro-batch" in said
        assert got_loss == pytest.approx(loss, rel=1e-12)
        for name in expected:
            assert_close(got[name], expected[name], 1e-12, name)


def test_ddp_starts_from_the_weights_of_the_first_rank() -> None:
    assert run_ranks(ranks.engine_hides_a_difference_at_start, 2, FULL) == [True] * 2


def test_alone_nothing_is_sent_and_gradients_add_up_over_calls() -> None:
    whole = ranks.batch(3, 12, "some", 1)
    loss, expected = reference(whole)

    def twice(run: Any) -> GPT:
        gpt = GPT(ranks.CONFIG).double()
        gpt.load_state_dict(FULL)
        for _ in range(2):
            assert run(gpt).item() == pytest.approx(loss, rel=1e-12)
        return gpt

    rows: list[int] = []
    for gpt in (
        twice(lambda gpt: backward_global_mean(gpt, [whole])),
        twice(lambda gpt: DataParallel(gpt).backward_global_mean([whole], before=rows.append)),
    ):
        for name, parameter in gpt.named_parameters():
            assert parameter.grad is not None
            assert_close(parameter.grad, 2 * expected[name], 1e-12, name)
    assert rows == [0, 0]
    parameter = torch.nn.Parameter(torch.zeros(2))
    average_gradients([parameter])
    assert parameter.grad is None


def test_the_scale_is_in_the_gradients_and_not_in_the_loss() -> None:
    whole = ranks.batch(3, 12, "some", 1)
    loss, expected = reference(whole)
    gpt = GPT(ranks.CONFIG).double()
    gpt.load_state_dict(FULL)
    rows: list[int] = []
    parts = [(whole[0][i : i + 4], whole[1][i : i + 4]) for i in (0, 4, 8)]
    got = DataParallel(gpt).backward_global_mean(parts, scale=1024.0, before=rows.append)
    assert got.item() == pytest.approx(loss, rel=1e-12)
    assert rows == [0, 4, 8]
    for name, parameter in gpt.named_parameters():
        assert parameter.grad is not None
        assert_close(parameter.grad, 1024.0 * expected[name], 1e-12, name)
