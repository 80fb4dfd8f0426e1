"""The exercises, their texts and their files: without starting a rank."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from workshop import hints, make_exercises
from workshop.catalogue import answers
from workshop.exercises import Exercise, exercise, exercises_of
from workshop.load import LearnerError, functions, look, parse
from workshop.probes.common import right
from workshop.probes.registry import PLACES, probe
from workshop.solutions import solution
from workshop.texts import chapter, own_messages, text, written

ROOT = Path(__file__).parents[2]
IDS = sorted(PLACES)
STEPS = sorted({int(id[0]) for id in IDS})


def test_one_id_has_text_source_probe_hints_and_misconceptions() -> None:
    for step in STEPS:
        ids = written(step)
        assert ids == [id for id in IDS if id.startswith(str(step))]
        assert set(ids) <= {e.id for e in exercises_of(step)}
        wrong = {id: {a.name for a in answers(step) if a.id == id and a.keys} for id in ids}
        good = {id: [a for a in answers(step) if a.id == id and not a.keys] for id in ids}
        assert all(len(names) >= 5 for names in wrong.values()), wrong
        assert all(len(names) >= 2 for names in good.values()), good


@pytest.mark.parametrize("id", IDS)
def test_hints_have_three_levels_and_places_exist(id: str) -> None:
    said = text(id)
    assert len(said.hints) == 3
    assert all(hint.strip() for hint in said.hints)
    assert said.task
    assert said.minutes > 0
    for place in {said.place} | {m.place for m in said.messages.values()}:
        readme, _, heading = chapter(id, place).partition(", ")
        headings = re.findall(r"^#+ (.*)$", (ROOT / readme).read_text(), re.MULTILINE)
        assert heading.strip('"') in headings, f"{id}: {readme} has no heading {heading}"


@pytest.mark.parametrize("id", IDS)
def test_every_entry_belongs_to_a_choice_and_every_entry_has_an_answer(id: str) -> None:
    axes = probe(id).axes
    known = {f"{axis}={choice}" for axis, choices in axes.items() for choice in choices[1:]}
    known |= {f"variant={case.variant}" for case in probe(id).cases if case.variant}
    own = own_messages(id)
    known |= {key for key in own if key.startswith("error=")}  # what an error's text says
    assert set(own) <= known, "an entry that no probe can lead to"
    shown = {key for a in answers(int(id[0])) if a.id == id for key in a.keys}
    exempt = UNSHOWN.get(id, set())
    assert {m.key for m in own.values()} - shown == exempt, "an entry without a wrong answer"


# Entries that stand for a whole family, of which the catalogue shows other members.
UNSHOWN: dict[str, set[str]] = {}


@pytest.mark.parametrize("id", IDS)
def test_no_message_or_question_gives_code_away(id: str) -> None:
    code = re.compile(r"\w+\(\w*[,.)]|ctx\.|\breturn\b|\.clone|=\s*\w+\(")
    for message in own_messages(id).values():
        assert not code.search(message.says.replace("`y.sum().backward()`", "")), message.says
        assert not code.search(message.invariant), message.invariant


@pytest.mark.parametrize("id", IDS)
def test_what_is_foreseen_differs_for_each_entry(id: str) -> None:
    """No two entries foresee the same on all cases, so neither could ever be given."""
    from workshop.comparing import same

    known = probe(id)
    seen: dict[str, list] = {}
    for axis, choices in known.axes.items():
        for choice in choices[1:]:
            key = text(id).key_of(f"{axis}={choice}")
            rows = [
                known.foresee(case, {**right(known.axes), axis: choice}) for case in known.cases
            ]
            for other, others in seen.items():
                equal = all(
                    a.values[r].keys() == b.values[r].keys()
                    and all(same(a.values[r][k], b.values[r][k]) for k in a.values[r])
                    and {p: bool(n) for p, n in a.numel.items()}
                    == {p: bool(n) for p, n in b.numel.items()}
                    for a, b in zip(rows, others, strict=True)
                    for r in range(4)
                )
                assert not equal or other.partition("|")[0] == key, f"{axis}={choice} and {other}"
            seen[f"{key}|{axis}={choice}"] = rows


@pytest.mark.parametrize("step", STEPS)
def test_a_fresh_file_has_only_stubs_and_is_kept(step: int, work: Path) -> None:
    said = make_exercises.make(step)
    path = make_exercises.work_file(step)
    source = path.read_text()
    tree = parse(source, path.name)
    for e in make_exercises.usable(step):
        assert look(tree, e).state == "todo"
        assert f'raise NotImplementedError("{e.id}")' in source
    assert "is ready" in said
    path.write_text(source + "\n# mine\n")
    assert "stays as it is" in make_exercises.make(step)
    assert path.read_text().endswith("# mine\n")
    assert "backup1" in make_exercises.make(step, force=True)
    assert (work / f"{path.stem}.backup1.py").read_text().endswith("# mine\n")
    assert path.read_text() == source


def test_a_file_of_an_older_version_is_told_what_changed(work: Path) -> None:
    make_exercises.make(2)
    path = make_exercises.work_file(2)
    old = re.sub(r"2\.1=\w+ ", "2.1=00000000 ", path.read_text()).replace("2.6=", "9.6=")
    path.write_text(old)
    said = make_exercises.make(2)
    assert "2.1 f: is now asked as def f(x: Tensor, group: Group = None) -> Tensor:" in said
    assert "2.6 cut: new since your file was made" in said
    assert "2.2" not in said
    assert path.read_text() == old


def test_unknown_names_are_answered_with_near_ones() -> None:
    for bad, said in (("2.9", "there is no exercise 2.9; near it: 2"), ("f", "is not an exercise")):
        with pytest.raises(ValueError, match=re.escape(said)):
            exercise(bad)
    with pytest.raises(ValueError, match="there is no step 9; the steps are 1, 2"):
        exercises_of(9)


def stub_file(step: int) -> str:
    return make_exercises.contents(step, make_exercises.usable(step))


def found(source: str, id: str) -> str:
    return look(parse(source, "work.py"), exercise(id)).note


def test_names_that_were_changed_are_named() -> None:
    source = stub_file(2)
    renamed = source.replace("def g(x", "def gg(x")
    assert "`g` is not in the file. There is a `gg`: was it renamed?" in found(renamed, "2.2") or (
        "`g` is not in the file" in found(renamed, "2.2")
    )
    argument = source.replace("def g(x: Tensor, group:", "def g(x: Tensor, grp:")
    assert "takes (x, grp); it is called with (x, group)" in found(argument, "2.2")
    deleted = source.replace("class ParallelMLP:", "class Other:")
    assert "`ParallelMLP.forward` is not in the file" in found(deleted, "2.5")
    spare = source.replace("def cut(full: Tensor, shard_dim: int | None, group: Group)",
                           "def cut(full, shard_dim, group, debug=False)")  # fmt: skip
    assert found(spare, "2.6") == ""


def test_a_syntax_error_has_line_and_caret() -> None:
    with pytest.raises(LearnerError) as error:
        parse("x = 1\ndef f(x:\n    return x\n", "work/step02.py")
    assert "work/step02.py, line 2" in str(error.value)
    assert "    def f(x:\n" in str(error.value)
    assert str(error.value).rstrip().endswith("^")


def test_one_functions_error_leaves_the_others_alone() -> None:
    broken = "import nothing_of_the_kind\nnumber = 1 / 0\nwhile True:\n    pass\n"
    tree = parse(broken + "def f(x, group=None):\n    return x\n", "work.py")
    (f,) = functions(tree, "work.py", exercise("2.1"))
    assert f(3) == 3


def test_only_the_one_function_is_the_learners() -> None:
    from step02_mlp_parallel import operators

    source = "def f(x, group=None):\n    return g\n\ndef g(x, group=None):\n    return f\n"
    (f,) = functions(parse(source, "work.py"), "work.py", exercise("2.1"))
    assert f(0) is operators.g


@pytest.mark.parametrize("id", IDS)
def test_solutions_are_the_real_code(id: str) -> None:
    source = solution(exercise(id))
    assert look(ast.parse(source), exercise(id)).state == "ready"


def test_hints_go_up_and_solutions_open_when_asked_twice(work: Path) -> None:
    said = [hints.hint("2.1") for _ in range(4)]
    assert "hint 1 of 3" in said[0]
    assert "hint 2 of 3" in said[1]
    assert "hint 3 of 3" in said[2]
    assert "hint 3 of 3" in said[3]
    assert "Ask again" in hints.solution("2.1")
    assert "def f(" in hints.solution("2.1")


def with_body(source: str, e: Exercise) -> str:
    """The work file with the real code of one exercise in the stub's place."""
    start = source.index(f"# {e.id} · ")
    end = source.find("\n\n\n# ", start)
    end = len(source) if end < 0 else end
    return source[:start] + f"# {e.id} · \n" + solution(e) + source[end:]
