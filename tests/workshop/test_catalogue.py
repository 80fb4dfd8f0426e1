"""Every wrong answer is red with its own entry; every right one green, without a diagnosis."""

from __future__ import annotations

import pytest

from workshop.catalogue import Answer, answers
from workshop.check import Outcome, observe, outcome
from workshop.rank_side import Item

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def judged() -> dict[int, list[Outcome]]:
    return {}


def outcomes(step: int) -> list[tuple[Answer, Outcome]]:
    """All answers of a step, in one start of the ranks."""
    known = answers(step)
    items = [Item(str(i), a.id, a.source, "answer.py") for i, a in enumerate(known)]
    reports = observe(items)
    return [(a, outcome(a.id, reports[str(i)])) for i, a in enumerate(known)]


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 6])
def test_each_answer_gets_its_own_entry(step: int) -> None:
    wrong = []
    for answer, found in outcomes(step):
        state = "red" if answer.keys else "green"
        if found.state != state or found.keys != answer.keys:
            wrong.append(
                f"{answer.id} {answer.name}: {found.state} {found.keys}, expected {state} "
                f"{answer.keys}\n    " + "\n    ".join(found.lines)
            )
    assert not wrong, "\n".join(wrong)
