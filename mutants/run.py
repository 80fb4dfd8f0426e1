"""`make mutants`: plant one fault at a time, and see that the tests notice.

Each fault is planted in a fresh copy, and the tests that the bank names for it run there: the
cheapest that should turn red. Only if none does, the step's whole suite runs. First all named tests
run once without any fault, for a test that is red anyway proves nothing.
"""

from __future__ import annotations

import difflib
import re
import signal
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from step01_single_gpu.programs import run_program

from .bank import BANK, ROOT, Mutant, check, difference, load, planted
from .copies import Outcome, Pytest, copy_tracked

SUITE = 6  # a whole suite may take so many times as long as a few named tests


@dataclass(frozen=True)
class Options:
    """Try the tests: does each planted fault turn one of them red?"""

    step: int | None = None
    """Only the faults of this step."""
    name: str | None = None
    """Only this one."""
    workers: int = 2
    """How many faults at a time."""
    limit: float = 180.0
    """Seconds for the named tests of one fault; a test that hangs proves nothing."""


@dataclass(frozen=True)
class Verdict:
    """ "killed", "elsewhere" (killed, but by a test that isn't named), "survived", "unknown"."""

    mutant: Mutant
    state: str
    said: str = ""


def main(options: Options) -> None:
    signal.signal(signal.SIGTERM, _as_ctrl_c)  # so that what was started is ended too
    verdicts = try_all(chosen(load(), options), ROOT, options.workers, options.limit)
    text, status = summary(verdicts, ROOT)
    print(text)
    sys.exit(status)


def chosen(mutants: list[Mutant], options: Options) -> list[Mutant]:
    """The mutants that are asked for. Raises ValueError, with near ones, if there are none."""
    if options.workers < 1 or options.limit <= 0.0:
        raise ValueError(
            f"workers is {options.workers} and limit {options.limit}; both must be above 0"
        )
    steps = sorted({mutant.step for mutant in mutants})
    if options.step is not None and options.step not in steps:
        raise ValueError(f"no faults for step {options.step}; there are some for {steps}")
    found = [m for m in mutants if options.step in (None, m.step)]
    if options.name is not None:
        near = difflib.get_close_matches(options.name, [m.name for m in found], 3, 0.4)
        found = [m for m in found if m.name == options.name]
        if not found:
            hint = f"did you mean {', '.join(near)}?" if near else f"they are in {BANK}"
            raise ValueError(f"no fault is called {options.name!r}; {hint}")
    return found


def try_all(
    mutants: Sequence[Mutant], root: Path, workers: int = 2, limit: float = 180.0
) -> list[Verdict]:
    """A verdict on each, in order. Raises ValueError for a bank that doesn't fit the code, and for
    tests that are red without any fault."""
    wrong = check(mutants, root)
    if wrong:
        raise ValueError("\n".join(wrong))
    pytest, verdicts = Pytest(), {}
    with ThreadPoolExecutor(workers) as pool:
        try:
            for outcome in pool.map(
                lambda tests: in_a_copy(pytest, root, None, tests, SUITE * limit), named(mutants)
            ):
                if outcome.state != "green":
                    raise ValueError(f"red without any fault ({outcome.state}):\n{outcome.output}")
            jobs = {pool.submit(try_one, pytest, m, root, limit): m.name for m in mutants}
            bar = tqdm(as_completed(jobs), total=len(jobs), unit=" faults", dynamic_ncols=True)
            for job in bar:
                verdicts[jobs[job]] = verdict = job.result()
                bar.set_postfix_str(verdict.mutant.name)
                if verdict.state != "killed":
                    tqdm.write(f"{verdict.mutant.name}: {verdict.state}")
        except BaseException:
            pytest.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [verdicts[mutant.name] for mutant in mutants]


def named(mutants: Sequence[Mutant]) -> list[list[str]]:
    """All tests that are named, each once, in a list for each step."""
    steps = sorted({mutant.step for mutant in mutants})
    return [sorted({t for m in mutants if m.step == step for t in m.tests}) for step in steps]


def try_one(pytest: Pytest, mutant: Mutant, root: Path, limit: float) -> Verdict:
    """Named tests; if they stay green, the step's suite."""
    outcome = in_a_copy(pytest, root, mutant, mutant.tests, limit)
    if outcome.state == "red":
        return Verdict(mutant, "killed", outcome.output)
    if outcome.state != "green":
        return Verdict(mutant, "unknown", f"{outcome.state}:\n{outcome.output}")
    outcome = in_a_copy(pytest, root, mutant, [f"tests/step{mutant.step:02d}"], SUITE * limit)
    if outcome.state == "green":
        return Verdict(mutant, "survived")
    said = r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$"
    red = re.findall(said, outcome.output, re.MULTILINE)
    if outcome.state == "red" and red:
        alone = in_a_copy(pytest, root, None, red, limit)
        if alone.state == "green":
            return Verdict(mutant, "elsewhere", red[0])
    return Verdict(mutant, "unknown", f"the suite, {outcome.state}:\n{outcome.output}")


def in_a_copy(
    pytest: Pytest, root: Path, mutant: Mutant | None, tests: Sequence[str], limit: float
) -> Outcome:
    """Run tests in a fresh copy, with the fault or (None) without any."""
    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        copy_tracked(root, folder)
        if mutant is not None:
            (folder / mutant.file).write_text(planted(mutant, root)[1], encoding="utf-8")
        return pytest(folder, tests, limit)


def summary(verdicts: Sequence[Verdict], root: Path) -> tuple[str, int]:
    """What to print, and the exit status: 1 if a fault survived, 2 if one has no verdict."""
    of = {state: [v for v in verdicts if v.state == state]
          for state in ("killed", "elsewhere", "survived", "unknown")}  # fmt: skip
    lines = []
    for verdict in of["elsewhere"]:
        lines.append(f"{verdict.mutant.name}: name {verdict.said}, which alone turned red")
    for verdict in of["unknown"]:
        lines.append(f"{verdict.mutant.name}: no verdict, {verdict.said}")
    for verdict in of["survived"]:
        mutant = verdict.mutant
        lines += ["", f"SURVIVED  {mutant.name}: {mutant.fault} ({mutant.why})"]
        lines += [difference(mutant, root)]
    killed = len(of["killed"]) + len(of["elsewhere"])
    lines += ["", f"{killed} of {len(verdicts)} planted faults were noticed"]
    status = 1 if of["survived"] else 2 if of["unknown"] else 0
    return "\n".join(lines).strip(), status


def _as_ctrl_c(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    run_program(main, Options)
