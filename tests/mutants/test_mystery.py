"""A mystery from its start to its name. One runs for real; the rest need no ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mutants import mystery
from mutants.bank import ROOT, load
from mutants.copies import Outcome
from mutants.mystery import Options, culprit, hints, judged, main, started, suspects

BANK = load()


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(mystery, "RUNS", tmp_path)
    return tmp_path


class Pretend:
    """In place of pytest: red, unless somebody has put the file right."""

    state = "red"

    def __call__(self, folder: Path, tests: Sequence[str], limit: float) -> Outcome:
        return Outcome(self.state, "E   assert 1 == 2\n")


@pytest.mark.long
def test_a_mystery_shows_its_symptom_and_is_solved(runs: Path) -> None:
    """For real: the named test of the copy is red, by the copy's code and not the original's."""
    fault = culprit(2, 1, BANK)
    said = started(2, 1)
    assert "This test is red there:" in said
    assert fault.tests[0] in said
    assert any((line.startswith("    ") and "rror" in line) or "assert" in line.lower()
               for line in said.splitlines()), said  # fmt: skip
    folder = runs / "step02"
    assert not (folder / "mutants").exists(), "the answers"
    assert (folder / fault.file).read_text() != (ROOT / fault.file).read_text()
    assert fault.name not in (runs / "step02.json").read_text()
    first, second, third = (hints(2, level) for level in (1, 2, 3))
    assert third.startswith(second)
    assert second.startswith(first)
    wrong = next(s for s in suspects(2, 1, BANK) if s != fault)
    assert "Not this one" in judged(2, wrong.name)
    right = judged(2, fault.name)
    assert fault.story is not None
    for report in fault.story.reports:
        assert f"https://github.com/{report.replace('#', '/issues/')}" in right
    assert fault.story.told in right
    assert "make mystery-step2 SEED=2" in right


@pytest.mark.parametrize("step", range(1, 7))
def test_a_seed_is_always_the_same_mystery_and_seeds_go_through_all(step: int) -> None:
    told = {mutant.name for mutant in BANK if mutant.step == step and mutant.story}
    assert {culprit(step, seed, BANK).name for seed in range(1, len(told) + 1)} == told
    for seed in (1, 2, 50):
        listed = suspects(step, seed, BANK)
        assert listed == suspects(step, seed, load())
        assert culprit(step, seed, BANK) in listed
        assert len({mutant.name for mutant in listed}) == 6
        assert {mutant.step for mutant in listed} == {step}


def test_the_copy_is_the_learners_own(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mystery, "Pytest", Pretend)
    started(3, 2)
    fault = culprit(3, 2, BANK)
    path = runs / "step03" / fault.file
    path.write_text("print('looking')\n")
    assert "mystery 2" in started(3, None), "the open one goes on"
    assert path.read_text() == "print('looking')\n"
    monkeypatch.setattr(Pretend, "state", "green")
    assert "you have mended it" in started(3, 2)
    monkeypatch.setattr(Pretend, "state", "broken")
    assert "can't even start" in started(3, 2)
    started(3, 2, force=True)
    assert path.read_text() != "print('looking')\n"
    assert "mystery 1" in started(3, 1)


def test_what_cannot_be_is_told_kindly(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mystery, "Pytest", Pretend)
    for options, said in (
        (Options("9"), "no mystery in step 9; .* try make mystery-step6"),
        (Options("0"), "no mystery in step 0; .* try make mystery-step1"),
        (Options("two"), "'two' is not a step; say one of 1, 2, 3, 4, 5, 6"),
        (Options("2", hint=1), "no mystery of step 2 is open: begin with make mystery-step2"),
        (Options("2", answer="x"), "no mystery of step 2 is open"),
        (Options("2", hint=4), "there is no hint 4; hints go from 1 to 3"),
        (Options("2", hint=1, answer="x"), "one at a time"),
        (Options("2", seed=0), "the seed is 0; it must be at least 1"),
    ):
        with pytest.raises(ValueError, match=said):
            main(options)
    started(2, 1)
    name = culprit(2, 1, BANK).name
    with pytest.raises(ValueError, match=f"not among the suspects .* did you mean .*{name}"):
        judged(2, name[:-1])
    with pytest.raises(ValueError, match=r"'qqq' is not among .*; say one of"):
        judged(2, "qqq")
    (runs / "step02.json").write_text('{"seed": 1, "fault": "another"}')
    with pytest.raises(ValueError, match="the bank has changed since this mystery began"):
        hints(2, 1)
