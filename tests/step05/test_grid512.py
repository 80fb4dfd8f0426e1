"""The big grid at a size for tests, its limits, and the equal trajectories."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from step01_single_gpu.config import PAPER_MODELS
from step04_embeddings_loss import ParallelGPT
from step05_hybrid_dp import grid512, grid_step, machine_limits, trajectories
from tests.step05 import train_ranks


def test_32_ranks_take_the_step_of_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    """8 x 4, dropout on, rows without a valid token; every weight of every rank is compared."""
    worst = grid512.main(grid512.Options(world=32, tp=8))
    assert worst.worst <= 1e-12, "far inside the program's own bound"
    assert "32 ranks took one step" in capsys.readouterr().out


def test_the_comparison_sees_one_wrong_number(tmp_path: Path) -> None:
    grid_step.reference(tmp_path, 4)
    whole = torch.load(tmp_path / "reference.pt", weights_only=True)
    model = ParallelGPT(grid_step.CONFIG, vocab_multiple=1).double()
    for name, tensor in model.state_dict().items():
        tensor.copy_(whole[name])
    assert grid_step.compared(model, whole, 0.0).worst == 0.0
    for value in (1e-9, float("nan")):
        model.blocks[1].mlp.up.weight.data[3, 2] += value
        found = grid_step.compared(model, whole, 0.0)
        assert not found.worst < 1e-9
        assert found.tensor == "blocks.1.mlp.up.weight"
    model.blocks[0].attention.qkv.bias.data[1, 0] += 1.0
    assert grid_step.compared(model, whole, 0.0).k_bias > 100


def test_a_grid_that_does_not_fit_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_limits.check_machine(2)
    monkeypatch.setattr(machine_limits, "available_memory", lambda: 2 * 2**30)
    with pytest.raises(ValueError, match=r"512 ranks .*2.0 GiB of free .* for about 51"):
        machine_limits.check_machine(512)
    monkeypatch.setattr(machine_limits, "available_memory", lambda: 2**40)
    rows = [("open files (ulimit -n)", 256, 2112), ("processes (ulimit -u)", None, 10**6)]
    monkeypatch.setattr(machine_limits, "_limits", lambda ranks: rows)
    with pytest.raises(ValueError, match=r"limit of 256 open files \(ulimit -n\) is enough for"):
        machine_limits.check_machine(512)
    with pytest.raises(ValueError, match="tp_size 3 × dp_size 10 is 30 ranks, but 32 are running"):
        grid512.main(grid512.Options(world=32, tp=3))
    with pytest.raises(ValueError, match="tp 16 doesn't divide the 8 heads"):
        grid512.main(grid512.Options(world=32, tp=16))


@pytest.mark.long
def test_trajectories_are_equal_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(PAPER_MODELS, "tiny", train_ranks.TINY)
    monkeypatch.setattr(trajectories, "LAYOUTS", ((1, 1), (2, 2)))
    monkeypatch.setattr(trajectories, "one_rank", train_ranks.run)
    train_ranks.write_text(tmp_path)
    worst = trajectories.main(
        trajectories.Options(
            steps=4, model="tiny", seq_length=8, corpus=str(tmp_path / "text.txt"),
            root=tmp_path / "data", run=tmp_path / "run",
        )
    )  # fmt: skip
    assert worst["float64"] < 1e-12
    assert 0 < worst["float32"] < 1e-5, "no two orders of summation give the same float32"
    assert (tmp_path / "run" / "trajectories.png").read_bytes().startswith(b"\x89PNG")
    assert "tp 2 x dp 2" in capsys.readouterr().out
    assert trajectories.largest_difference({(1, 1): [1.0, 2.0], (2, 1): [1.0, 2.5]}) == 0.25
