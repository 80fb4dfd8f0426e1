from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from step01_single_gpu import GPT
from step01_single_gpu.optimizer import make_optimizer
from step02_mlp_parallel import ParallelMLP, run_ranks
from step05_hybrid_dp.optimizer import clip_grad_norm_
from tests.compare import assert_close
from tests.equivalence import random_state

from . import clip_ranks as ranks
from .dp_ranks import CONFIG

GRADIENTS = {name: tensor - 0.1 for name, tensor in random_state(GPT(CONFIG), 2).items()}


def reference(norm_type: float, max_norm: float) -> tuple[float, dict[str, Tensor]]:
    gpt = GPT(CONFIG).double()
    for name, parameter in gpt.named_parameters():
        parameter.grad = GRADIENTS[name].clone()
    norm = torch.nn.utils.clip_grad_norm_(gpt.parameters(), max_norm, norm_type)
    return norm.item(), {n: p.grad for n, p in gpt.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("n", [1, 2, 4])
def test_pitfalls_51_and_53_the_norm_and_the_clipped_gradients_are_torchs(n: int) -> None:
    """Of the whole model, above and below the limit; its vocabulary is padded at 2 and 4."""
    cases = [(norm_type, limit) for norm_type in (2.0, 1.0, 3.5, math.inf) for limit in (0.5, 1e6)]
    rows = run_ranks(ranks.clipped, n, GRADIENTS, cases)
    for index, case in enumerate(cases):
        expected_norm, expected = reference(*case)
        first_norm, _, first_replicated = rows[0][index]
        for rank, row in enumerate(rows):
            norm, got, replicated = row[index]
            assert norm == pytest.approx(expected_norm, rel=1e-12), f"rank {rank}, {case}"
            assert norm == first_norm, "another bit on another rank"
            for name in expected:
                assert_close(got[name], expected[name], 1e-12, f"rank {rank}, {case}: {name}")
            assert all(torch.equal(a, b) for a, b in zip(replicated, first_replicated, strict=True))


def test_pitfall_53_what_local_norms_do_to_replicas() -> None:
    norms, gains = zip(*run_ranks(ranks.local_norms, 2, GRADIENTS), strict=True)
    assert norms[0] != norms[1]
    assert not torch.equal(*gains)


def test_pitfall_51_four_replicated_and_four_cut_ones() -> None:
    """√(4 + 2·4) = 3.464, not √(2·4 + 2·4) = 4; a parameter given twice counts once."""
    for norms in run_ranks(ranks.four_and_four, 2):
        assert norms == pytest.approx([12**0.5, 4.0, 8**0.5])


def test_pitfall_52_the_module_knows_its_cuts_without_marks() -> None:
    expected, _ = reference(2.0, math.inf)
    for found in run_ranks(ranks.odd_models, 2, GRADIENTS):
        assert found == pytest.approx(dict.fromkeys(found, expected), rel=1e-12)


def test_a_non_finite_gradient_on_one_rank_is_seen_by_all_and_spoils_nothing() -> None:
    cases = [(bad, p) for bad in (math.inf, -math.inf, math.nan) for p in (2.0, math.inf)]
    for row in run_ranks(ranks.not_finite, 2, cases):
        for (norm, left), case in zip(row, cases, strict=True):
            assert not math.isfinite(norm), case
            assert left == [3.0], f"{case}: finite gradients became zeros or NaN"


def test_ranks_without_gradients_make_the_same_collectives() -> None:
    assert run_ranks(ranks.without_gradients, 2) == [[pytest.approx(48**0.5), 0.0, 0.0]] * 2


def test_what_is_wrong_is_named_on_every_rank() -> None:
    for said in run_ranks(ranks.messages, 2, GRADIENTS):
        assert "parameter 1, of shape [8, 16], has no shard_dim" in said["bare"]
        assert "is cut over ranks [0, 1], and tp_group is None" in said["no group"]
        assert "is cut over ranks [0, 1], and tp_group is [" in said["another group"]
        assert "max_norm is 0.0; it must be above 0" in said["max_norm"]
        assert "max_norm is nan" in said["nan"]
        assert "norm_type is 0.0" in said["norm_type"]
        assert "scale is 0.0" in said["scale"]


def test_alone_neither_modules_nor_parameters_need_to_say_anything() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, 4.0])
    assert clip_grad_norm_([parameter], 1.0).item() == 5.0
    assert_close(parameter.grad, torch.tensor([0.6, 0.8]), 1e-6)
    assert clip_grad_norm_(parameter, 2.0).item() == pytest.approx(1.0, rel=1e-6)
    assert clip_grad_norm_([], 1.0).item() == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_long_sum_keeps_its_bits(dtype: torch.dtype) -> None:
    """4 million squares and some more; a single float32 sum is off by 1e-4 and up."""
    parameter = nn.Parameter(torch.zeros(2**22 + 7, dtype=dtype))
    parameter.grad = torch.randn(2**22 + 7).to(dtype)
    exact = parameter.grad.double().norm().item()
    norm = clip_grad_norm_([parameter], 1.0)
    assert norm.dtype == torch.float64
    assert norm.item() == pytest.approx(exact, rel=1e-8 if dtype == torch.float32 else 1e-6)
    assert parameter.grad.dtype == dtype


def test_a_transposed_gradient_is_clipped_in_place() -> None:
    layer = ParallelMLP(CONFIG)
    layer.up.weight.grad = grad = torch.arange(64.0 * 16).view(16, 64).T
    whole = grad.norm().item()
    assert clip_grad_norm_(layer, 1.0).item() == pytest.approx(whole, rel=1e-6)
    assert grad.norm().item() == pytest.approx(1.0, rel=1e-5)


GOLDEN = [
    "tokens.weight",
    "positions.weight",
    *(
        f"blocks.{i}.{name}.weight"
        for i in range(2)
        for name in ("attention.qkv", "attention.out", "mlp.up", "mlp.down")
    ),
]


@pytest.mark.parametrize("n", [1, 2, 4])
def test_pitfall_79_what_decays_is_the_same_at_every_layout(n: int) -> None:
    assert run_ranks(ranks.decayed_names, n) == [GOLDEN] * n
    gpt: Any = GPT(CONFIG)
    names = {id(p): name for name, p in gpt.named_parameters()}
    assert [names[id(p)] for p in make_optimizer(gpt).param_groups[0]["params"]] == GOLDEN
