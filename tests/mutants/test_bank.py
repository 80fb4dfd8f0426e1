"""The bank fits the code: nothing is run here, so this is a matter of seconds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mutants.bank import ROOT, Mutant, check, load, place, planted

ENTRY = """
[[mutant]]
name = "{name}"
file = "code.py"
fault = "wrong"
old = "{old}"
new = "2"
tests = ["test_code.py::test_one"]
{rest}
"""


def test_the_bank_fits_the_code() -> None:
    bank = load()
    assert check(bank) == []
    assert len(bank) >= 60
    for step in range(1, 7):
        assert sum(mutant.step == step and mutant.story is not None for mutant in bank) >= 3
    assert all(mutant.fault[0].islower() or mutant.fault[0] in "QD[B" for mutant in bank)


@pytest.mark.long
def test_every_test_that_is_named_exists() -> None:
    """Those in brackets too, which only pytest knows."""
    named = sorted({test for mutant in load() for test in mutant.tests})
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "",
         "-p", "no:cacheprovider", *named],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("mutant", [m for m in load() if m.story], ids=lambda m: m.name)
def test_stories_are_told_and_hints_give_no_code_away(mutant: Mutant) -> None:
    story = mutant.story
    assert story is not None
    assert len(story.hints) == 3
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", report) for report in story.reports)
    assert story.reports
    lines = [line.strip() for line in (mutant.old + "\n" + mutant.new).splitlines()]
    for said in (*story.hints, mutant.fault):
        assert not [line for line in lines if len(line) > 3 and line in said], said


def test_a_fault_is_where_the_change_is() -> None:
    places = {mutant.name: place(mutant) for mutant in load()}
    assert places["f-without-all-reduce"] == "step02_mlp_parallel/operators.py, _F.backward"
    assert places["g-sums-again"] == "step02_mlp_parallel/operators.py, _G.backward"


def bank_of(folder: Path, *entries: str) -> list[Mutant]:
    (folder / "step01.toml").write_text("".join(entries))
    return load(folder)


def test_a_mutant_that_no_longer_fits_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("a = 1\nb = 3\nc = 3\n")
    (tmp_path / "test_code.py").write_text("def test_one(): pass\n")
    why = 'cost = "much"'
    bank = bank_of(
        tmp_path,
        ENTRY.format(name="good", old="1", rest=why),
        ENTRY.format(name="gone", old="7", rest=why),
        ENTRY.format(name="twice", old="3", rest=why),
        ENTRY.format(name="nonsense", old="a =", rest=why),
        ENTRY.format(name="untested", old="1", rest=why).replace("_one", "_other"),
        ENTRY.format(name="good", old="b", rest=why).replace('"2"', '"d"'),
    )
    double, gone, twice, nonsense, untested = check(bank, tmp_path)
    assert double == "2 mutants are called 'good'"
    assert "'gone' is refused: the text that it changes is in code.py 0 times" in gone
    assert "'twice' is refused: the text that it changes is in code.py 2 times" in twice
    assert "nonsense: invalid syntax" in nonsense
    assert "'untested' names tests that don't exist: ['test_code.py::test_other']" in untested
    assert planted(bank[0], tmp_path)[1] == "a = 2\nb = 3\nc = 3\n"
    (tmp_path / "code.py").unlink()
    assert "'gone' is refused: there is no code.py" in check(bank, tmp_path)[2]


def test_a_wrong_entry_is_named(tmp_path: Path) -> None:
    for rest, said in (
        ("", "'m' needs \"pitfall\""),
        ('cost = "a"\npitfall = 3', "'m' needs \"pitfall\""),
        ('cost = "a"\nwhy = "b"', r"'m' lacks \[\] and has unknown \['why'\]"),
        ('cost = "a"\n[mutant.story]\ntold = "b"', r"its story has \['told'\], it must have"),
    ):
        with pytest.raises(ValueError, match=said):
            bank_of(tmp_path, ENTRY.format(name="m", old="1", rest=rest))
    with pytest.raises(ValueError, match="is not a list of mutants"):
        bank_of(tmp_path, "no toml")
