"""`make check-step2` and `make watch-step2`: the checker's results in the terminal."""

from __future__ import annotations

import sys
import textwrap
import time
from pathlib import Path

from . import keys, progress
from .hints import hint
from .load import LearnerError
from .make_exercises import changes, shown, usable, work_file
from .standing import Standing, standing
from .warm import warm

MARKS = {"green": "✔", "red": "✘", "todo": "·", "missing": "?"}


def check_step(step: int, ids: list[str] | None = None) -> int:
    """Check the learner's file of a step, and print. 0 if everything that is begun is right."""
    found = _examined(step, ids)
    if isinstance(found, int):
        return found
    return show(found, alone=bool(ids))


def _examined(step: int, ids: list[str] | None = None) -> Standing | int:
    """How the step stands, or the exit status if there is no file that can be read (which is
    said)."""
    try:
        return standing(step, ids)
    except FileNotFoundError:
        print(f"{shown(work_file(step))} is not there: `make exercise-step{step}` writes it.")
        return 2
    except LearnerError as error:
        print(error)
        return 1


def show(found: Standing, *, alone: bool = False) -> int:
    """Print it; `alone` leaves out the run of all finished functions together. The exit status."""
    older = changes(found.source, usable(found.step))
    if older:
        print(older)
    for exercise, outcome in zip(found.exercises, found.outcomes, strict=True):
        said = {"todo": "   not begun", "missing": "   not found"}.get(outcome.state, "")
        print(f"{MARKS[outcome.state]} {exercise.id} {exercise.title}{said}")
        for line in outcome.lines:
            print(textwrap.fill(line, 96, initial_indent="    ", subsequent_indent="      "))
        for rank, text in sorted(outcome.prints.items()):
            print(f"    rank {rank} printed:")
            print(textwrap.indent(text.rstrip("\n"), "      | "))
    agree = True
    if found.finished and not alone:
        agree, line = _together(found)
        print(line)
    _what_next(found)
    return 1 if found.broken or not agree else 0


def _together(found: Standing) -> tuple[bool, str]:
    """All finished functions at once, run again only when one of them has changed."""
    key = ", ".join(found.fingerprints[id] for id in found.finished)
    state = progress.load()
    kept = state["together"].get(str(found.step))
    if kept is not None and kept[0] == key:
        return bool(kept[1]), str(kept[2])
    warm({found.step})
    from .together import together  # torch, only where something is to be run

    agree, line = together(found.step, (found.mine,))
    state["together"][str(found.step)] = [key, agree, line]
    progress.save(state)
    return agree, line


def _what_next(found: Standing) -> None:
    done = len(found.finished)
    bar = "█" * done + "░" * len(found.left)
    if found.left:
        first = found.left[0]
        print(f"\n{bar} {done} of {len(found.exercises)}. Next: {first.id} {first.title}")
        print(f"stuck? make hint EX={first.id}    see it: make play EX={first.id}")
    else:
        print(f"\n{bar} all of step {found.step} is yours.")


def watch(step: int) -> int:
    """Check now, and whenever the file is saved, until q or ^C. h shows the next hint."""
    path, stuck = work_file(step), ""
    seen: tuple[int, int, int] | None = (0, 0, 0)
    usable(step)  # an unknown step is named before anything is watched
    with keys.pressed() as key:
        while True:
            now = _stamp(path)
            if now != seen:
                seen = now
                print("\033[2J\033[H" if sys.stdout.isatty() else "", end="")
                stuck = _view(step)
                warm({step})  # while the learner reads, so that the next check finds it loaded
            pressed = key()
            if pressed == "q":
                return 0
            if pressed == "h" and stuck:
                print(f"\n{hint(stuck)}", flush=True)
            time.sleep(0.1)


def _view(step: int) -> str:
    """What is shown at each save: the check, the board of all steps, the keys. Returns the next
    exercise."""
    found = _examined(step)
    stuck = ""
    if isinstance(found, Standing):
        show(found)
        stuck = found.left[0].id if found.left else ""
    print(f"\n{progress.board()}")
    key = f"h: a hint for {stuck}; " if stuck else ""
    print(f"(checked again when you save; {key}q or ^C: the end)", flush=True)
    return stuck


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Changes with every save, also one that replaces the file or keeps its size."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
