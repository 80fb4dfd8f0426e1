"""The checker with real ranks: stubs, real bodies, and what else a learner's code can do."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from workshop import board, make_exercises, progress
from workshop import check as checking
from workshop.check import check, observe, outcome
from workshop.exercises import exercise
from workshop.make_exercises import contents, usable
from workshop.probes.registry import PLACES
from workshop.rank_side import Item
from workshop.warm import busy

from .test_exercises import STEPS, stub_file, with_body

HEAD = """import os, sys, time
import numpy as np
import torch
import torch.distributed as dist
from step02_mlp_parallel.wire import all_reduce_
"""


def answer(body: str) -> str:
    lines = "\n    ".join(body.strip().split("\n"))
    return HEAD + f"def g(x, group=None):\n    {lines}\n"


# what the learner's g does -> what the message must say
MISHAPS = {
    "endless loop": (
        "while True:\n    pass",
        "did not come back in forward (line 7, in g): an endless loop?",
    ),
    "endless loop that catches all": (
        "while True:\n    try:\n        time.sleep(0.01)\n    except BaseException:\n        pass",
        "did not come back in forward",
    ),
    "exit": ("exit()", "exit() was called on rank"),
    "sys.exit": ("sys.exit(3)", "exit() was called on rank"),
    "os._exit": ("os._exit(0)", "ended in the middle of it"),
    "breakpoint": ("breakpoint()\nreturn x", "asked for the keyboard"),
    "input": ("input('> ')\nreturn x", "asked for the keyboard"),
    "pdb": ("import pdb\npdb.set_trace()\nreturn x", "asked for the keyboard"),
    "ten million prints": (
        "for i in range(10**7):\n    print('x', i)\nreturn x",
        "more than a million characters",
    ),
    "None": ("x.clone()", "output is None"),
    "a tuple": ("return x, group", "output is a tuple of 2"),
    "numpy": ("return x.detach().numpy()", "output is a NumPy array of shape [2, 3]"),
    "another dtype": (
        "y = x.float()\nt = y.detach().clone(memory_format=torch.contiguous_format)\n"
        "all_reduce_(t, group)\nreturn y + (t - y.detach())",
        "got [2, 3] float32, expected [2, 3] float64",
    ),
    "an exception": ("return x @ x", "RuntimeError"),
    "unfinished": ("y = x.clone()\nraise NotImplementedError('2.2')", "NotImplementedError: 2.2"),
    "one rank skips the collective": (
        "t = x.detach().clone(memory_format=torch.contiguous_format)\n"
        "if group is None or dist.get_rank(group) == 0:\n    all_reduce_(t, group)\n"
        "return x + (t - x.detach())",
        "waits for the others in a collective",
    ),
    "one rank raises": (
        "t = x.detach().clone(memory_format=torch.contiguous_format)\n"
        "if dist.get_rank() == 1:\n    raise KeyError('mine')\n"
        "all_reduce_(t, group)\nreturn x + (t - x.detach())",
        "rank 1 raised in forward (line 9, in g):",
    ),
}


@pytest.mark.parametrize("name", MISHAPS)
def test_mishaps_are_told_kindly_and_take_nothing_down(name: str) -> None:
    body, said = MISHAPS[name]
    items = [Item("mishap", "2.2", answer(body), "work.py"),
             Item("after", "2.6", solution_of("2.6"), "work.py")]  # fmt: skip
    began = time.monotonic()
    reports = observe(items, patience=1.5)
    assert time.monotonic() - began < 12 * busy(), "told in seconds"
    found = outcome("2.2", reports["mishap"])
    assert found.state == "red"
    text = "\n".join(found.lines)
    assert said in text, text
    assert outcome("2.6", reports["after"]).state == "green"


def solution_of(id: str) -> str:
    from workshop.solutions import solution

    return solution(exercise(id))


LOOP = "import math, os\ndef lr_at(step, *, peak, minimum, warmup, total):\n    {}\n"


@pytest.mark.parametrize(
    ("mishap", "said"),
    [("while True:\n        pass", "did not come back"), ("os._exit(3)", "ended in the middle")],
)
def test_what_one_rank_alone_looks_at_takes_nothing_down(mishap: str, said: str) -> None:
    """Answers that need no groups are spread over the ranks; the one that fails is named."""
    items = [Item(f"1.6 {i}", "1.6", solution_of("1.6"), "work.py") for i in range(5)]
    items.insert(2, Item("mishap", "1.6", LOOP.format(mishap), "work.py"))
    items.append(Item("2.6", "2.6", solution_of("2.6"), "work.py"))
    reports = observe(items, patience=1.5)
    states = {item.label: outcome(item.id, reports[item.label]).state for item in items}
    assert states.pop("mishap") == "red"
    assert set(states.values()) == {"green"}, states
    assert said in "\n".join(outcome("1.6", reports["mishap"]).lines)


def test_prints_are_shown_by_rank_and_cut() -> None:
    source = answer(
        "for i in range(300):\n    print('hello', i, dist.get_rank())\nreturn x.clone()"
    )
    (found,) = check(source, "work.py", [exercise("2.2")])
    assert set(found.prints) == {0, 1, 2, 3}
    assert found.prints[2].startswith("hello 0 2\n")
    assert "lines more" in found.prints[2]
    assert len(found.prints[2]) < 2000


@pytest.mark.parametrize("step", STEPS)
def test_stubs_are_todo_and_real_bodies_green(step: int) -> None:
    source, exercises = stub_file(step), [e for e in usable(step) if e.id in PLACES]
    todo = check(source, "work.py", exercises)
    assert [o.state for o in todo] == ["todo"] * len(exercises)
    for e in exercises:
        source = with_body(source, e)
    done = check(source, "work.py", exercises)
    wrong = [(o.id, o.state, o.lines) for o in done if o.state != "green" or o.lines or o.keys]
    assert not wrong, wrong


def test_an_unfinished_one_does_not_fail_the_others() -> None:
    source = with_body(stub_file(2), exercise("2.4"))
    states = {o.id: o.state for o in check(source, "work.py", list(usable(2)))}
    assert states == {"2.1": "todo", "2.2": "todo", "2.3": "todo", "2.4": "green",
                      "2.5": "todo", "2.6": "todo"}  # fmt: skip


@pytest.mark.long
def test_a_learners_day(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Create, fail, fix one by one with the real bodies, 100 %; finished work isn't run again."""
    assert board.check_step(2) == 2
    assert "is not there: `make exercise-step2`" in capsys.readouterr().out
    make_exercises.make(2)
    path = make_exercises.work_file(2)
    board.check_step(2)
    assert capsys.readouterr().out.count("not begun") == 6
    wrong = path.read_text().replace('    raise NotImplementedError("2.1")', "    return x")
    path.write_text(wrong)
    assert board.check_step(2) == 1
    out = capsys.readouterr().out
    assert "✘ 2.1 f" in out
    assert "nobody added the shares up" in out
    source = path.read_text()
    for e in usable(2):
        source = with_body(source, e)
        path.write_text(source)
        assert board.check_step(2) == 0
        assert f"✔ {e.id} " in capsys.readouterr().out
    assert "6 of" in progress.board()
    assert progress.board().count("✔") == 6
    path.write_text(source + "\n# a comment changes nothing\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checking, "check", lambda *_: pytest.fail("finished work was run again"))
        board.check_step(2)
    assert "all of step 2 is yours" in capsys.readouterr().out
    path.write_text(source.replace("all_reduce_(total, group)", "pass"))
    board.check_step(2)
    assert "✘ 2.2 g" in capsys.readouterr().out
    assert contents(2, usable(2))  # the real file can be made again at any time
