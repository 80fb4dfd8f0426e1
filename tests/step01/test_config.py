from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from step01_single_gpu import GPT, PAPER_MODELS, GPTConfig

GOOD: dict[str, Any] = {
    "vocab_size": 50, "seq_length": 8, "hidden_size": 12, "num_layers": 2, "num_heads": 3,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_heads": 5}, "num_heads 5 does not divide hidden_size 12; these would: 1, 2, 3"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"seq_length": -3}, "seq_length is -3"),
        ({"num_layers": 2.5}, r"num_layers is 2\.5"),
        ({"num_heads": True}, "num_heads is True"),
        ({"dropout": 1.0}, r"dropout is 1\.0"),
        ({"dropout": float("nan")}, "dropout is nan"),
        ({"gelu": "relu"}, "gelu is 'relu'"),
        ({"norm_eps": 0.0}, r"norm_eps is 0\.0"),
    ],
)
def test_sizes_that_cannot_work_are_refused_when_written_down(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        GPTConfig(**{**GOOD, **change})


def test_a_config_cannot_change_under_a_model() -> None:
    config = GPTConfig(**GOOD)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.hidden_size = 24  # type: ignore[misc]
    assert config.head_dim == 4


@pytest.mark.parametrize(
    ("name", "billions"),
    [("gpt2-355m", 0.355), ("gpt2-1.2b", 1.2), ("gpt2-2.5b", 2.5), ("gpt2-4.2b", 4.2),
     ("gpt2-8.3b", 8.3), ("gpt2-8.3b-24heads", 8.3)],
)  # fmt: skip
def test_the_papers_models_have_the_papers_size(name: str, billions: float) -> None:
    config = PAPER_MODELS[name]
    assert config.num_parameters / 1e9 == pytest.approx(billions, rel=0.03)
    with torch.device("meta"):  # shapes without weights: 8.3 billion of them in no time
        model = GPT(config)
    assert sum(p.numel() for p in model.parameters()) == config.num_parameters


def test_table_1_has_heads_of_96() -> None:
    for name in ("gpt2-1.2b", "gpt2-2.5b", "gpt2-4.2b", "gpt2-8.3b"):
        assert PAPER_MODELS[name].head_dim == 96
