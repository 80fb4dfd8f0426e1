"""The program's commands: bad input, the room's log, the doctor, the stick, the key in the view."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from zipfile import ZipFile

import pytest

from workshop import board, doctor, keys, make_exercises, offline, progress, room
from workshop.__main__ import COMMANDS, RUN, main
from workshop.exercises import exercise
from workshop.warm import busy

from .test_exercises import stub_file, with_body

ROOT = Path(__file__).parents[2]

# arguments -> what the answer must say
BAD = {
    "check 7": "there is no step 7; the steps are 1, 2",
    "check two": "'two' is not a step; say one of 1, 2",
    "check": "'' is not a step",
    "check 2 2.9": "step 2 has no exercise 2.9; it has 2.1, 2.2",
    "hint 2.9": "there is no exercise 2.9; near it: 2",
    "hint": "say which exercise, such as 2.1",
    "play cutt": "'cutt' is not an exercise; write its step and number, such as 2.1 (2.6 cut",
    "room": "say which logs",
    "offline": "say which folder",
    "log loud": "'loud': say on or off",
    "room /nothing/there": "/nothing/there: No such file or directory",
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_answered_with_what_would_work(
    words: str,
    work: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(words.split()) == 2
    assert BAD[words] in capsys.readouterr().out


def test_unknown_commands_and_options_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["chek", "2"], "there is no command 'chek'; near it: check"),
        (["check", "2", "--patient"], "check doesn't know --patient"),
    ):
        with pytest.raises(SystemExit):
            main(words)
        assert said in capsys.readouterr().err
    assert COMMANDS.keys() == RUN.keys()


def test_where_nothing_can_be_written_it_is_said(
    work: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Root may write anywhere, so a file stands where the folder should be."""
    (work / "in the way").write_text("")
    monkeypatch.setattr(make_exercises, "WORK", work / "in the way" / "work")
    monkeypatch.setattr(progress, "STATE", work / "in the way" / "work" / "progress.json")
    assert main(["exercise", "2"]) == 2
    assert "Is the folder yours, and is there room on the disk?" in capsys.readouterr().out
    assert main(["hint", "2.1"]) == 0, "a hint is given all the same"
    said = capsys.readouterr()
    assert "hint 1 of 3" in said.out
    assert "(progress can't be kept: " in said.err


def test_no_permission_has_words_of_its_own() -> None:
    from workshop.__main__ import _about_file

    said = _about_file(PermissionError(13, "Permission denied", "work/x.py"))
    assert said.startswith("work/x.py: no permission to write there.")


def test_a_torn_progress_file_is_begun_anew(work: Path) -> None:
    for text in ("{", "[]", '{"passed": 3}'):
        progress.STATE.write_text(text)
        assert progress.load()["passed"] == {}


def log(path: Path, *rows: tuple[int, str, str, list[str]]) -> str:
    keys = ("time", "exercise", "state", "diagnosis")
    path.write_text("\n".join(json.dumps(dict(zip(keys, row, strict=True))) for row in rows))
    return str(path)


def test_the_room_sees_who_is_stuck_on_what(tmp_path: Path) -> None:
    a = log(tmp_path / "a", (0, "2.4", "red", ["sum=mean"]), (600, "2.4", "red", ["bias=before"]))
    b = log(tmp_path / "b", (0, "2.1", "red", []), (60, "2.1", "green", []),
            (60, "2.4", "red", ["bias=before"]), (300, "2.4", "red", ["bias=before"]))  # fmt: skip
    c = log(tmp_path / "c", (0, "2.1", "red", []), (120, "2.1", "red", []), (130, "9.9", "red", []))
    with open(c, "a") as file:
        file.write('\n{"time": 1')  # torn
    lines = room.room([a, b, c]).splitlines()
    assert lines[0] == "3 logs"
    assert lines[2] == "2 stuck on 2.4 RowParallelLinear.forward for 7 minutes (median)"
    assert "step02_mlp_parallel/README.md" in "\n".join(lines[3:6])
    assert "1 stuck on 2.1 f for 2 minutes (median)" in lines
    assert "   without a diagnosis: look over a shoulder" in lines
    assert lines[-3:] == ["2.1             1       1", "2.4             0       2",
                          "9.9             0       1"]  # fmt: skip
    (tmp_path / "d").write_text("no log\n")
    with pytest.raises(ValueError, match="is not a log of the workshop"):
        room.room([str(tmp_path / "d")])


def test_the_log_is_opt_in_and_has_no_names(
    work: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = make_exercises.work_file(2)
    path.write_text(stub_file(2).replace('    raise NotImplementedError("2.6")', "    return full"))
    assert main(["check", "2", "2.6"]) == 1
    assert not progress.LOG.exists()
    assert main(["log", "on"]) == 0
    assert main(["check", "2"]) == 1
    assert main(["log"]) == 0
    assert "log.jsonl has 1 lines" in capsys.readouterr().out
    (row,) = map(json.loads, progress.LOG.read_text().splitlines())
    assert row.keys() == {"time", "exercise", "state", "diagnosis"}
    assert row["exercise"] == "2.6"
    assert "1 stuck on 2.6 cut" in room.room([str(progress.LOG)])
    assert main(["log", "off"]) == 0
    assert not progress.LOG.exists()


def test_the_doctor_names_a_fix_and_has_a_text_to_hand_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every check but the ranks, which a test of their own runs; then all that can be wrong."""
    monkeypatch.setitem(doctor.CHECKS, "gloo", lambda: (True, "two ranks", ""))
    doctor.examine()
    said = capsys.readouterr().out
    assert [line.split()[1] for line in said.splitlines()[:8]] == [
        "Python", ".venv", "torch", "start", "gloo", "network", "disk", "cores",
    ]  # fmt: skip
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none0")
    monkeypatch.setattr(doctor.sys, "prefix", "/somewhere/conda")
    monkeypatch.setattr(doctor, "ROOM", 2**60)
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda _: "2.4.1+cpu")
    monkeypatch.setitem(doctor.CHECKS, "gloo", lambda: 1 / 0)
    assert doctor.examine() == 1
    said, _, handed = capsys.readouterr().out.partition("For the instructor:")
    assert said.count("    → ") == 5
    assert "✘ network        there is no interface none0\n    → GLOO_SOCKET_IFNAME names no" in said
    assert "✘ gloo           ZeroDivisionError: division by zero" in said
    assert len(re.findall(r"^✔|^✘", handed, re.MULTILINE)) == 8


def test_what_hangs_does_not_hold_the_doctor_up(monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    assert doctor._apart(["-c", "import time; time.sleep(60)"], 0.3) == (
        -1, "did not come back in 0.3 s",
    )  # fmt: skip
    assert not doctor._within(0.1, lambda: time.sleep(5))
    assert doctor._within(5.0, lambda: None)
    assert doctor._loopback()
    monkeypatch.setattr(doctor, "SHORT", 0.1)
    monkeypatch.setattr(doctor.socket, "gethostbyname", lambda _: time.sleep(5))
    good, said, fix = doctor._network()
    assert not good
    assert "leads nowhere" in said
    assert "/etc/hosts" in fix
    assert time.monotonic() - began < 4
    limits = 8.0 + doctor.PATIENCE + doctor.SHORT
    assert doctor.PATIENCE + 2 * doctor.SHORT < 20 < limits + 2, "ranks that hang alone: in time"


def test_two_ranks_add_for_real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PATIENCE", doctor.PATIENCE * busy())  # other tests run beside it
    good, said, _ = doctor._ranks()
    assert good, said
    assert said.startswith("two ranks add 1 + 1 = 2")


def test_a_stick_has_wheels_text_and_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, stick, ran = tmp_path / "project", tmp_path / "a stick", []
    monkeypatch.setattr(offline, "run", ran.append)
    for name in ("workshop/work/mine.py", "workshop/load.py", ".venv/x", "data/downloads/text.whl",
                 "a/__pycache__/b.pyc", "x.egg-info/y", "runs/one/loss.png"):  # fmt: skip
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("")
    for name in ("pyproject.toml", "constraints.txt"):
        (project / name).write_bytes((ROOT / name).read_bytes())
    monkeypatch.setattr(offline, "ROOT", project)
    said = offline.make_stick(stick, "win_amd64", "3.12")
    assert "is ready for win_amd64, Python 3.12" in said
    (command,) = ran
    for word in ("setuptools>=77", "pytest", "torch>=2.13", "--only-binary=:all:", "win_amd64"):
        assert word in command
    assert (stick / "data" / "downloads" / "text.whl").is_file()
    names = ZipFile(stick / "repository.zip").namelist()
    assert sorted(name.partition("/")[2] for name in names) == [
        "constraints.txt", "pyproject.toml", "workshop/load.py",
    ]  # fmt: skip
    text = (stick / "README.md").read_text()
    assert "make setup OFFLINE=/path/to/this/folder" in text
    monkeypatch.undo()
    with pytest.raises(ValueError, match="pip could not fetch the wheels: no way"):
        offline.run([sys.executable, "-c", "import sys; sys.exit('no way')"])


def test_the_container_sets_itself_up_with_commands_that_exist() -> None:
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    for command in container["postCreateCommand"].split(" && "):
        words = command.split()
        subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, check=True, capture_output=True)


def test_watch_checks_at_every_save_and_shows_a_hint_when_asked(
    work: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A save, another that keeps the size, h, q: as if somebody sat there."""
    path = make_exercises.work_file(2)
    path.write_text(stub_file(2))
    right = with_body(stub_file(2), exercise("2.6"))
    moves = iter(["", "save", "", "h", "other", "", "q"])

    def key() -> str:
        move = next(moves)
        if move == "save":
            path.write_text(right)
        if move == "other":
            path.write_text(right.replace("part.clone", "full.clone"))
        return move if move in ("h", "q") else ""

    class Pressed:
        def __enter__(self) -> object:
            return key

        def __exit__(self, *error: object) -> None: ...

    monkeypatch.setattr(keys, "pressed", Pressed)
    assert board.watch(2) == 0
    said = capsys.readouterr().out
    views = said.split("q or ^C: the end)")
    assert len(views) == 4
    assert "0 of 6. Next: 2.1 f" in views[0]
    assert "✔ 2.6 cut" in views[1]
    assert "step 2   2.1 ·" in views[1], "progress is in the same view"
    assert "h: a hint for 2.1; " in views[1], "and so is the hint's key"
    assert "2.1, hint 1 of 3" in views[2]
    assert "✘ 2.6 cut" in views[2]


def test_a_key_is_read_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "r") as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        with keys.pressed() as key:
            assert key() == ""
            os.write(ours, b"h")
            ready = threading.Event()
            ready.wait(0.05)
            assert key() == "h"
            assert key() == ""
    os.close(ours)
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        with keys.pressed() as key:
            assert key() == ""
