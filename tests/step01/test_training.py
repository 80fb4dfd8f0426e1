from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from step01_single_gpu import GPT, PAPER_MODELS, GPTConfig, checkpoint, train
from step01_single_gpu.machine import training_flops
from step01_single_gpu.optimizer import make_optimizer
from step01_single_gpu.programs import StopRequest, told_kindly
from step01_single_gpu.run_folder import Metrics, new_run, newest_run
from step01_single_gpu.sample import load_run
from tests.compare import assert_close

ROOT = Path(__file__).parents[2]


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> train.Options:
    """A run of a tiny model on a tiny text, dropout on; the real program, end to end."""
    tiny = GPTConfig(1, 8, hidden_size=8, num_layers=1, num_heads=2)
    monkeypatch.setitem(PAPER_MODELS, "tiny", tiny)
    monkeypatch.setattr(train, "gemm_peak", lambda *_: 1e9)
    text = tmp_path / "text.txt"
    text.write_text("one line of a text, and not a long one\n" * 200)
    return train.Options(
        model="tiny", steps=10, batch_size=4, lr=1e-2, warmup=3, valid_every=5,
        checkpoint_every=100, corpus=str(text), root=tmp_path / "data",
    )  # fmt: skip


def weights(run: Path) -> dict[str, torch.Tensor]:
    state = checkpoint.read(run / "checkpoint.pt")
    moments = state["optimizer"]["state"]
    found = {f"{i}.{k}": v for i, row in moments.items() for k, v in row.items()}
    return {**state["model"], **found, "rng": state["rng"]}


def test_a_run_leaves_all_its_files_and_learns(
    options: train.Options, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train.main(dataclasses.replace(options, run=tmp_path / "run", steps=60, lr=3e-2))
    names = {path.name for path in run.iterdir()}
    assert names == {"checkpoint.pt", "config.json", "metrics.jsonl", "loss.png", "sample.txt"}
    assert (run / "loss.png").read_bytes().startswith(b"\x89PNG")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in rows if "loss" in r] == list(range(1, 61))
    assert [r["step"] for r in rows if "valid_loss" in r] == list(range(5, 61, 5))
    assert rows[-1]["valid_loss"] < rows[-1]["unigram_loss"] - 0.5
    assert (run / "sample.txt").read_text().startswith("Fellow citizens,")
    assert f"{rows[-1]['unigram_loss']:.3f}" in capsys.readouterr().out
    model, data = load_run(run)
    loss = train.mean_loss(model, data)
    assert loss == pytest.approx(rows[-1]["valid_loss"], rel=1e-6)


def test_resume_is_bit_exact_with_dropout_on(options: train.Options, tmp_path: Path) -> None:
    straight = train.main(dataclasses.replace(options, run=tmp_path / "straight"))
    first = dataclasses.replace(options, run=tmp_path / "parts", checkpoint_every=5)
    kept: list[bytes] = []
    original = checkpoint.save

    def save_and_keep(path: Path, *args: Any, **kwargs: Any) -> None:
        original(path, *args, **kwargs)
        kept.append(path.read_bytes())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save", save_and_keep)
        run = train.main(first)
    (run / "checkpoint.pt").write_bytes(kept[0])  # as if it had died after step 5
    torch.manual_seed(99)
    train.main(train.Options(resume=run))
    for name, tensor in weights(straight).items():
        assert torch.equal(weights(run)[name], tensor), name
    one, other = (
        [{k: v for k, v in json.loads(line).items() if k != "tokens_per_second"}
         for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (straight, run)
    )  # fmt: skip
    assert one == other, "a resumed run's metrics are those of a straight one, none twice"


def test_micro_batches_give_the_same_step(tiny: GPTConfig, float64: None) -> None:
    batch = (torch.randint(37, (6, 11)), torch.randint(37, (6, 11)))
    results = []
    for size in (None, 1, 2, 3):
        model = GPT(tiny)
        options = train.Options(batch_size=6, micro_batch_size=size, clip=0.05)
        loss, norm = train.train_step(model, make_optimizer(model), batch, options, 1e-3)
        results.append([torch.tensor([loss, norm]), *model.parameters()])
        assert norm > 0.05, "the clip must act for this to test it"
    for other in results[1:]:
        for got, expected in zip(other, results[0], strict=True):
            assert_close(got, expected, 1e-10)


def test_the_gradient_is_clipped_over_the_whole_model(tiny: GPTConfig) -> None:
    model, batch = GPT(tiny), (torch.randint(37, (2, 11)), torch.randint(37, (2, 11)))
    train.train_step(model, make_optimizer(model), batch, train.Options(clip=0.1), 0.0)
    total = sum((p.grad.double() ** 2).sum() for p in model.parameters() if p.grad is not None)
    assert float(total) ** 0.5 == pytest.approx(0.1, rel=1e-4)


def test_bf16_and_recompute_train_too(options: train.Options, tmp_path: Path) -> None:
    plain, bf16, recomputed = (
        train.main(dataclasses.replace(options, run=tmp_path / name, **change))
        for name, change in (
            ("a", {}), ("b", {"precision": "bf16"}), ("c", {"recompute": True}),
        )
    )  # fmt: skip
    for name, tensor in weights(plain).items():
        assert torch.equal(weights(recomputed)[name], tensor), name
    assert checkpoint.read(bf16 / "checkpoint.pt")["model"]["ln.weight"].dtype == torch.float32
    losses = [Metrics(run, until=10).rows[9]["loss"] for run in (plain, bf16)]
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=2e-2)


def test_nothing_is_overwritten(options: train.Options, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(ValueError, match=r"run exists already; .*--resume"):
        train.main(dataclasses.replace(options, run=tmp_path / "run"))
    assert not list((tmp_path / "run").iterdir())
    assert new_run(None, "m", tmp_path) == tmp_path / "m-001"
    assert new_run(None, "m", tmp_path) == tmp_path / "m-002"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "gpt2-8b"}, "no model 'gpt2-8b'; near it: gpt2-8.3b"),
        ({"batch_size": 6, "micro_batch_size": 4}, "6 is not a multiple of --micro_batch_size 4"),
        ({"steps": 0}, "--steps is 0"),
    ],
)
def test_options_that_cannot_work_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train.Options(**change)


def test_a_corpus_shorter_than_a_window_leaves_no_folder(
    options: train.Options, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="use more text or a smaller seq_length"):
        train.main(dataclasses.replace(options, seq_length=100_000, run=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_resume_refuses_what_it_cannot_continue(options: train.Options, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"not a run folder: it has no config\.json"):
        train.main(train.Options(resume=tmp_path))
    run = train.main(dataclasses.replace(options, run=tmp_path / "run", steps=2))
    with pytest.raises(ValueError, match="has done its 2 steps; give more with --steps"):
        train.main(train.Options(resume=run))
    with pytest.raises(ValueError, match=r"--lr is 0\.5 but the run has 0\.01"):
        train.main(train.Options(resume=run, lr=0.5))
    train.main(train.Options(resume=run, steps=4))
    assert checkpoint.read(run / "checkpoint.pt")["step"] == 4
    whole = (run / "checkpoint.pt").read_bytes()
    for content, message in (
        (whole[: len(whole) // 2], "not a whole checkpoint"), (b"", "not a whole checkpoint"),
    ):  # fmt: skip
        (run / "checkpoint.pt").write_bytes(content)
        with pytest.raises(ValueError, match=message):
            train.main(train.Options(resume=run, steps=6))
    torch.save({"other": 1}, run / "checkpoint.pt")
    with pytest.raises(ValueError, match="not a checkpoint of this program"):
        train.main(train.Options(resume=run, steps=6))
    (run / "checkpoint.pt").unlink()
    with pytest.raises(ValueError, match="there is no checkpoint"):
        train.main(train.Options(resume=run, steps=6))


def test_a_checkpoint_of_another_model_is_refused(tiny: GPTConfig, tmp_path: Path) -> None:
    model = GPT(tiny)
    checkpoint.save(tmp_path / "c.pt", model, make_optimizer(model), step=1)
    other = GPT(dataclasses.replace(tiny, hidden_size=12))
    with pytest.raises(ValueError, match="of another model"):
        checkpoint.load_weights(checkpoint.read(tmp_path / "c.pt"), other)


def test_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"model": Evil(), "optimizer": 0, "rng": 0}, tmp_path / "c.pt")
    with pytest.raises(ValueError, match="not a whole checkpoint"):
        checkpoint.read(tmp_path / "c.pt")
    assert not (tmp_path / "ran").exists()


def test_a_loss_that_is_not_finite_stops_the_run(options: train.Options, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the loss is (nan|inf) at step \d+ .* lower --lr"):
        train.main(dataclasses.replace(options, lr=1e30, clip=1e30, run=tmp_path / "run"))


def test_ctrl_c_leaves_a_checkpoint_to_go_on_from(options: train.Options, tmp_path: Path) -> None:
    code = (
        "from step01_single_gpu import train, GPTConfig, PAPER_MODELS;"
        "PAPER_MODELS['tiny'] = GPTConfig(1, 8, 8, 1, 2);"
        f"train.main(train.Options(model='tiny', steps=10**6, corpus={options.corpus!r}, "
        f"root=train.Path({str(options.root)!r}), run=train.Path({str(tmp_path / 'run')!r})))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    metrics = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.is_file() and metrics.stat().st_size):
        assert time.monotonic() < deadline, "the run did not start"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 0
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert checkpoint.read(tmp_path / "run" / "checkpoint.pt")["step"] == max(steps)


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_stops(name: signal.Signals) -> None:
    before = signal.getsignal(name)
    with StopRequest() as stop:
        signal.raise_signal(name)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(name)
    assert signal.getsignal(name) is before


def test_newest_run_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no run with a checkpoint"):
        newest_run(tmp_path)


def test_a_wrong_request_is_one_line_and_a_bug_is_a_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as end, told_kindly():
        raise ValueError("seq_length is 0")
    assert end.value.code == 2
    assert capsys.readouterr().err == "error: seq_length is 0\n"
    with pytest.raises(RuntimeError), told_kindly():
        raise RuntimeError("a bug")


def test_flops_are_the_second_papers_formula() -> None:
    """arXiv 2104.04473: 96 b s l h² (1 + s/6h + v/16lh) with recompute, for one iteration."""
    c = PAPER_MODELS["gpt2-1.2b"]
    h, s, v, layers = c.hidden_size, c.seq_length, c.vocab_size, c.num_layers
    paper = 96 * 8 * s * layers * h * h * (1 + s / (6 * h) + v / (16 * layers * h))
    assert training_flops(c, 8 * s, recompute=True) == pytest.approx(paper)
