"""Real processes under the real torchrun, killed in the middle of the work."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from step01_single_gpu.config import PAPER_MODELS
from step02_mlp_parallel import run_ranks
from step05_hybrid_dp.options import Options, plain
from tests.step05 import train_ranks

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
SOON = 40.0  # seconds: many times what it takes on an idle machine


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("torchrun")
    train_ranks.write_text(path)
    (path / "pids").mkdir()
    return path


@pytest.fixture(autouse=True)
def tiny_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PAPER_MODELS, "tiny", train_ranks.TINY)


def launched(folder: Path, given: Options, step_seconds: float = 0.0) -> subprocess.Popen[str]:
    """torchrun on two ranks with these options; its output is in folder/out."""
    default = plain(Options())
    words = []
    for name, value in plain(given).items():
        if value != default[name]:
            words += [f"--{name.replace('_', '-')}", str(value)]
    for pid in (folder / "pids").iterdir():
        pid.unlink()
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "STEP_SECONDS": str(step_seconds),
        "PIDS": str(folder / "pids"),
    }  # fmt: skip
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "--shutdown-timeout", "20", "-m", "--", "tests.step05.program", *words,
    ]  # fmt: skip
    with open(folder / "out", "w") as out:
        return subprocess.Popen(
            command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, text=True, env=environment
        )


def steps_done(run: Path) -> int:
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    return max((json.loads(line)["step"] for line in lines if line.endswith("}")), default=0)


def wait_for_step(run: Path, step: int, process: subprocess.Popen[str], folder: Path) -> None:
    deadline = time.monotonic() + 2 * SOON
    while steps_done(run) < step:
        assert process.poll() is None, (folder / "out").read_text()
        assert time.monotonic() < deadline, (folder / "out").read_text()
        time.sleep(0.05)


def ranks(folder: Path) -> list[int]:
    return [int((folder / "pids" / str(rank)).read_text()) for rank in range(2)]


def all_gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + SOON
    while time.monotonic() < deadline:
        if not any(_alive(pid) for pid in pids):
            return True
        time.sleep(0.1)
    return False


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.is_file() and stat.read_text().split(")")[1].split()[0] == "Z")


def test_killed_then_asked_to_stop_then_finished_is_the_run_nobody_disturbed(folder: Path) -> None:
    """kill -9 of a rank; a restart that torchrun gets a SIGTERM in; and the rest: bit for bit."""
    straight, run = folder / "straight", folder / "disturbed"
    given = train_ranks.options(folder, tp=2, dp=1, steps=30, checkpoint_every=4, valid_every=100)
    run_ranks(train_ranks.run, 2, dataclasses.replace(given, run=straight))

    process = launched(folder, dataclasses.replace(given, run=run), step_seconds=0.1)
    wait_for_step(run, 9, process, folder)
    pids = ranks(folder)
    began = time.monotonic()
    os.kill(pids[1], signal.SIGKILL)
    assert process.wait(SOON) != 0
    assert all_gone(pids)
    assert time.monotonic() - began < SOON
    saved = sorted(path.name for path in (run / "checkpoints").glob("step-*"))
    assert saved[-1] >= "step-00000008", "more was lost than the steps since the last checkpoint"

    process = launched(folder, Options(resume=run), step_seconds=0.1)
    wait_for_step(run, 14, process, folder)
    process.send_signal(signal.SIGTERM)
    assert process.wait(SOON) != 0, "torchrun itself returns 1"
    assert (run / "RESTART").read_text().startswith("stopped after step")
    stopped = steps_done(run)
    assert (run / "checkpoints" / f"step-{stopped:08d}").is_dir(), "saved where it stopped"

    run_ranks(train_ranks.run, 2, Options(resume=run))
    first, second = train_ranks.weights(straight), train_ranks.weights(run)
    assert all(torch.equal(second[name], first[name]) for name in first)


def test_no_rank_survives_its_launcher(folder: Path) -> None:
    run = folder / "orphans"
    given = train_ranks.options(folder, tp=1, dp=2, steps=1000, run=run)
    process = launched(folder, given, step_seconds=0.1)
    wait_for_step(run, 1, process, folder)
    pids = ranks(folder)
    process.kill()
    process.wait()
    assert all_gone(pids)


def test_bad_input_is_said_once_and_all_leave(folder: Path) -> None:
    given = train_ranks.options(folder, tp=1, dp=2, batch_size=7)
    process = launched(folder, given)
    assert process.wait(2 * SOON) != 0
    said = (folder / "out").read_text()
    assert said.count("error: --batch_size 7 doesn't divide by dp 2: 6 or 8 would") == 1
    assert "Traceback (most recent call last)" not in said.split("torch/distributed")[0]
    assert not any(path.name.startswith("tiny-") for path in folder.iterdir())
