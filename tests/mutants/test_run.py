"""The runner, on a small package that was made up for it."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from mutants.bank import Mutant
from mutants.copies import Pytest, copy_tracked
from mutants.run import Options, chosen, summary, try_all

CODE = "def twice(x):\n    return 2 * x\n\n\ndef half(x):\n    return x / 2\n"
TESTS = """
import time
from step01_toy.code import half, twice

def test_twice():
    assert twice(2) == 4

def test_half():
    assert half(2) == 1

def test_nothing():
    pass

def hang():
    time.sleep(600)
"""


def mutant(name: str, old: str, new: str, test: str) -> Mutant:
    test = f"tests/step01/test_code.py::{test}"
    return Mutant(1, name, "step01_toy/code.py", "wrong", old, new, (test,), "much", None)


KILLED = mutant("killed", "2 * x", "3 * x", "test_twice")
SURVIVES = mutant("survives", "2 * x", "x + x + 0", "test_twice")
ELSEWHERE = mutant("elsewhere", "x / 2", "x / 3", "test_nothing")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name, text in (
        ("step01_toy/__init__.py", ""),
        ("step01_toy/code.py", CODE),
        ("tests/step01/test_code.py", TESTS),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    subprocess.run(["git", "add", "."], cwd=root, check=True)
    (root / "untracked.txt").write_text("not part of it")
    return root


def test_killed_survived_and_killed_elsewhere(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    verdicts = try_all([KILLED, SURVIVES, ELSEWHERE], project, limit=100.0)
    assert [v.state for v in verdicts] == ["killed", "survived", "elsewhere"]
    text, status = summary(verdicts, project)
    assert status == 1
    assert "SURVIVED  survives: wrong (much)" in text
    assert "-    return 2 * x\n+    return x + x + 0" in text
    assert "elsewhere: name tests/step01/test_code.py::test_half, which alone turned red" in text
    assert "2 of 3 planted faults were noticed" in text
    assert summary(verdicts[:1], project) == ("1 of 1 planted faults were noticed", 0)
    assert (project / "step01_toy/code.py").read_text() == CODE, "the original was touched"
    assert "3/3" in capfd.readouterr().err, "a progress bar"


def test_a_test_that_is_red_anyway_proves_nothing(project: Path) -> None:
    (project / "step01_toy/code.py").write_text(CODE.replace("x / 2", "x / 3"))
    red = mutant("m", "2 * x", "3 * x", "test_half")
    with pytest.raises(ValueError, match=r"(?s)red without any fault \(red\).*test_half"):
        try_all([red], project, limit=100.0)
    with pytest.raises(ValueError, match="'rotten' is refused"):
        try_all([mutant("rotten", "5 * x", "x", "test_twice")], project)


def test_what_hangs_is_ended_and_what_cannot_run_is_told_apart(project: Path) -> None:
    path = project / "tests/step01/test_code.py"
    path.write_text(path.read_text().replace("def hang", "def test_hang"))
    began = time.monotonic()
    assert Pytest()(project, ["tests/step01/test_code.py::test_hang"], 1.0).state == "slow"
    assert time.monotonic() - began < 60.0
    assert Pytest()(project, ["tests/step01/test_code.py::test_none"], 100.0).state == "broken"
    stopped = Pytest()
    stopped.stop()
    assert stopped(project, ["tests"], 100.0).output == "stopped"


def test_only_what_git_tracks_is_copied(project: Path, tmp_path: Path) -> None:
    (project / "data").mkdir()
    copy_tracked(project, tmp_path / "copy", without=["tests"])
    assert sorted(p.name for p in (tmp_path / "copy").iterdir()) == ["data", "step01_toy"]
    assert (tmp_path / "copy/data").is_symlink()
    with pytest.raises(ValueError, match="is not a git checkout"):
        copy_tracked(tmp_path, tmp_path / "other")


def test_what_is_asked_for_and_isnt_there() -> None:
    bank = [KILLED, SURVIVES]
    assert chosen(bank, Options(name="killed")) == [KILLED]
    assert chosen(bank, Options(step=1)) == bank
    with pytest.raises(ValueError, match=r"no faults for step 7; there are some for \[1\]"):
        chosen(bank, Options(step=7))
    with pytest.raises(ValueError, match="called 'kiled'; did you mean killed"):
        chosen(bank, Options(name="kiled"))
    with pytest.raises(ValueError, match="workers is 0"):
        chosen(bank, Options(workers=0))
