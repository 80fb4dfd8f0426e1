from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from step01_single_gpu import GPT, GPTConfig
from step02_mlp_parallel import run_ranks
from step03_attention_parallel import ParallelBlock, RNGTracker, recompute
from tests.compare import assert_close

from . import ranks


def test_pitfall_30_who_drops_the_same_values() -> None:
    """dp = 2, tp = 2: residual masks equal in a TP group, attention's not; DP differs in both."""
    masks = run_ranks(ranks.masks, 4, 2)
    for kind in ("residual", "attention"):
        for rank, row in enumerate(masks):
            print(f"{kind:<10} dp {rank // 2} tp {rank % 2}", "".join(map(str, row[kind])))
    residual, attention = ([row[kind] for row in masks] for kind in ("residual", "attention"))
    assert residual[0] == residual[1]
    assert residual[2] == residual[3]
    assert residual[0] != residual[2]
    assert len({tuple(row) for row in attention}) == 4
    assert attention[0] != residual[0]


@pytest.mark.parametrize("region", ["replicated", "sharded"])
def test_pitfall_31_inside_the_region_another_stream_runs(region: str) -> None:
    rng = RNGTracker(3)
    torch.manual_seed(0)
    outside, state = torch.rand(4), torch.get_rng_state()
    with getattr(rng, region)():
        assert not torch.equal(torch.get_rng_state(), state)
        first = torch.rand(4)
    assert torch.equal(torch.get_rng_state(), state), "the global generator is as it was"
    with getattr(rng, region)():
        second = torch.rand(4)
    assert len({tuple(t.tolist()) for t in (outside, first, second)}) == 3, "the stream moves on"
    torch.manual_seed(5)
    fresh = RNGTracker(3)
    with getattr(fresh, region)():
        assert torch.equal(torch.rand(4), first), "whatever the global seed"


def test_an_exception_inside_a_region_puts_the_global_generator_back() -> None:
    rng, state = RNGTracker(3), torch.get_rng_state()

    def fail() -> None:
        with rng.sharded():
            torch.rand(1)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("mode", ["paper", "invariant"])
def test_state_is_saved_and_restored_exactly(mode: str) -> None:
    rng = RNGTracker(3, mode=mode).at(4, 2)
    x = torch.ones(2, 4, 8)
    rng.dropout(x, 0.5, "a")
    saved = copy.deepcopy(rng.state_dict())
    expected = [rng.dropout(x, 0.5, "b", sharded=s) for s in (True, False, True)]
    other = RNGTracker(3, mode=mode)
    other.load_state_dict(saved)
    got = [other.dropout(x, 0.5, "b", sharded=s) for s in (True, False, True)]
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_a_state_of_another_layout_is_refused() -> None:
    state = RNGTracker(3, tp_rank=1, tp_size=2).state_dict()
    with pytest.raises(ValueError, match=r"of another tracker: .* \[3, 'paper', 1, 2, 0\] there"):
        RNGTracker(3).load_state_dict(state)


def test_ranks_and_modes_that_are_none_are_named() -> None:
    with pytest.raises(ValueError, match="mode is 'fast'"):
        RNGTracker(1, mode="fast")
    with pytest.raises(ValueError, match="no tp_rank 2 of 2"):
        RNGTracker(1, tp_rank=2, tp_size=2)


def test_invariant_masks_are_functions_of_step_site_and_sample() -> None:
    rng = RNGTracker(3, mode="invariant").at(7, 10)
    x = torch.ones(4, 6, 5)
    whole = rng.dropout(x, 0.4, "a")
    torch.rand(3)
    assert torch.equal(rng.dropout(x, 0.4, "a"), whole), "no counter: recompute needs none"
    assert torch.equal(rng.at(7, 12).dropout(x[2:], 0.4, "a"), whole[2:]), "micro-batches"
    for other in (rng.at(8, 10), RNGTracker(4, mode="invariant").at(7, 10)):
        assert not torch.equal(other.dropout(x, 0.4, "a"), whole)
    assert not torch.equal(rng.at(7, 10).dropout(x, 0.4, "b"), whole)
    heads = [
        RNGTracker(3, tp_rank=r, tp_size=2, mode="invariant").at(7, 10)
        .dropout(x[:, :3], 0.4, "a", sharded=True)
        for r in range(2)
    ]  # fmt: skip
    assert torch.equal(torch.cat(heads, 1), whole), "each rank takes its heads"
    rate = (RNGTracker(1, mode="invariant").dropout(torch.ones(8, 50, 50), 0.4, "a") == 0).double()
    assert rate.mean().item() == pytest.approx(0.4, abs=0.02)


@pytest.mark.parametrize("drift", [False, True])
def test_pitfall_35_replicas_stay_bit_equal_in_training_with_dropout(drift: bool) -> None:
    """Also when something else draws from the ranks' global generators."""
    first, *others = run_ranks(ranks.trained, 4, 3, drift)
    for rank, row in enumerate(others, start=1):
        for one, other in zip(row, first, strict=True):
            assert torch.equal(one, other), f"rank {rank}"


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("mode", ["paper", "invariant"])
def test_pitfall_32_recompute_changes_no_bit(n: int, mode: str) -> None:
    for plain, again in run_ranks(ranks.recompute_twice, n, 0.3, mode):
        for one, other in zip(plain, again, strict=True):
            assert torch.equal(one, other)


def test_pitfall_33_and_d11_torchs_checkpoint_alone_leaves_the_streams_behind() -> None:
    """Differs before, equal after. Two blocks: with one alone the stream might not have moved."""
    gradients = []
    for way in ("none", "torch", "ours"):
        rng, x = RNGTracker(1), torch.ones(1, 4, 16, requires_grad=True)

        def run(y: torch.Tensor, rng: RNGTracker = rng) -> torch.Tensor:
            return rng.dropout(y, 0.5, "a") * rng.dropout(y, 0.5, "b", sharded=True)

        y = x
        for _ in range(2):
            if way == "none":
                y = run(y)
            elif way == "torch":  # no error: it compares shapes and dtypes, not masks
                y = checkpoint(run, y, use_reentrant=False)
            else:
                y = recompute(run, y, rng)
        y.sum().backward()
        gradients.append(x.grad)
    assert not torch.equal(gradients[0], gradients[1])
    assert torch.equal(gradients[0], gradients[2])


def test_pitfall_36_an_input_without_gradient_still_trains_the_block() -> None:
    layer = ParallelBlock(ranks.CONFIG, recompute=True)
    layer(torch.randn(1, 3, 24)).sum().backward()
    assert all(p.grad is not None for p in layer.parameters())
    with torch.no_grad():
        assert not layer(torch.randn(1, 3, 24)).requires_grad


def test_a_world_of_one_needs_no_tracker(float64: None) -> None:
    layer = ParallelBlock(GPTConfig(9, 16, 24, 2, 8, dropout=0.5))
    x = torch.randn(2, 3, 24)
    torch.manual_seed(1)
    one = layer(x)
    torch.manual_seed(1)
    assert torch.equal(one, layer(x))
    assert not torch.equal(one, layer(x))
    assert_close(layer.eval()(x), layer(x), 0.0)


def test_a_world_of_one_recomputes_with_the_global_streams_masks(float64: None) -> None:
    """Pitfall 32 without a tracker: dropout draws from torch's generator, which is put back."""
    x, gradients = torch.randn(2, 3, 24), []
    for again in (False, True):
        layer = ParallelBlock(GPTConfig(9, 16, 24, 2, 8, dropout=0.5), recompute=again)
        torch.manual_seed(1)
        layer(x).sum().backward()
        gradients.append([p.grad for p in layer.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


def test_a_stack_of_blocks_is_not_a_stack_of_copies() -> None:
    blocks = nn.ModuleList(ParallelBlock(ranks.CONFIG, name=f"blocks.{i}") for i in range(2))
    one, other = (b.attention.qkv.weight for b in blocks)  # type: ignore[union-attr]
    assert not torch.equal(one, other)  # type: ignore[arg-type]


def test_a_kept_graph_may_be_run_backward_twice() -> None:
    config = GPTConfig(9, 16, 24, 2, 8, dropout=0.3)
    layer = ParallelBlock(config, rng=RNGTracker(0), recompute=True)
    x = torch.randn(2, 3, 24, requires_grad=True)
    y = layer(x).sum()
    y.backward(retain_graph=True)
    assert x.grad is not None
    once = x.grad.clone()
    y.backward()
    assert torch.equal(x.grad, 2 * once)


def test_a_stream_inside_itself_goes_on() -> None:
    rng, plain = RNGTracker(0), RNGTracker(0)
    with rng.replicated():
        one = torch.rand(2)
        with rng.replicated():
            other = torch.rand(2)
    with plain.replicated():
        assert torch.equal(torch.cat([one, other]), torch.rand(4))
    assert rng.at(0, 0).dropout(torch.ones(0, 3), 0.5, "a").shape == (0, 3)
    empty = RNGTracker(0, mode="invariant").dropout(torch.ones(0, 3), 0.5, "a")
    assert empty.shape == (0, 3)


def test_step_one_refuses_to_recompute_with_a_stream_that_moves_on() -> None:
    config = GPTConfig(9, 4, 8, 1, 2, dropout=0.3)
    with pytest.raises(ValueError, match="its second mask would differ"):
        GPT(config, recompute=True, dropout=RNGTracker(0).dropout)
    GPT(config, recompute=True, dropout=RNGTracker(0, mode="invariant").dropout)


def test_a_block_on_meta_has_shapes() -> None:
    with torch.device("meta"):
        assert ParallelBlock(ranks.CONFIG)(torch.zeros(1, 8, 24)).shape == (1, 8, 24)
