"""A pytest plugin: a step's own tests with the learner's functions in the real ones' places.

    WORKSHOP_MINE=folder python -m pytest -p workshop.pytest_mine tests/step02

`own_tests.py` starts it; the folder has the functions, and gets a line for each test that ran:
which, how it ended, and which of the learner's functions were called in it.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from step02_mlp_parallel import launch

from .mine import Mine, WithMine, called
from .warm import busy

FOLDER = Path(os.environ["WORKSHOP_MINE"])
MINES: tuple[Mine, ...] = pickle.loads((FOLDER / "mines").read_bytes())
CALLS = tempfile.mkdtemp(dir=FOLDER, prefix="calls-")  # of this pytest process and its ranks
REAL_RUN_RANKS = launch.run_ranks


def run_ranks(fn: Any, world_size: int, *args: Any, **options: Any) -> list[Any]:
    """`launch.run_ranks`, with the learner's functions in the ranks too."""
    try:
        pickle.dumps(fn)
    except Exception:  # the tests of `run_ranks` send such things; it says what it says
        return REAL_RUN_RANKS(fn, world_size, *args, **options)
    options.setdefault("timeout", 60.0 * busy())  # a slow machine is no mistake of the learner's
    return REAL_RUN_RANKS(WithMine(MINES, fn, CALLS), world_size, *args, **options)


def install() -> None:
    for mine in MINES:
        mine.install(CALLS)
    for name, module in list(sys.modules.items()):
        if name.startswith(("step0", "tests")):
            for key, value in list(vars(module).items()):
                if value is REAL_RUN_RANKS:
                    setattr(module, key, run_ranks)


install()  # before pytest imports the tests


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for file in Path(CALLS).iterdir():
        file.unlink()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Generator[None, Any, Any]:
    report = yield
    if report.when == "call" or report.outcome == "failed":
        row = {"test": item.nodeid, "passed": report.outcome == "passed", "called": called(CALLS)}
        with open(FOLDER / "results", "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")  # one write: other workers append too
    return report
