"""`make test-step2`: the step's own tests, with the learner's functions in place if there are any.

The check comes first, and the first line says whose code is tested. REAL=1 tests the real code.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .exercises import ROOT, step_folder
from .load import LearnerError
from .make_exercises import shown, work_file
from .mine import Mine


def run_tests(step: int, arguments: list[str]) -> int:
    """Run them; returns pytest's exit status, or 1 if the check isn't green."""
    tests = f"tests/{step_folder(step).name[:6]}"
    real = os.environ.get("REAL") == "1"
    if real or not work_file(step).is_file():
        why = "REAL=1" if real else f"there is no {shown(work_file(step))}"
        print(f"Tested: the real code of step {step} ({why}).", flush=True)
        return pytest_run([tests, *arguments])[0]
    from .board import show
    from .standing import standing

    try:
        found = standing(step)
    except LearnerError as error:
        print(f"Tested: nothing. {error}")
        return 1
    left_out = [outcome.id for outcome in found.broken]
    note = f" Left out, since the check is red: {', '.join(left_out)}." if left_out else ""
    if not found.finished:
        print(f"Tested: the real code of step {step}; nothing in {found.name} is finished.{note}")
    else:
        print(
            f"Tested: your {', '.join(found.finished)} ({found.name}); the rest of step {step} is "
            f"real.{note} REAL=1 tests the real code."
        )
    checked = show(found)
    print(flush=True)
    status, rows = pytest_run([tests, *arguments], (found.mine,) if found.finished else ())
    used = {id for row in rows for id in row["called"]}
    idle = [id for id in found.finished if id not in used]
    if found.finished:
        print(f"{sum(bool(row['called']) for row in rows)} of {len(rows)} tests called your code.")
    if idle and rows:
        print(f"No test called your {', '.join(idle)}.")
    return status or checked


def pytest_run(
    arguments: list[str], mines: tuple[Mine, ...] = (), *, quiet: bool = False
) -> tuple[int, list[dict[str, Any]]]:
    """pytest's exit status, and with `mines` a row for each test: test, passed, called."""
    command = [sys.executable, "-m", "pytest", *arguments]
    if "-n" not in arguments:
        command += ["-n", "2"]
    if not mines:
        return subprocess.run(command, cwd=ROOT, check=False).returncode, []
    with tempfile.TemporaryDirectory(prefix="workshop-") as folder:
        (Path(folder) / "mines").write_bytes(pickle.dumps(mines))
        environment = {**os.environ, "WORKSHOP_MINE": folder}
        result = subprocess.run(
            [*command, "-p", "workshop.pytest_mine"],
            cwd=ROOT, env=environment, check=False, capture_output=quiet,
        )  # fmt: skip
        results = Path(folder) / "results"
        lines = results.read_text(encoding="utf-8").splitlines() if results.is_file() else []
        return result.returncode, [json.loads(line) for line in lines]
