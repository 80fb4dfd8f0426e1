"""Hints at three levels, and the solution after a pass or when it is asked for twice."""

from __future__ import annotations

from . import progress, solutions
from .exercises import exercise
from .texts import chapter, text

LEVELS = ("a question", "where to look", "the shape of the code")


def hint(id: str) -> str:
    """The next hint of the exercise; the last one stays."""
    said, state = text(id), progress.load()
    level = min(state["hints"].get(id, 0), len(said.hints) - 1)
    state["hints"][id] = level + 1
    progress.save(state)
    more = "" if level + 1 == len(said.hints) else "\n(ask again for more)"
    place = f"\nChapter: {chapter(id, said.place)}" if level == 1 else ""
    head = f"{id}, hint {level + 1} of {len(said.hints)}, {LEVELS[level]}:"
    return f"{head}\n{said.hints[level]}{place}{more}"


def solution(id: str) -> str:
    """The real code, or that one has to ask once more."""
    found, state = exercise(id), progress.load()
    asked = state["solutions"].get(id, 0)
    if id in state["passed"] or asked:
        return solutions.solution(found)
    state["solutions"][id] = asked + 1
    progress.save(state)
    return f"{id} isn't passed yet. Sure? `make hint EX={id}` may do. Ask again, and it opens."
