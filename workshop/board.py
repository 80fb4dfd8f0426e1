"""`make check-step2` and `make watch-step2`: the checker's results in the terminal."""

from __future__ import annotations

import sys
import textwrap
import time
from pathlib import Path
from typing import Any

from . import progress
from .exercises import Exercise
from .load import LearnerError, look, parse
from .make_exercises import changes, shown, usable, work_file
from .warm import warm

MARKS = {"green": "✔", "red": "✘", "todo": "·", "missing": "?"}


def check_step(step: int, ids: list[str] | None = None) -> int:
    """Check the learner's file of a step, and print. 0 if everything that is begun is right."""
    exercises = usable(step)
    path = work_file(step)
    name = shown(path)
    if ids:
        unknown = [id for id in ids if id not in {e.id for e in exercises}]
        if unknown:
            known = ", ".join(e.id for e in exercises)
            raise ValueError(f"step {step} has no exercise {unknown[0]}; it has {known}")
        exercises = [e for e in exercises if e.id in ids]
    if not path.is_file():
        print(f"{name} is not there: `make exercise-step{step}` writes it.")
        return 2
    source = path.read_text(encoding="utf-8")
    try:
        tree = parse(source, name)
    except LearnerError as error:
        print(error)
        return 1
    older = changes(source, usable(step))
    if older:
        print(older)
    state, real = progress.load(), progress.real_code()
    prints = {e.id: progress.fingerprint(tree, e, real) for e in exercises}
    passed = {e.id for e in exercises if state["passed"].get(e.id) == prints[e.id]}
    again = [e for e in exercises if e.id not in passed]
    outcomes = {}
    if any(look(tree, e).state == "ready" for e in again):
        warm()
        from .check import check  # torch, only where something is to be run

        outcomes = {o.id: o for o in check(source, name, again)}
    all_right = True
    for exercise in exercises:
        if exercise.id in passed:
            print(f"✔ {exercise.id} {exercise.title}")
            continue
        outcome = outcomes.get(exercise.id)
        state_now = outcome.state if outcome else look(tree, exercise).state
        lines = outcome.lines if outcome else [look(tree, exercise).note]
        print(f"{MARKS[state_now]} {exercise.id} {exercise.title}" + _said(state_now))
        for line in lines:
            print(textwrap.fill(line, 96, initial_indent="    ", subsequent_indent="      "))
        for rank, text in sorted(outcome.prints.items()) if outcome else ():
            print(f"    rank {rank} printed:")
            print(textwrap.indent(text.rstrip("\n"), "      | "))
        all_right &= state_now in ("green", "todo")
        if state_now == "green":
            state["passed"][exercise.id] = prints[exercise.id]
        if outcome:
            progress.note(exercise.id, state_now, outcome.keys)
    progress.save(state)
    finished = [e.id for e in exercises if state["passed"].get(e.id) == prints[e.id]]
    key = f"together {step}: {sorted(prints[id] for id in finished)}"
    if step == 2 and finished and not ids and state.get("together", [""])[0] != key:
        from .together import together  # only when something has changed

        state["together"] = [key, together(source, name, finished)]
        progress.save(state)
    if step == 2 and finished and not ids:
        print(state["together"][1])
    _what_next(exercises, state, prints, step)
    return 0 if all_right else 1


def _said(state: str) -> str:
    return {"todo": "   not begun", "missing": "   not found"}.get(state, "")


def _what_next(
    exercises: list[Exercise],
    state: dict[str, Any],
    prints: dict[str, str],
    step: int,
) -> None:
    left = [e for e in exercises if state["passed"].get(e.id) != prints[e.id]]
    done = len(exercises) - len(left)
    bar = "█" * done + "░" * len(left)
    if left:
        id = left[0].id
        print(f"\n{bar} {done} of {len(exercises)}. Next: {id} {left[0].title}")
        print(f"stuck? make hint EX={id}    see it: make play EX={id}")
    else:
        print(f"\n{bar} all of step {step} is yours.")


def watch(step: int) -> int:
    """Check now, and whenever the file is saved, until ^C."""
    path, seen = work_file(step), None
    warm()
    while True:
        now = _stamp(path)
        if now != seen:
            seen = now
            print("\033[2J\033[H" if sys.stdout.isatty() else "", end="")
            check_step(step)
            print("\n(checked again when you save; ^C ends)", flush=True)
        time.sleep(0.2)


def _stamp(path: Path) -> tuple[float, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime, status.st_size
