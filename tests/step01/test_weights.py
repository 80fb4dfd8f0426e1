from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from step01_single_gpu import GPT, GPTConfig, draw_weight


def test_a_weight_is_a_function_of_its_name_and_seed() -> None:
    weight = draw_weight("blocks.0.mlp.up.weight", (6, 4), 0.02, 7)
    assert weight.dtype == torch.float32
    assert weight.shape == (6, 4)
    torch.manual_seed(99)
    torch.rand(5)
    assert torch.equal(weight, draw_weight("blocks.0.mlp.up.weight", (6, 4), 0.02, 7))
    assert not torch.equal(weight, draw_weight("blocks.1.mlp.up.weight", (6, 4), 0.02, 7))
    assert not torch.equal(weight, draw_weight("blocks.0.mlp.up.weight", (6, 4), 0.02, 8))


def test_drawing_neither_reads_nor_moves_the_global_generator() -> None:
    before = torch.get_rng_state()
    draw_weight("w", (100,), 1.0, 0)
    GPT(GPTConfig(20, 4, 8, 1, 2))
    assert torch.equal(before, torch.get_rng_state())


def test_another_process_draws_the_same_and_malloc_takes_its_settings() -> None:
    """Python salts `hash()` of strings in each process; a digest does not depend on it.
    (Both in one process, since starting torch is what takes the time.)"""
    code = (
        "from step01_single_gpu.machine import keep_freed_memory;"
        "from step01_single_gpu import draw_weight;"
        "print(keep_freed_memory(), draw_weight('a.weight', (3,), 1.0, 5).tolist())"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "1"},
        cwd=Path(__file__).parents[2],
    )
    listened = platform.libc_ver()[0] == "glibc"
    assert result.stdout == f"{listened} {draw_weight('a.weight', (3,), 1.0, 5).tolist()}\n"


def test_a_draw_has_the_std_it_was_asked_for() -> None:
    weight = draw_weight("w", (400, 500), 0.02, 0)
    assert weight.std().item() == pytest.approx(0.02, rel=0.01)
    assert weight.mean().item() == pytest.approx(0.0, abs=3e-4)


def test_residual_projections_start_smaller_and_the_rest_at_a_fiftieth() -> None:
    config = GPTConfig(300, 64, hidden_size=96, num_layers=8, num_heads=4)
    for name, weight in GPT(config).state_dict().items():
        if name.endswith("bias"):
            assert not weight.any(), name
        elif ".ln" in name or name.startswith("ln"):
            assert (weight == 1).all(), name
        else:
            residual = name.endswith(("out.weight", "down.weight"))
            std = 0.02 / math.sqrt(2 * 8) if residual else 0.02
            assert weight.std().item() == pytest.approx(std, rel=0.05), name


def test_every_weight_of_a_model_is_the_one_its_name_draws() -> None:
    config = GPTConfig(30, 8, hidden_size=12, num_layers=2, num_heads=2)
    state = GPT(config, seed=3).state_dict()
    assert torch.equal(state["tokens.weight"], draw_weight("tokens.weight", (30, 12), 0.02, 3))
    name = "blocks.1.attention.qkv.weight"
    assert torch.equal(state[name], draw_weight(name, (3, 12, 12), 0.02, 3))
    layers = [state[f"blocks.{i}.mlp.up.weight"] for i in range(2)]
    assert not torch.equal(*layers), "a stack of blocks must not be a stack of copies"


def test_a_float64_model_starts_from_the_same_float32_draws(float64: None) -> None:
    weight = GPT(GPTConfig(30, 8, 12, 1, 2)).state_dict()["tokens.weight"]
    assert weight.dtype == torch.float64
    assert torch.equal(weight, draw_weight("tokens.weight", (30, 12), 0.02, 0).double())
