"""The training program: the same run at every layout, resumed to the bit, kind about mistakes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from step01_single_gpu.config import PAPER_MODELS
from step01_single_gpu.data import open_data, prepare
from step01_single_gpu.run_folder import newest_run
from step02_mlp_parallel import run_ranks
from step05_hybrid_dp import train
from step05_hybrid_dp.load import load_run
from tests.compare import assert_close
from tests.step05 import train_ranks
from tests.step05.train_ranks import options


@pytest.fixture(autouse=True)
def tiny_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PAPER_MODELS, "tiny", train_ranks.TINY)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("train")
    train_ranks.write_text(path)
    return path


def rows(run: Path, *keys: str) -> list[list[Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [[line[key] for key in keys] for line in lines if all(key in line for key in keys)]


def test_losses_are_the_same_at_every_layout_and_the_reference_s(folder: Path) -> None:
    """The whole program in float64, dropout on, against a few lines on step 1's model."""
    given = options(folder, rng="invariant")
    expected = torch.tensor(reference := run_reference(given), dtype=torch.float64)
    assert reference[-1] < reference[0]
    for tp, dp, others in (
        (1, 1, {}),
        (2, 1, {"vocab_multiple": 128}),
        (1, 2, {"micro_batch_size": 1}),
        (2, 2, {"micro_batch_size": 2, "recompute": True}),
        (1, 4, {}),
    ):
        case = dataclasses.replace(given, tp=tp, dp=dp, run=folder / f"{tp}x{dp}", **others)
        run_ranks(train_ranks.run, tp * dp, case, torch.float64)
        losses = torch.tensor([row[0] for row in rows(folder / f"{tp}x{dp}", "loss")])
        assert_close(losses.double(), expected, 1e-10, f"tp {tp}, dp {dp}")


def run_reference(given: Any) -> list[float]:
    torch.set_default_dtype(torch.float64)
    return train_ranks.reference_losses(given)


def test_a_run_leaves_all_its_files_and_opens_in_one_process(folder: Path) -> None:
    run = folder / "files"
    printed = [
        row["printed"]
        for row in run_ranks(
            train_ranks.run, 2, options(folder, run=run, tp=2, steps=150, lr=3e-2, profile=True)
        )
    ]
    assert "2-way tensor × 1-way data parallel" in printed[0]
    assert printed[1] == "", "only rank 0 speaks"
    names = {path.name for path in run.iterdir()}
    assert names == {
        "checkpoints", "config.json", "metrics.jsonl", "loss.png", "sample.txt", "timeline.json",
    }  # fmt: skip
    assert {e["pid"] for e in json.loads((run / "timeline.json").read_text())["traceEvents"]} >= {
        "rank 0",
        "rank 1",
    }
    assert [row[0] for row in rows(run, "step", "loss")] == list(range(1, 151))
    valid, unigram = rows(run, "valid_loss", "unigram_loss")[-1]
    assert valid < unigram - 0.3, "it doesn't learn"
    assert newest_run(folder) == run
    model, data = load_run(run)
    grid = train.Grid(1, 1, device_type="cpu")
    alone = train.quick_loss(model, data, grid, train.MixedPrecision(model, "fp32"))
    assert alone == pytest.approx(valid, rel=1e-5)


@pytest.mark.parametrize(("tp", "dp"), [(2, 1), (1, 4)])
def test_resume_is_bit_exact_at_the_same_layout(folder: Path, tp: int, dp: int) -> None:
    """Stopped by a SIGTERM that one rank got; dropout on, in the paper's mode; metrics too."""
    straight, parts = folder / f"straight{tp}{dp}", folder / f"parts{tp}{dp}"
    given = options(folder, tp=tp, dp=dp)
    run_ranks(train_ranks.run, tp * dp, dataclasses.replace(given, run=straight))
    stopped = dataclasses.replace(given, run=parts)
    said = run_ranks(train_ranks.interrupted, tp * dp, stopped, 3)[0]["printed"]
    assert f"stopped after step 3; go on with: --resume {parts}" in said
    assert (parts / "RESTART").read_text() == "stopped after step 3\n"
    run_ranks(train_ranks.run, tp * dp, train.Options(resume=parts))
    assert not (parts / "RESTART").exists()
    first, second = train_ranks.weights(straight), train_ranks.weights(parts)
    for name, tensor in first.items():
        assert torch.equal(second[name], tensor), name
    keys = ("step", "loss", "grad_norm", "lr")
    assert rows(parts, *keys) == rows(straight, *keys)


def test_resume_at_another_layout_goes_on_as_if_nothing_had_happened(folder: Path) -> None:
    """float64, dropout on in invariant mode: 2 x 1, then 1 x 2, then 2 x 2, then alone."""
    run = folder / "moving"
    given = options(folder, rng="invariant", steps=8)
    expected = torch.tensor(run_reference(given), dtype=torch.float64)
    run_ranks(
        train_ranks.interrupted, 2, dataclasses.replace(given, run=run, tp=2), 2, torch.float64
    )
    for tp, dp, until in ((1, 2, 4), (2, 2, 6)):
        case = train.Options(resume=run, tp=tp, dp=dp)
        run_ranks(train_ranks.interrupted, tp * dp, case, until, torch.float64)
    run_ranks(train_ranks.run, 1, train.Options(resume=run, tp=1, dp=1), torch.float64)
    losses = torch.tensor([row[0] for row in rows(run, "loss")], dtype=torch.float64)
    assert_close(losses, expected, 1e-9)


def test_bad_input_is_named_on_all_ranks_and_leaves_nothing(folder: Path) -> None:
    before = sorted(path.name for path in folder.iterdir())
    cases = {
        "world": options(folder, tp=4, dp=2),
        "batch": options(folder, batch_size=7, tp=1, dp=2),
        "micro": options(folder, batch_size=8, micro_batch_size=8, tp=1, dp=2),
        "no run": train.Options(resume=folder / "nothing"),
        "text": options(folder, corpus=str(folder / "missing.txt")),
        "exists": options(folder, tp=2, run=folder),
        "window": options(folder, tp=2, seq_length=100_000),
    }
    wanted = {
        "world": "tp_size 4 × dp_size 2 is 8 ranks, but 2 are running",
        "batch": "--batch_size 7 doesn't divide by dp 2: 6 or 8 would",
        "micro": "--micro_batch_size 8 doesn't divide the 4 rows",
        "no run": "is not a run folder",
        "text": "missing.txt",
        "exists": "exists already",
        "window": "the corpus has",
    }
    for said in run_ranks(train_ranks.failing, 2, cases):
        for name, text in wanted.items():
            assert text in said[name], f"{name}: {said[name]}"
    assert sorted(path.name for path in folder.iterdir()) == before
    with pytest.raises(ValueError, match=r"there is no model 'gpt2-8b'; near it: .*gpt2-8.3b"):
        train.Options(model="gpt2-8b")
    with pytest.raises(ValueError, match="--tp is 0; it must be at least 1"):
        train.Options(tp=0)
    heads = {"heads": options(folder, tp=3, dp=1, batch_size=9)}
    said = run_ranks(train_ranks.failing, 3, heads)[0]["heads"]
    assert "tp 3 doesn't divide the 4 heads of tiny; these would: 1, 2, 4" in said


def test_a_rank_with_other_options_is_found_at_the_start(folder: Path) -> None:
    given = options(folder, tp=2)
    for others, wanted in (
        ({"lr": 0.5, "seed": 7}, "--lr is 0.01 on rank 0 and 0.5; --seed is 1234 on rank 0 and 7"),
        ({"tp": 1, "dp": 2}, "--dp is None on rank 0 and 2; --tp is 2 on rank 0 and 1"),
        ({"batch_size": 7}, "--batch_size is 8 on rank 0 and 7"),
    ):
        changed = dataclasses.replace(given, **others)
        for said in run_ranks(train_ranks.other_options_on_rank_1, 2, given, changed):
            assert said == f"rank 1 was started with other options: {wanted}"


def test_a_loss_that_is_not_finite_ends_the_run_and_names_the_checkpoint(folder: Path) -> None:
    run = folder / "diverged"
    case = options(folder, tp=2, run=run, lr=1e30, clip=1e30, warmup=1, steps=30)
    for said in run_ranks(train_ranks.failing, 2, {"lr": case}):
        assert "at step" in said["lr"]
        assert f"the last good checkpoint is in {run / 'checkpoints'}" in said["lr"]


@pytest.mark.long
def test_a_run_that_was_killed_at_once_or_left_a_torn_line_can_be_resumed(folder: Path) -> None:
    straight, run = folder / "whole", folder / "torn"
    given = options(folder, tp=2, steps=4)
    run_ranks(train_ranks.run, 2, dataclasses.replace(given, run=straight))
    case = dataclasses.replace(given, run=run)
    assert "killed" in run_ranks(train_ranks.dying, 2, case)[0]
    assert [path.name for path in (run / "checkpoints").glob("step-*")] == ["step-00000000"]
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 1, "lo')
    run_ranks(train_ranks.run, 2, train.Options(resume=run))
    assert rows(run, "step", "loss") == rows(straight, "step", "loss")
    first, second = train_ranks.weights(straight), train_ranks.weights(run)
    assert all(torch.equal(second[name], first[name]) for name in first)


def test_a_short_validation_text_is_found_before_anything_is_trained(folder: Path) -> None:
    before = sorted(path.name for path in folder.iterdir())
    given = options(folder, tp=2)
    data = open_data(prepare(given.corpus, given.tokenizer, given.root))
    assert len(data.valid.ids) + 1 < len(data.train.ids)
    case = dataclasses.replace(given, seq_length=len(data.valid.ids))
    for said in run_ranks(train_ranks.failing, 2, {"valid": case}):
        assert "the validation text has" in said["valid"]
    assert sorted(path.name for path in folder.iterdir()) == before


def test_the_timeout_reaches_every_group(folder: Path) -> None:
    for found in run_ranks(train_ranks.timeouts, 4, 7.0):
        assert found == {"tp": [7.0], "dp": [7.0]}


@pytest.mark.long
def test_profiling_changes_nothing(folder: Path) -> None:
    """At dp = 2, where DDP has buckets and accumulation."""
    plain, profiled = folder / "plain", folder / "profiled"
    given = options(folder, dp=2, tp=1, micro_batch_size=2, steps=3)
    run_ranks(train_ranks.run, 2, dataclasses.replace(given, run=plain))
    run_ranks(train_ranks.run, 2, dataclasses.replace(given, run=profiled, profile=True))
    assert rows(plain, "step", "loss", "grad_norm") == rows(profiled, "step", "loss", "grad_norm")


def test_a_drifting_replica_is_found(folder: Path) -> None:
    for tensor, data in run_ranks(train_ranks.drifted, 2):
        assert "over the tensor-parallel group: blocks.0.mlp.down.bias, ln.weight" in tensor
        assert "tokens" not in tensor, "a rank's own part is no replica"
        assert "over the data-parallel group: tokens.weight, blocks.0.mlp.down.bias" in data


@pytest.mark.long
@pytest.mark.parametrize("precision", ["bf16", "bf16-params"])
def test_half_precision_trains_and_resumes_to_the_bit(folder: Path, precision: str) -> None:
    straight, parts = folder / f"{precision}-straight", folder / f"{precision}-parts"
    given = options(folder, tp=2, precision=precision, steps=5)
    run_ranks(train_ranks.run, 2, dataclasses.replace(given, run=straight))
    run_ranks(train_ranks.interrupted, 2, dataclasses.replace(given, run=parts), 2)
    run_ranks(train_ranks.run, 2, train.Options(resume=parts))
    assert rows(parts, "step", "loss") == rows(straight, "step", "loss")
    full = run_reference(dataclasses.replace(given, rng="invariant", dropout=0.0))
    half = dataclasses.replace(given, dropout=0.0, run=folder / f"{precision}-dry")
    run_ranks(train_ranks.run, 2, half)
    losses = torch.tensor([row[0] for row in rows(folder / f"{precision}-dry", "loss")])
    # A loss of about 6 from logits rounded to 8 bits, five steps on: 2**-8 of it each way.
    assert_close(losses, torch.tensor(full), 2**-7)
