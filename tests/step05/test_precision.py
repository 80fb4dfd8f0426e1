from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from step01_single_gpu import GPT
from step01_single_gpu.optimizer import lr_at, make_optimizer
from step02_mlp_parallel import run_ranks
from step03_attention_parallel import RNGTracker
from step05_hybrid_dp.ddp import DataParallel
from step05_hybrid_dp.grid import Grid
from step05_hybrid_dp.loop import Training, train_step
from step05_hybrid_dp.loss_scale import next_scale, scaled_step
from step05_hybrid_dp.masters import Masters
from step05_hybrid_dp.options import Options
from step05_hybrid_dp.precision import PRECISIONS, MixedPrecision
from tests.equivalence import random_state

from . import clip_ranks as ranks
from .dp_ranks import CONFIG, batch

FULL = random_state(GPT(CONFIG), 1)


def fp16(model: nn.Module, **options: Any) -> MixedPrecision:
    with pytest.warns(UserWarning, match="fp16 on a CPU"):
        return MixedPrecision(model, "fp16", **options)


def one_weight(value: float = 1.0) -> tuple[nn.Module, nn.Parameter]:
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, value)
    return module, module.weight


# ---- loss scale


@pytest.mark.parametrize("fused", [False, True])
def test_pitfall_54_an_overflow_on_one_rank_is_everybodys(fused: bool) -> None:
    """Page and engine, bit for bit: an inf on rank 1, none, on both, on rank 0, then a calm."""
    bad: list[tuple[int, ...]] = [(1,), (), (0, 1), (0,), (), (), ()]
    rows = run_ranks(ranks.scaled_runs, 2, bad, fused)
    for found in rows:
        for scales, stepped, weights in found.values():
            assert scales == [4.0, 4.0, 2.0, 1.0, 1.0, 2.0, 2.0]
            assert stepped == [not ranks_ for ranks_ in bad]
            assert all(torch.isfinite(w).all() for w in weights)
        for one, other in zip(found["page"][2], found["engine"][2], strict=True):
            assert torch.equal(one, other)
    for how in ("page", "engine"):
        down_bias = [found[how][2][3] for found in rows]
        assert torch.equal(*down_bias), "replicas parted"


def test_pitfall_54_over_the_data_parallel_ranks_too() -> None:
    """An inf goes through the average of gradients to all of them."""
    assert run_ranks(ranks.overflow_on_one_of_four, 4) == [[(False, 4.0)] * 4] * 4


def test_why_the_step_is_not_left_to_torchs_sharded_scaler() -> None:
    """Its flag is a sum over ranks of shape [1]; fused AdamW wants 1 and a number without shape.

    When this fails, torch has mended it, and `scaler.step` may do the work.
    """
    for plain_calm, plain_one, plain_both, *fused in run_ranks(ranks.torchs_own_steps, 2):
        assert (plain_calm, plain_one, plain_both) == ("stepped", "skipped", "skipped")
        assert all("doesn't match the broadcast shape" in said for said in fused)
    parameter = nn.Parameter(torch.ones(3))
    optimizer: Any = torch.optim.AdamW([parameter], fused=True)
    parameter.grad = torch.full((3,), math.nan)
    optimizer.grad_scale, optimizer.found_inf = None, torch.tensor(2.0)
    optimizer.step()
    assert parameter.isnan().all(), "2 ranks with an overflow: not skipped"


def test_pitfall_55_gradients_are_divided_by_the_scale_of_their_backward() -> None:
    """SGD with lr 1, the scale doubles after every step: each step moves by the true gradient."""
    module, weight = one_weight(10.0)
    how = fp16(module, init_scale=4.0, growth_interval=1)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    for step in range(3):
        optimizer.zero_grad()
        assert how.scale == 4.0 * 2**step
        (weight.sum() * how.scale).backward()
        assert how.step(optimizer, math.inf) == (True, 1.0)
        assert weight.item() == 9.0 - step


@pytest.mark.parametrize("engine", [False, True])
def test_pitfall_56_clipping_acts_on_true_gradients(engine: bool) -> None:
    """Scale 1024, true gradients of norm 0.5 and 2, clip 1: moved by 0.5, then by 1."""
    module, weight = one_weight(3.0)
    how = fp16(module, init_scale=1024.0)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    for slope, moved_to in ((0.5, 2.5), (2.0, 1.5)):
        optimizer.zero_grad()
        (slope * weight.sum() * 1024.0).backward()
        if engine:
            how.step(optimizer, 1.0)
        else:
            assert scaled_step(optimizer, module.parameters(), 1024.0, 1.0)
        assert weight.item() == pytest.approx(moved_to, rel=1e-5)


def test_pitfalls_57_and_58_after_a_skipped_step_the_next_is_the_first() -> None:
    """No "unscale_() has already been called"; and the rate is that of the steps taken."""
    module, weight = one_weight()
    how = fp16(module, init_scale=8.0)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
    taken, rates = 0, []
    for bad in (True, True, False, False):
        optimizer.zero_grad()
        rate = lr_at(taken, peak=1.0, minimum=0.0, warmup=10, total=20)
        optimizer.param_groups[0]["lr"] = rate
        for _ in range(4):  # micro-batches, which are no steps
            (weight.sum() * how.scale / 4).backward()
        if bad:
            weight.grad.fill_(math.inf)  # type: ignore[union-attr]
        taken += how.step(optimizer, 1e6)[0]
        rates.append(rate)
    assert rates == pytest.approx([0.1, 0.1, 0.1, 0.2])
    assert weight.item() == pytest.approx(1.0 - 0.1 - 0.2)
    assert how.scale == 2.0


def test_pitfall_58_the_loop_counts_the_steps_that_were_taken(tmp_path: Path) -> None:
    """The training loop itself: an overflow at step 0, so step 1 has the rate that step 0 had."""
    gpt, overflows = GPT(CONFIG), [True, False, False]
    gpt.ln.weight.register_hook(lambda grad: grad * math.inf if overflows.pop(0) else grad)
    training = Training(
        gpt, DataParallel(gpt), MixedPrecision(gpt, "fp32"), make_optimizer(gpt),
        Grid(1, 1, device_type="cpu"), RNGTracker(0),
        Options(steps=10, warmup=4, lr=1e-3, min_lr=0.0, batch_size=2),
        own_batch=lambda step: batch(step, 2, "some", 1), validate=lambda: 0.0,
        tokens=1, flops=1.0, run=tmp_path, metrics=None,
    )  # fmt: skip
    steps = [train_step(training, step) for step in range(3)]
    assert [stepped for _, _, stepped, _ in steps] == [False, True, True]
    assert [rate for *_, rate in steps] == pytest.approx([0.25e-3, 0.25e-3, 0.5e-3])


def test_the_scale_goes_on_after_a_resume() -> None:
    module, weight = one_weight()
    how = fp16(module, init_scale=8.0, growth_interval=3)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)

    def step(how: MixedPrecision, bad: bool) -> float:
        weight.grad = torch.full((1, 1), math.inf if bad else 1.0)
        how.step(optimizer, 1.0)
        return how.scale

    assert [step(how, bad) for bad in (True, False, False)] == [4.0] * 3
    again = fp16(module, init_scale=123.0, growth_interval=3)
    again.load_state_dict(how.state_dict())
    assert [step(again, False) for _ in range(4)] == [8.0, 8.0, 8.0, 16.0]
    assert MixedPrecision(module, "fp32").state_dict() == {}


def test_next_scale() -> None:
    assert next_scale(8.0, 5, False) == (4.0, 0)
    assert next_scale(8.0, 5, True, growth_interval=7) == (8.0, 6)
    assert next_scale(8.0, 6, True, growth_interval=7) == (16.0, 0)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-params"])
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_no_precision_steps_with_a_gradient_that_is_not_finite(precision: str, bad: float) -> None:
    gpt = GPT(CONFIG)
    how = MixedPrecision(gpt, precision)
    before = [p.detach().clone() for p in how.trained.parameters()]
    optimizer = make_optimizer(how.trained, lr=0.1)
    gpt.loss(*batch(0, 2, "some", 1)).backward()
    gpt.ln.weight.grad[0] = bad  # type: ignore[index]
    stepped, norm = how.step(optimizer, 1.0)
    assert not stepped
    assert not norm.isfinite()
    assert all(torch.equal(a, b) for a, b in zip(before, how.trained.parameters(), strict=True))


# ---- masters


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_pitfall_59_weights_loaded_after_the_masters_were_made_stay(dtype: torch.dtype) -> None:
    """lr = 0, one step, over two ranks: the random start would come back."""
    for found in run_ranks(ranks.masters_after_a_load, 2, dtype, FULL):
        assert all(found.values()), [name for name, good in found.items() if not good]


def test_masters_add_up_what_bfloat16_rounds_away() -> None:
    module, _ = one_weight()
    how = MixedPrecision(module, "bf16-params")
    optimizer = torch.optim.SGD(how.trained.parameters(), lr=1e-4)
    for _ in range(100):
        module.weight.grad = torch.ones(1, 1, dtype=torch.bfloat16)
        how.step(optimizer, 10.0)
    assert how.masters is not None
    assert how.masters.float32.weight.item() == pytest.approx(0.99, rel=1e-5)
    assert module.weight.dtype == torch.bfloat16
    assert module.weight.item() == pytest.approx(0.99, abs=2**-8)
    with torch.no_grad():
        assert (module.weight - 1e-4).item() == module.weight.item(), "a step alone is rounded away"


def test_masters_keep_the_bits_that_the_model_lost_at_the_cast() -> None:
    module, weight = one_weight(1.0 + 2**-12)
    how = MixedPrecision(module, "bf16-params")
    optimizer = torch.optim.SGD(how.trained.parameters(), lr=0.0)
    module.weight.grad = torch.ones(1, 1, dtype=torch.bfloat16)
    how.step(optimizer, 10.0)
    assert how.masters is not None
    assert how.masters.float32.weight.item() == 1.0 + 2**-12
    assert weight is module.weight, "the parameter that others hold is still the model's"


def test_weights_loaded_into_the_masters_reach_the_model_unrounded_beneath() -> None:
    gpt = GPT(CONFIG).bfloat16()
    masters = Masters(gpt)
    masters.float32.load_state_dict(FULL)
    masters.push_weights()
    masters.pull()
    for name, tensor in masters.float32.state_dict().items():
        assert torch.equal(tensor, FULL[name].float())
        assert torch.equal(gpt.state_dict()[name], FULL[name].float().bfloat16())


# ---- the whole model


@pytest.mark.parametrize("precision", PRECISIONS)
def test_training_in_each_precision_at_two_layouts(precision: str) -> None:
    """The loss falls as float32's does, within the precision's rounding, at any layout."""
    exact = run_ranks(ranks.losses, 1, "fp32", 1, FULL, 4)[0]["losses"]
    bound = {"fp32": 1e-4, "fp16": 3e-3}.get(precision, 3e-2)
    rows = run_ranks(ranks.losses, 4, precision, 2, FULL, 4)
    for found in rows:
        assert found["losses"] == pytest.approx(exact, rel=bound)
        assert found["losses"] == rows[0]["losses"]
        half = precision == "bf16-params"
        assert found["dtypes"] == {torch.bfloat16 if half else torch.float32}
        assert found["trained"] == {torch.float32}
        assert found["names"] == [name for name, _ in GPT(CONFIG).named_parameters()]
        for one, other in zip(found["replicated"], rows[0]["replicated"], strict=True):
            assert torch.equal(one, other), "replicas parted"


def test_what_each_precision_computes_in() -> None:
    seen: dict[str, Any] = {}
    for precision in PRECISIONS:
        module = nn.Linear(3, 3)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            how = MixedPrecision(module, precision)
        with how.forward_context():
            x = torch.zeros(1, 3, dtype=module.weight.dtype)
            seen[precision] = module(x).dtype, module.weight.dtype, len(caught)
        assert not torch.is_autocast_enabled("cpu")
    f32, b16, f16 = torch.float32, torch.bfloat16, torch.float16
    assert seen == {
        "fp32": (f32, f32, 0),
        "bf16": (b16, f32, 0),
        "bf16-params": (b16, b16, 0),
        "fp16": (f16, f32, 1),
    }
    with pytest.raises(ValueError, match=r"precision is 'fp8'; it must be one of .*'bf16-params'"):
        MixedPrecision(nn.Linear(1, 1), "fp8")


def test_autocast_is_around_the_forward_alone() -> None:
    """torch advises against autocast around backward, whose operations it would cast again."""
    gpt, seen = GPT(CONFIG), []
    how = MixedPrecision(gpt, "bf16")
    gpt.ln.register_forward_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    gpt.ln.weight.register_hook(lambda _: seen.append(torch.is_autocast_enabled("cpu")))
    DataParallel(gpt, forward_context=how.forward_context).backward_global_mean(
        [batch(0, 2, "some", 1)]
    )
    assert seen == [True, False]
