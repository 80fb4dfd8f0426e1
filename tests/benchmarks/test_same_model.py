"""What benchmarks time is the same arithmetic: they compare before they time, and would stop."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.distributed as dist

from benchmarks import ablation, bert, endtoend, growth, parallel, training
from step01_single_gpu import GPTConfig
from step02_mlp_parallel import RankError, run_ranks
from step02_mlp_parallel.linear import RowParallelLinear
from step06_bert_layernorm import ParallelBERT
from step06_bert_layernorm.config import PAPER_MODELS

TINY = GPTConfig(64, 8, hidden_size=16, num_layers=2, num_heads=4, dropout=0.0)


def test_peers_of_the_whole_step_agree() -> None:
    found = run_ranks(endtoend.versus, 2, 2, TINY, 1)[0]
    assert {"ours", "DTensor, loss_parallel", "DTensor, logits gathered"} <= set(found["seconds"])
    others = set(found["seconds"]) | set(found["missing"])
    assert {"fairscale", "megatron-core"} <= others


@pytest.mark.parametrize("kind", ["MLP", "block"])
def test_peers_of_the_layers_agree(kind: str) -> None:
    found = run_ranks(parallel.versus, 2, kind, 16, 2, 8, 1)[0]
    others = set(found["seconds"]) | set(found["missing"])
    assert {"ours", "DTensor", "fairscale", "megatron-core", "DeepSpeed"} <= others


def wrong_bias(*arguments: int) -> None:
    """The benchmark with a fault in ours: each rank adds the bias before the sum."""
    plain = RowParallelLinear.forward

    def forward(self: RowParallelLinear, x: torch.Tensor) -> torch.Tensor:
        assert self.bias is not None
        return plain(self, x) + self.bias * (dist.get_world_size() - 1)

    RowParallelLinear.forward = forward  # type: ignore[method-assign]
    with torch.no_grad():
        parallel.versus("MLP", *arguments)


def test_a_model_that_differs_is_not_timed() -> None:
    with pytest.raises(RankError):
        run_ranks(wrong_bias, 2, 16, 2, 8, 1)


def test_schemes_of_the_ablation_agree_and_the_paired_one_sends_least() -> None:
    found = run_ranks(ablation.versus, 2, 16, 2, 8, 1)[0]["sent"]
    numbers = 4 * 2 * 8 * 16  # bytes of a float32 activation [2, 8, 16]
    assert found["ours"] == (2, 2 * numbers)  # two all-reduces; on two ranks a ring sends each once
    assert found["rows first"][1] > found["ours"][1]
    assert found["gather after each"][1] > found["ours"][1]


def test_bert_and_transformers_have_the_same_loss() -> None:
    config = dataclasses.replace(
        PAPER_MODELS["bert-mini"], norm="original", dropout=0.0, vocab_size=64, seq_length=16,
        hidden_size=16, num_layers=1,
    )  # fmt: skip
    torch.manual_seed(0)
    batch, model = bert.batch_of(config), ParallelBERT(config, vocab_multiple=1)
    theirs = bert.theirs(model, batch)()
    assert abs(theirs - bert.ours(model, batch)()) < 1e-5 * theirs


@pytest.mark.long
def test_growth_and_weak_scaling_have_their_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "GROWN", {"num_layers": (1, 2)})
    ranks, sizes = growth.tables(growth.Options(rounds=2, most=2))
    assert {"start 1", "step 2", "MiB 2"} <= set(ranks.figures)
    assert sizes.figures["num_layers, GEMMs"] > 0
    (table,) = training.tables(training.Options(rounds=2))
    assert {"TP = 2 of alone", "DP = 2 of beside", "TP = 2, same model of alone"} <= set(
        table.figures
    )


def test_a_slope_is_that_of_the_power() -> None:
    assert abs(growth.slope([1.0, 2.0, 4.0], [3.0, 12.0, 48.0]) - 2.0) < 1e-12
