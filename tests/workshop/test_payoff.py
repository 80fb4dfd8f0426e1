"""Training, the step's own tests and the certificate, with the learner's functions in place."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from step02_mlp_parallel import RankError
from workshop import certificate, make_exercises, own_tests, train_mine
from workshop.exercises import exercise
from workshop.mine import Mine
from workshop.standing import all_standing, standing
from workshop.train_mine import Wanted, compare, culprits, curves, parted, took_part

from .test_exercises import stub_file, with_body

pytestmark = pytest.mark.long

WRONG = ("return y if bias is None else y.add_(bias)", "return y")
RIGHT = ["2.1", "2.2", "2.6"]


def answer(*ids: str, change: tuple[str, str] = ("", "")) -> Path:
    """The learner's file of step 2 with these done, and a change in it."""
    source = stub_file(2)
    for id in ids:
        source = with_body(source, exercise(id))
    assert change[0] in source
    path = make_exercises.work_file(2)
    path.write_text(source.replace(*change) if change[0] else source)
    return path


@pytest.fixture
def here(work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs, data and certificate in a folder of their own."""
    text = "".join(f"line {i} of a text, and {'a longer one' * (i % 3)}\n" for i in range(400))
    (work / "text.txt").write_text(text)
    monkeypatch.setattr(train_mine, "ROOT", work)
    monkeypatch.setattr(certificate, "WORK", work)
    return work


def wanted(folder: Path) -> Wanted:
    return Wanted(
        steps=2, corpus=str(folder / "text.txt"), seq_length=8, batch_size=2, run=folder / "run"
    )


def test_training_with_yours_lies_on_the_references_curve(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """2.4 is wrong: it is named, and the real one takes its place."""
    answer("2.1", "2.2", "2.4", "2.6", change=WRONG)
    assert train_mine.train_mine(wanted(here)) == 0
    said = capfd.readouterr().out
    assert "2.4 is left out, the real one takes its place: make check-step2" in said
    assert "yours: 2.1, 2.2, 2.6, on tp 2 × dp 1 ranks" in said
    assert "The curves are equal: in 2 steps no loss differs by more than" in said
    assert "in this run: your 2.1, 2.2, 2.6\n" in said
    assert (here / "run" / "loss.png").stat().st_size > 10_000
    assert (here / "run" / "yours" / "sample.txt").is_file()


def test_a_function_that_parts_the_curves_is_found(here: Path) -> None:
    """As if the check had let a wrong bias pass."""
    given = wanted(here)
    source = answer("2.1", "2.4", change=WRONG).read_text()
    mines = (Mine(source, "work.py", ("2.1", "2.4")),)
    options = train_mine.options(given, here / "yours")
    true = train_mine.run_ranks(train_mine.reference_losses, 1, options)[0]
    own = train_mine.losses(options, mines)
    assert parted(own, true) == [2], "the bias begins at zero"
    equal, said = compare(own, true)
    assert not equal
    assert "NOT equal: at step 2 yours is" in said
    assert culprits(given, mines, ["2.4"], own, true) == (
        "It is your 2.4: alone, with all else real, the curves part too."
    )


def test_without_anything_finished_it_is_said_and_nothing_runs(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("losses", "pytest_run"):
        module = train_mine if name == "losses" else certificate
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("it ran"))
    with pytest.raises(ValueError, match="no file of yours yet: `make exercise-step2`"):
        train_mine.train_mine(wanted(here))
    answer()
    assert train_mine.train_mine(wanted(here)) == 2
    assert "Nothing of yours is finished yet" in capsys.readouterr().out
    assert certificate.certificate() == 2
    assert "nothing to certify" in capsys.readouterr().out
    make_exercises.work_file(2).write_text("def f(x:\n")
    assert train_mine.train_mine(wanted(here)) == 2
    assert "Python can't read this" in capsys.readouterr().out


def test_what_stops_a_run_is_laid_at_the_right_door(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in the learner's function names it; a layout that can't be is said as ever."""
    path = answer("2.1", "2.6")
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if "_F.apply" in text)
    name = make_exercises.shown(path)

    def fail(*_: object) -> list[float]:
        said = f'rank 1 of 2 raised\n\n  File "{name}", line {line}, in f\nKeyError: 3'
        raise RankError(said, 1) from KeyError(3)

    monkeypatch.setattr(train_mine, "losses", fail)
    assert train_mine.train_mine(wanted(here)) == 1
    said = capsys.readouterr().out
    assert f"KeyError: 3\nIt happened in your 2.1 f, line {line} of {name}." in said

    def refuse(*_: object) -> list[float]:
        raise RankError("rank 0 of 3 raised\n\nAgreed: tp 3", 0) from ValueError("tp 3")

    monkeypatch.setattr(train_mine, "losses", refuse)
    with pytest.raises(ValueError, match="tp 3"):
        train_mine.train_mine(dataclasses.replace(wanted(here), run=here / "other"))


def test_curves_in_numbers() -> None:
    assert compare([3.0, 2.0], [3.0, 2.0])[0]
    assert parted([3.0, float("nan")], [3.0, 2.0]) == [2]
    assert took_part(["1.2", "2.1"], ["2.1"]) == (
        "in this run: your 2.1; not on its way: 1.2 (make certificate)"
    )
    assert took_part(["1.2"], []).startswith("in this run: none of yours; not on its way: 1.2")
    assert curves([3.0, 1.0], [3.0, 2.0]).splitlines() == [
        "yours     █▁  3.000 → 1.000",
        "reference █▅  3.000 → 2.000",
    ]


def test_the_steps_own_tests_take_yours(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose code was tested is the first line; the check comes first; REAL=1 tests the real."""
    proof = ["-k", "each_layer_alone", "-n", "0"]
    monkeypatch.setenv("REAL", "")
    answer("2.3", "2.4", change=WRONG)
    assert own_tests.run_tests(2, proof) == 1, "the check is red"
    first, *rest = capfd.readouterr().out.splitlines()
    assert first.startswith("Tested: your 2.3 (")
    assert "Left out, since the check is red: 2.4." in first
    assert rest[0] == "· 2.1 f   not begun"
    assert "4 of 4 tests called your code." in rest
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_tests, "pytest_run", lambda *_: (0, []))
        patch.setenv("REAL", "1")
        assert own_tests.run_tests(2, proof) == 0
        assert capfd.readouterr().out.startswith("Tested: the real code of step 2 (REAL=1).")
        assert own_tests.run_tests(3, proof) == 0
        patch.setenv("REAL", "")
        assert own_tests.run_tests(3, proof) == 0
        assert "Tested: the real code of step 3 (there is no step03" in capfd.readouterr().out


def test_a_certificate_has_a_mark_for_each_number_of_ranks(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    proof = "test_layers.py::test_each_layer_alone_equals_torch"
    monkeypatch.setitem(certificate.PROOFS, 2, [f"{proof}[2]"])
    answer("2.3", "2.6")
    assert certificate.certificate(["-n", "0"]) == 0
    text = (here / "certificate.md").read_text()
    assert "| each layer alone equals torch |  | ✔ |  |  | 2.3, 2.6 |" in text, text
    # And that it can fail: what the check would never let pass.
    found = standing(2)
    found.source = found.source.replace("return part.clone(", "return -part.clone(")
    rows = certificate.run(found, ["-n", "0"])
    assert "|  | ✘ |  |  |" in "\n".join(certificate.table(found, rows))
    found.outcomes = []
    made = [
        {"test": f"tests/step02/{proof}[{n}]", "passed": n != 8, "called": ["2.3"] * (n > 1)}
        for n in certificate.WORLDS
    ]
    assert certificate.table(found, made)[-1].endswith("| – | ✔ | ✔ | ✘ | 2.3 |")


def test_proofs_exist_and_ranks_are_read_from_their_names() -> None:
    for step, proofs in certificate.PROOFS.items():
        for proof in proofs:
            file, _, name = proof.partition("::")
            text = (make_exercises.ROOT / f"tests/step{step:02d}" / file).read_text()
            assert f"def {name or 'test_'}" in text, proof
    assert certificate.proof_of("tests/step02/a.py::test_an_mlp[4]") == ("an mlp", 4)
    assert certificate.proof_of("tests/step05/a.py::test_it[2-4]") == ("it", 8)
    assert certificate.proof_of("tests/step03/a.py::test_pitfall_32_x[paper-2]")[1] == 2
    assert certificate.proof_of("tests/step01/a.py::test_scores[7]") == ("scores", 1)


def test_every_file_is_looked_at_and_one_that_cannot_be_read_is_named(here: Path) -> None:
    answer(*RIGHT)
    make_exercises.work_file(3).write_bytes(b"\xff\xfe")
    found, unreadable = all_standing()
    assert [s.finished for s in found] == [tuple(RIGHT)]
    assert "is not UTF-8 text (byte 0)" in unreadable[0]
