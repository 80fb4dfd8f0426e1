"""A learner's day from first file to 100 %, and the plan of the README, its commands in order."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from workshop import __main__ as program
from workshop import board, doctor, make_exercises, progress, train_mine
from workshop.exercises import exercise
from workshop.make_exercises import usable
from workshop.probes.registry import PLACES
from workshop.texts import text

from .test_exercises import IDS, STEPS, with_body

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
README = (ROOT / "workshop" / "README.md").read_text()
SHARE = 0.6  # of a slot that may be planned


def test_from_the_first_file_to_a_full_board(
    work: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every step: create, see it fail, then all real bodies; the board says 100 %."""
    for step in STEPS:
        assert program.main(["exercise", str(step)]) == 0
        path = make_exercises.work_file(step)
        first = usable(step)[0]
        stub = f'    raise NotImplementedError("{first.id}")'
        path.write_text(path.read_text().replace(stub, "    return None"))
        assert program.main(["check", str(step), first.id]) == 1
        assert f"✘ {first.id}" in capsys.readouterr().out
        source = make_exercises.contents(step, usable(step))
        for e in usable(step):
            source = with_body(source, e)
        path.write_text(source)
        assert board.check_step(step) == 0, capsys.readouterr().out
        assert f"all of step {step} is yours" in capsys.readouterr().out
    assert "100 %" in progress.board()


def slots() -> list[tuple[int, int, str, list[str], str]]:
    """(from, to, what, commands, stated minutes) of the two-hour plan."""
    rows = re.findall(r"^\| (\d+)–(\d+) \| (.*?) \| (.*?) \| (.*?) ?\|$", README, re.MULTILINE)
    return [
        (int(a), int(b), what, re.findall(r"`(make .*?)`", cell), stated)
        for a, b, what, cell, stated in rows
    ]


def test_the_plan_has_no_hole_and_room_to_breathe() -> None:
    plan = slots()
    assert plan[0][0] == 0
    assert plan[-1][1] == 120
    assert all(row[1] == following[0] for row, following in itertools.pairwise(plan))
    planned = set()
    for first, last, what, _, stated in plan:
        ids = re.findall(r"\b\d\.\d\b", what)
        planned |= set(ids)
        minutes = sum(text(id).minutes for id in ids)
        assert str(minutes or "") == stated, f"{first}–{last} states {stated}, the texts {minutes}"
        assert minutes <= SHARE * (last - first), f"{first}–{last}: {minutes} minutes"
    assert planned == {"2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "4.2"}


def test_the_plans_commands_run_in_this_order(
    work: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a learner who has finished by the end of each slot; the last command shortened."""
    monkeypatch.setitem(doctor.CHECKS, "gloo", lambda: (True, "tested elsewhere", ""))
    monkeypatch.setattr(board, "watch", board.check_step)  # it would go on until q
    monkeypatch.setattr(train_mine, "ROOT", work)
    (work / "text.txt").write_text("".join(f"line {i} of a text\n" for i in range(400)))
    short = ["--steps", "1", "--corpus", str(work / "text.txt")]
    monkeypatch.setattr(train_mine, "Wanted", _small(train_mine.Wanted))
    for _, _, what, commands, _ in slots():
        for command in commands:
            arguments = words(command)
            if arguments[0] == "train":
                arguments += short
            assert program.main(arguments) == 0 or arguments == ["doctor"], command
        for id in re.findall(r"\b\d\.\d\b", what):
            path = make_exercises.work_file(int(id[0]))
            if path.is_file():
                path.write_text(with_body(path.read_text(), exercise(id)))
    said = capfd.readouterr().out
    assert "2.1, hint 1 of 3" in said
    assert "██░░░░ 2 of 6" in said
    assert "The curves are equal" in said
    assert "7 of" in said.splitlines()[-1]


def _small(wanted: type) -> object:
    return lambda *given, **named: wanted(*given, **named, seq_length=8, batch_size=2)


def words(command: str) -> list[str]:
    """The workshop's arguments that make would start."""
    expanded = subprocess.run(
        ["make", "-n", "-o", ".venv/ready", *shlex.split(command)[1:]],
        capture_output=True, text=True, cwd=ROOT, check=True,
    ).stdout  # fmt: skip
    (found,) = set(re.findall(r"-m workshop ([^;\n]*)", expanded))
    return shlex.split(found)


def test_the_table_of_what_is_taught_is_the_texts() -> None:
    rows = dict(re.findall(r"^\| (\d\.\d) `.*?` \| (.*?) \|$", README, re.MULTILINE))
    assert rows == {id: text(id).teaches for id in IDS if id in PLACES}


def test_from_a_path_with_spaces_inside_conda_and_without_make(tmp_path: Path) -> None:
    """A copy of the project, where nothing but the copy's own files is used."""
    copy = tmp_path / "my own  copy"
    copy.mkdir()
    for name in ("step01_single_gpu", "step02_mlp_parallel", "step03_attention_parallel",
                 "step04_embeddings_loss", "step05_hybrid_dp", "step06_bert_layernorm", "workshop",
                 "tests", "tools"):  # fmt: skip
        ignored = shutil.ignore_patterns("__pycache__", "work")
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy2(ROOT / name, copy / name)
    (copy / ".venv").symlink_to(ROOT / ".venv")
    environment = {**os.environ, "CONDA_PREFIX": "/opt/conda", "CONDA_DEFAULT_ENV": "base",
                   "PYTHONPATH": ""}  # fmt: skip

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, check=False
        )

    made = run("make", "-o", ".venv/ready", "exercise-step02")
    assert made.returncode == 0, made.stderr
    path = copy / "workshop" / "work" / "step02_mlp_parallel.py"
    path.write_text(with_body(path.read_text(), exercise("2.1")))
    checked = run("make", "-o", ".venv/ready", "check-step2")
    assert "✔ 2.1 f" in checked.stdout, checked.stdout + checked.stderr
    assert "together (2.1): the MLP made of them equals the whole one" in checked.stdout
    without = run(".venv/bin/python", "-m", "workshop", "progress")
    assert "2.1 ✔" in without.stdout
    assert not (copy / "data").exists(), "step 2 needs no data"


def test_the_makefile_has_nothing_newer_than_make_3_81() -> None:
    """What later versions brought, and a Mac's make takes for something else."""
    text = (ROOT / "Makefile").read_text()
    newer = r"!=|::=|^undefine|&:|\.(ONESHELL|SHELLSTATUS|EXTRA_PREREQS)|\$\((file|guile|let) "
    assert not re.search(newer, text, re.MULTILINE)
