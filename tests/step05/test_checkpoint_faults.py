"""What goes wrong with checkpoints, done for real: kills, full disks, damage, and pickles that
run commands."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from step02_mlp_parallel import RankError, run_ranks
from step05_hybrid_dp.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint
from step05_hybrid_dp.manifest import fingerprint

from .checkpoint_fault_ranks import (
    Little,
    crafted,
    full_disk,
    little,
    refused,
    saving_is_refused,
    saving_until_killed,
    values,
)
from .checkpoint_ranks import Place

ALONE = Place(1, 1)


def saved_alone(folder: Path, value: float) -> Path:
    model, optimizer = little(ALONE, value)
    return save_checkpoint(folder, model, optimizer, step=int(value))


def opens_whole(folder: Path, at_least: int) -> int:
    """Every checkpoint loads and is of one save alone; the newest one's step is `at_least` so."""
    model, optimizer = little(ALONE, 0.0)
    for path in (*sorted(folder.glob("step-*")), folder):
        told = load_checkpoint(path, model, optimizer)
        assert values(model, optimizer) == {float(told["step"])}
    assert told["step"] >= at_least
    return int(told["step"])


def refreshed(path: Path) -> None:
    """Make the manifest fit the files again, as an attacker would."""
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"] = {name: fingerprint(path / name) for name in manifest["files"]}
    (path / "manifest.json").write_text(json.dumps(manifest))


def test_killed_at_any_call_that_changes_the_disk(tmp_path: Path) -> None:
    """kill -9 before the 1st, 2nd, … such call of a save that then deletes the one before it (27
    calls when this was written), and in the save after it."""
    steps, halves = [], 0
    for operation in (*range(1, 28), 40):
        folder = tmp_path / str(operation)
        saved_alone(folder, 1.0)
        with pytest.raises(RankError, match="SIGKILL"):
            run_ranks(saving_until_killed, 1, str(folder), None, operation)
        halves += any(folder.glob(".*.tmp"))
        steps.append(opens_whole(folder, 1))
        saved_alone(folder, 9.0)
        assert not list(folder.glob(".*")), "leftovers of the killed save are still there"
    assert halves > 15, "the kills came between saves, not in them"
    assert steps == sorted(steps), steps
    assert set(steps) == {1, 101}


def test_killed_at_random_moments(tmp_path: Path) -> None:
    saved_alone(tmp_path, 1.0)
    moments = random.Random(0)
    for _ in range(6):
        with pytest.raises(RankError, match="SIGKILL"):
            run_ranks(saving_until_killed, 1, str(tmp_path), 0.02 + 0.1 * moments.random(), None)
        opens_whole(tmp_path, 1)


@pytest.mark.parametrize("bad", [0, 1])
def test_full_disk(tmp_path: Path, bad: int) -> None:
    results = run_ranks(full_disk, 2, str(tmp_path), bad)
    for found in results:
        assert found["said"].startswith(f"CheckpointError: rank {bad} of 2: "), found["said"]
        assert "File too large" in found["said"]
        assert found["intact"] == {2.0}, "the training state changed"
        assert found["left"] == ["latest", "step-00000001"], "the temporary folder is still there"
        assert (found["step"], found["older"]) == (1, {1.0})
        assert found["again"] == "step-00000002"


def damage(path: Path, how: str) -> str:
    """Damage the checkpoint; returns what the message must name."""
    shard = path / "__0_0.distcp"
    content = shard.read_bytes()
    if how == "flipped bit":
        middle = len(content) // 2
        shard.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        return "__0_0.distcp is corrupt"
    if how == "cut short":
        shard.write_bytes(content[:-7])
        return "__0_0.distcp has"
    if how == "missing":
        shard.unlink()
        return "__0_0.distcp is missing"
    if how == "state":
        text = (path / "state.json").read_text()
        (path / "state.json").write_text(text.replace('"step": ', '"STEP": '))
        return "state.json is corrupt"
    if how == "no manifest":
        (path / "manifest.json").unlink()
        return "no manifest.json"
    (path / "manifest.json").write_text('{"format": 1, "files"')
    return "manifest.json is damaged"


KINDS = ["flipped bit", "cut short", "missing", "state", "no manifest", "half a manifest"]


@pytest.mark.parametrize("how", KINDS)
def test_a_damaged_checkpoint_is_refused_by_name_and_nothing_is_touched(
    tmp_path: Path, how: str
) -> None:
    path = saved_alone(tmp_path, 5.0)
    named = damage(path, how)
    model, optimizer = little(ALONE, 2.0)
    noise = torch.get_rng_state()
    with pytest.raises(ValueError, match=named):
        load_checkpoint(tmp_path, model, optimizer)
    assert values(model, optimizer) == {2.0}
    assert torch.equal(torch.get_rng_state(), noise)


def test_all_ranks_refuse_what_one_of_them_finds_damaged(tmp_path: Path) -> None:
    """Each file's hash is computed by one rank only; a file that only rank 1 can't see."""
    saved_alone(tmp_path, 3.0)
    for result in run_ranks(refused, 2, str(tmp_path), 1):
        assert result["said"].startswith("Agreed: rank 1 of 2: "), result  # no deadlock
        assert "is missing" in result["said"]
        assert result["untouched"]
    for step, how in ((5.0, "flipped bit"), (6.0, "state")):  # each is another rank's to check
        name = damage(saved_alone(tmp_path, step), how)
        for result in run_ranks(refused, 2, str(tmp_path)):
            assert name in result["said"], result
            assert result["untouched"]


def test_another_model_or_optimizer_is_refused(tmp_path: Path) -> None:
    saved_alone(tmp_path, 5.0)
    for other, named in (
        ("width", "up.weight has shape [8, 4] there and [16, 4] here"),
        ("sgd", "the checkpoint's optimizer is AdamW, this one is SGD"),
    ):
        for result in run_ranks(refused, 2, str(tmp_path), None, other):
            assert result["said"].startswith("Agreed: "), result
            assert named in result["said"]
            assert result["untouched"]
    model = torch.nn.ModuleDict({"up": torch.nn.Linear(4, 8), "new": torch.nn.Linear(2, 2)})
    with pytest.raises(ValueError, match=r"new.bias is not in .*down.bias is unknown here"):
        load_checkpoint(tmp_path, model)
    little_model, _ = little(ALONE, 1.0)
    one_group = torch.optim.AdamW(little_model.parameters())
    with pytest.raises(ValueError, match=r"\[2, 2\] parameters a group there, \[4\] here"):
        load_checkpoint(tmp_path, little_model, one_group)
    with pytest.raises(ValueError, match="no whole checkpoint in"):
        load_checkpoint(tmp_path / "nowhere", little_model)
    bare = save_checkpoint(tmp_path / "bare", little_model, None, step=1)
    with pytest.raises(ValueError, match="saved without an optimizer"):
        load_checkpoint(bare, little_model, one_group)


@pytest.mark.parametrize("file", [".metadata", "__0_0.distcp"])
def test_no_pickle_from_outside_is_run(tmp_path: Path, file: str) -> None:
    """The manifest fits the crafted file: hashes show damage, not who wrote it."""
    path = saved_alone(tmp_path, 5.0)
    ran = tmp_path / "ran"
    (path / file).write_bytes(crafted(str(ran)))
    if file.endswith("distcp"):  # where the index says that a tensor lies
        state = json.loads((path / "state.json").read_text())
        for entry in state["index"].values():
            for chunk in entry["chunks"]:
                chunk.update({"at": 0, "bytes": (path / file).stat().st_size})
        (path / "state.json").write_text(json.dumps(state))
    refreshed(path)
    model, optimizer = little(ALONE, 2.0)
    if file == ".metadata":  # never opened
        load_checkpoint(path, model, optimizer)
    else:
        with pytest.raises(ValueError, match="can't be read"):
            load_checkpoint(path, model, optimizer)
        assert values(model, optimizer) == {2.0}
    assert not ran.exists(), "the command ran"


def test_an_index_that_points_elsewhere_is_refused(tmp_path: Path) -> None:
    path = saved_alone(tmp_path, 5.0)

    def rewritten(**changed: Any) -> None:
        state = json.loads((path / "state.json").read_text())
        state["index"]["model.up.weight"]["chunks"][0].update(changed)
        (path / "state.json").write_text(json.dumps(state))
        refreshed(path)

    def short_stream() -> None:
        state = json.loads((path / "state.json").read_text())
        entry = state["index"]["rng.global.cpu"]
        entry["shape"] = entry["chunks"][0]["sizes"] = [1, 100]
        (path / "state.json").write_text(json.dumps(state))
        refreshed(path)

    model, optimizer = little(ALONE, 2.0)
    original = (path / "state.json").read_text()
    short_stream()
    with pytest.raises(ValueError, match="a random stream is damaged"):
        load_checkpoint(path, model, optimizer)
    assert values(model, optimizer) == {2.0}
    (path / "state.json").write_text(original)
    for changed, named in (
        ({"sizes": [4, 4]}, "up.weight: the checkpoint's chunks don't cover"),
        ({"sizes": [8, 4], "file": "../../elsewhere"}, "unknown files: ../../elsewhere"),
        ({"offsets": "here"}, "state.json is not of this program"),
    ):
        rewritten(**changed)
        with pytest.raises(ValueError, match=named):
            load_checkpoint(path, model, optimizer)
        assert values(model, optimizer) == {2.0}


def test_what_cannot_be_saved_is_refused_on_all_ranks(tmp_path: Path) -> None:
    for said in run_ranks(saving_is_refused, 2, str(tmp_path)):
        assert "2 ranks and no grid" in said["no grid"]
        assert "Agreed: rank 1 of 2: step is -1" in said["step on rank 1"]
        assert "at different steps: [1, 2]" in said["two steps"]
        assert "extra must hold plain values" in said["extra"]
        assert "keep is 0" in said["keep"]
        assert "a parameter of shape [2, 2] that isn't the model's" in said["foreign"]
        assert "up.weight is cut over 2 ranks and the grid's tp_size is 1" in said["another grid"]
        assert "no whole checkpoint" in said["load without grid"]
    assert list(tmp_path.iterdir()) == []
    model, optimizer = little(ALONE, 1.0)
    optimizer.state[model.up.weight]["exp_avg"] = torch.zeros(3)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"'exp_avg' of up.weight has shape \[3\]"):
        save_checkpoint(tmp_path, model, optimizer, step=1)
    assert isinstance(model, Little)
    assert newest_checkpoint(tmp_path) is None
