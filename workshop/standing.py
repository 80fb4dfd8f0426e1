"""How a step stands: what of the learner's file is right, wrong, begun or missing.

Only what has changed since it last passed is run; torch is loaded only if something is run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from . import progress
from .exercises import Exercise, all_steps
from .load import LearnerError, look, parse
from .make_exercises import shown, usable, work_file
from .mine import Mine
from .warm import warm


@dataclass
class Outcome:
    """What is known of one exercise. state: "green", "red", "todo", "missing"."""

    id: str
    state: str
    lines: list[str] = field(default_factory=list)  # for the learner
    keys: tuple[str, ...] = ()  # entries of the catalogue
    prints: dict[int, str] = field(default_factory=dict)  # by rank, cut


@dataclass
class Standing:
    """A step's file, and an outcome for each exercise that was asked for."""

    step: int
    name: str  # of the file, as a learner would type it
    source: str
    exercises: list[Exercise]
    outcomes: list[Outcome]
    fingerprints: dict[str, str]

    @property
    def finished(self) -> tuple[str, ...]:
        return tuple(o.id for o in self.outcomes if o.state == "green")

    @property
    def left(self) -> list[Exercise]:
        """What is to be done yet, in order."""
        return [e for e in self.exercises if e.id not in self.finished]

    @property
    def broken(self) -> list[Outcome]:
        """Begun and wrong, or not to be found under its name."""
        return [o for o in self.outcomes if o.state in ("red", "missing")]

    @property
    def mine(self) -> Mine:
        return Mine(self.source, self.name, self.finished)


def standing(step: int, ids: list[str] | None = None) -> Standing:
    """Raises FileNotFoundError without a file, LearnerError if Python can't read it, ValueError
    for an exercise that the step doesn't have. Keeps what passed."""
    exercises, path = usable(step), work_file(step)
    name = shown(path)
    if ids:
        unknown = [id for id in ids if id not in {e.id for e in exercises}]
        if unknown:
            known = ", ".join(e.id for e in exercises)
            raise ValueError(f"step {step} has no exercise {unknown[0]}; it has {known}")
        exercises = [e for e in exercises if e.id in ids]
    source = read(path)
    tree = parse(source, name)
    passed, real = progress.load()["passed"], progress.real_code()
    prints = {e.id: progress.fingerprint(tree, e, real) for e in exercises}
    again = [e for e in exercises if passed.get(e.id) != prints[e.id]]
    found = {e.id: Outcome(e.id, "green") for e in exercises if e not in again}
    for e in again:
        seen = look(tree, e)
        found[e.id] = Outcome(e.id, seen.state, [seen.note] if seen.note else [])
    if any(found[e.id].state == "ready" for e in again):
        warm({step})
        from .check import check

        found |= {o.id: o for o in check(source, name, again)}
    state = progress.load()  # as it is now: a hint may have been asked for meanwhile
    for e in again:
        progress.note(e.id, found[e.id].state, found[e.id].keys)
        if found[e.id].state == "green":
            state["passed"][e.id] = prints[e.id]
    progress.save(state)
    outcomes = [found[e.id] for e in exercises]
    return Standing(step, name, source, exercises, outcomes, prints)


def read(path: Path) -> str:
    """The text of a learner's file. Raises LearnerError if it isn't UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise LearnerError(
            f"{shown(path)} is not UTF-8 text (byte {error.start}): save it as UTF-8"
        ) from None


def all_standing() -> tuple[list[Standing], list[str]]:
    """Every step that the learner has a file of, checked; and a line for each file that can't be
    read. Raises ValueError if there is no file at all."""
    found, unreadable = [], []
    for step in all_steps():
        try:
            found.append(standing(step))
        except FileNotFoundError:
            continue
        except LearnerError as error:
            unreadable.append(str(error))
        except ValueError:  # a step whose exercises aren't handed out yet
            continue
    if not found and not unreadable:
        raise ValueError("there is no file of yours yet: `make exercise-step2` writes one")
    return found, unreadable
