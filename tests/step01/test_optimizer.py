from __future__ import annotations

import math

import pytest
import torch

from step01_single_gpu import GPT, GPTConfig, lr_at
from step01_single_gpu.optimizer import decays, make_optimizer

DECAYED = [
    "tokens.weight",
    "positions.weight",
    "blocks.0.attention.qkv.weight",
    "blocks.0.attention.out.weight",
    "blocks.0.mlp.up.weight",
    "blocks.0.mlp.down.weight",
]
NOT_DECAYED = [
    "blocks.0.ln1.weight",
    "blocks.0.ln1.bias",
    "blocks.0.attention.qkv.bias",
    "blocks.0.attention.out.bias",
    "blocks.0.ln2.weight",
    "blocks.0.ln2.bias",
    "blocks.0.mlp.up.bias",
    "blocks.0.mlp.down.bias",
    "ln.weight",
    "ln.bias",
]


def test_weight_decay_acts_on_these_names_and_no_others() -> None:
    """The [3, hidden] bias has two dimensions, and must still be among those that don't decay."""
    names = [name for name, _ in GPT(GPTConfig(20, 4, 8, 1, 2)).named_parameters()]
    assert sorted(names) == sorted(DECAYED + NOT_DECAYED)
    assert [name for name in names if decays(name)] == DECAYED


def test_optimizer_decays_exactly_those() -> None:
    """With zero gradients only decay moves a weight."""
    model = GPT(GPTConfig(20, 4, 8, 1, 2))
    before = {name: p.detach().clone() + 1.0 for name, p in model.named_parameters()}
    for name, p in model.named_parameters():
        p.data, p.grad = before[name].clone(), torch.zeros_like(p)
    optimizer = make_optimizer(model, weight_decay=0.01, lr=0.5)
    optimizer.step()
    for name, p in model.named_parameters():
        factor = 1 - 0.5 * 0.01 if name in DECAYED else 1.0
        assert torch.allclose(p, before[name] * factor, rtol=1e-6, atol=0), name
    assert optimizer.defaults["fused"]


def test_learning_rate_warms_up_then_follows_a_cosine() -> None:
    def rate(step: int) -> float:
        return lr_at(step, peak=1.0, minimum=0.1, warmup=10, total=110)

    assert [rate(i) for i in range(10)] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert rate(10) == pytest.approx(1.0)
    assert rate(60) == pytest.approx(0.55)
    assert rate(35) == pytest.approx(0.1 + 0.45 * (1 + math.cos(math.pi / 4)))
    assert rate(110) == rate(10**9) == pytest.approx(0.1)
    falling = [rate(i) for i in range(10, 111)]
    assert falling == sorted(falling, reverse=True)


def test_learning_rate_at_the_corners() -> None:
    assert lr_at(0, peak=2.0, minimum=0.0, warmup=0, total=1) == 2.0
    assert lr_at(4, peak=2.0, minimum=0.5, warmup=5, total=5) == 2.0
    assert lr_at(5, peak=2.0, minimum=0.5, warmup=5, total=5) == 0.5
    assert lr_at(6, peak=2.0, minimum=0.5, warmup=5, total=5) == 0.5
    assert lr_at(1, peak=2.0, minimum=0.5, warmup=4, total=2) == 1.0


def test_the_papers_recipe() -> None:
    recipe = {"peak": 1.5e-4, "minimum": 1e-5, "warmup": 3000, "total": 300_000}
    assert lr_at(2999, **recipe) == pytest.approx(1.5e-4)
    assert lr_at(300_000, **recipe) == pytest.approx(1e-5)
