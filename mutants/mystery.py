"""`make mystery-step2`: a copy with one planted fault, to be found from its symptoms.

The fault is one that somebody shipped. Which one follows from step and seed; the first few seeds
go through all that the step has. The copy has neither the bank nor a history to compare with.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from step01_single_gpu.programs import run_program

from .bank import ROOT, Mutant, difference, load, place, planted
from .copies import Pytest, copy_tracked

RUNS = ROOT / "runs" / "mystery"
SUSPECTS, LIMIT = 6, 300.0  # seconds for the test that shows the symptom
DEMOS = {2: "step02_mlp_parallel.demo", 3: "step03_attention_parallel.timeline"}


@dataclass(frozen=True)
class Options:
    """Find a planted fault from its symptoms, and name it."""

    step: str
    """Of which step: 1 to 6."""
    seed: int | None = None
    """Which mystery; None is the one that is open, or the first."""
    hint: int | None = None
    """1, 2 or 3: each is nearer than the last."""
    answer: str | None = None
    """The name of the fault that you suspect."""
    force: bool = False
    """Copy the mystery anew, without your changes."""


def main(options: Options) -> None:
    step = known_step(options.step, load())
    if options.hint is not None and options.answer is not None:
        raise ValueError("ask for a hint, or give an answer; one at a time")
    if options.hint is not None:
        print(hints(step, options.hint))
    elif options.answer is not None:
        print(judged(step, options.answer))
    else:
        print("copying the project, and running a test in the copy ...", flush=True)
        print(started(step, options.seed, force=options.force))


def known_step(text: str, bank: Sequence[Mutant]) -> int:
    """The step, if it has mysteries. Raises ValueError that names near ones."""
    steps = sorted({mutant.step for mutant in bank if mutant.story})
    if not text.isdigit():
        raise ValueError(f"{text!r} is not a step; say one of {', '.join(map(str, steps))}")
    if int(text) not in steps:
        nearest = min(steps, key=lambda step: abs(step - int(text)))
        raise ValueError(
            f"there is no mystery in step {text}; there are some in "
            f"{', '.join(map(str, steps))}: try make mystery-step{nearest}"
        )
    return int(text)


def culprit(step: int, seed: int, bank: Sequence[Mutant]) -> Mutant:
    """The fault of a mystery: seeds 1, 2, … go through a step's stories in a shuffled order."""
    told = [mutant for mutant in bank if mutant.step == step and mutant.story]
    random.Random(f"mysteries of step {step}").shuffle(told)
    return told[(seed - 1) % len(told)]


def suspects(step: int, seed: int, bank: Sequence[Mutant]) -> list[Mutant]:
    """The fault and others of the step, by name."""
    fault = culprit(step, seed, bank)
    others = [mutant for mutant in bank if mutant.step == step and mutant != fault]
    drawn = random.Random(f"suspects of step {step}, seed {seed}").sample(others, SUSPECTS - 1)
    return sorted([fault, *drawn], key=lambda mutant: mutant.name)


def started(step: int, seed: int | None, *, force: bool = False) -> str:
    """Make the copy, or keep it as the learner left it; the story so far."""
    bank, folder = load(), _folder(step)
    before = _open_seed(step)
    seed = seed if seed is not None else before or 1
    if seed < 1:
        raise ValueError(f"the seed is {seed}; it must be at least 1")
    fault = culprit(step, seed, bank)
    if force or seed != before:
        shutil.rmtree(folder, ignore_errors=True)
        _note(step).unlink(missing_ok=True)
        folder.mkdir(parents=True)
        # Neither the answers nor the steps above.
        copy_tracked(ROOT, folder, without=("mutants", "workshop", "benchmarks"))
        (folder / fault.file).write_text(planted(fault, ROOT)[1], encoding="utf-8")
        (folder / ".venv").symlink_to(ROOT / ".venv")
        _note(step).write_text(json.dumps({"seed": seed, "fault": _sealed(fault.name)}))
    outcome = Pytest()(folder, fault.tests, LIMIT)
    lines = [
        f"Step {step}, mystery {seed}. In {_shown(folder)} there is a copy of the project with one "
        "fault in it.",
        {
            "green": "This test was red there, and you have mended it:",
            "broken": "This test can't even start there; did you change something?",
        }.get(outcome.state, "This test is red there:"),
        *(f"  {test}" for test in fault.tests),
        *_symptoms(outcome.output),
        "",
        "Go there and look around. Print what you like; the copy is yours:",
        f"  cd {_shown(folder)}",
        f"  .venv/bin/python -m pytest -x {fault.tests[0]}",
        f"  .venv/bin/python -m pytest -n 2 tests/step{step:02d}",
        *([f"  .venv/bin/python -m {DEMOS[step]}"] if step in DEMOS else []),
        "",
        "One of these is the fault:",
    ]
    for suspect in suspects(step, seed, bank):
        lines += [f"  {suspect.name}", f"      {suspect.fault}", f"      {place(suspect)}"]
    return "\n".join(
        [
            *lines,
            "",
            "Which one? Say it with ANSWER=name, or ask for HINT=1, then 2 and 3:",
            f"  make mystery-step{step} HINT=1",
        ]
    )


def hints(step: int, level: int) -> str:
    """The open mystery's hints up to `level`."""
    if not 1 <= level <= 3:
        raise ValueError(f"there is no hint {level}; hints go from 1 to 3")
    _, fault = _opened(step)
    assert fault.story is not None
    return "\n".join(f"{i}. {hint}" for i, hint in enumerate(fault.story.hints[:level], start=1))


def judged(step: int, answer: str) -> str:
    """What is to be said to an answer. Raises ValueError for a name that isn't on the list."""
    seed, fault = _opened(step)
    listed = {suspect.name: suspect for suspect in suspects(step, seed, load())}
    if answer not in listed:
        near = difflib.get_close_matches(answer, listed, 2, 0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else f"say one of {', '.join(listed)}"
        raise ValueError(f"{answer!r} is not among the suspects of this mystery; {hint}")
    if answer != fault.name:
        return (
            f"Not this one: {place(listed[answer])} is as it should be. That is one suspect less; "
            "look at the red test again, or ask for a hint."
        )
    assert fault.story is not None
    return "\n".join(
        [
            f"Yes. {fault.fault[0].upper()}{fault.fault[1:]}.",
            "",
            difference(fault),
            "",
            "It really happened:",
            *(f"  {_address(report)}" for report in fault.story.reports),
            fault.story.told,
            "",
            f"The next one: make mystery-step{step} SEED={seed + 1}",
        ]
    )


def _opened(step: int) -> tuple[int, Mutant]:
    """Seed and fault of the mystery that is open. Raises ValueError if none is."""
    seed = _open_seed(step)
    if seed is None:
        raise ValueError(f"no mystery of step {step} is open: begin with make mystery-step{step}")
    sealed = json.loads(_note(step).read_text())["fault"]
    fault = culprit(step, seed, load())
    if _sealed(fault.name) != sealed:
        raise ValueError(
            f"the bank has changed since this mystery began: make mystery-step{step} FORCE=1"
        )
    return seed, fault


def _open_seed(step: int) -> int | None:
    if not _folder(step).is_dir() or not _note(step).is_file():
        return None
    return int(json.loads(_note(step).read_text())["seed"])


def _folder(step: int) -> Path:
    return RUNS / f"step{step:02d}"


def _note(step: int) -> Path:
    """Beside the copy: which mystery it is, without saying what."""
    return RUNS / f"step{step:02d}.json"


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def _sealed(name: str) -> str:
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()


def _symptoms(output: str) -> list[str]:
    """What pytest says that is wrong, shortened."""
    said = [line[1:].strip() for line in output.splitlines() if line.startswith("E  ")]
    return [f"    {line[:150]}" for line in said[:8]]


def _address(report: str) -> str:
    repository, _, number = report.partition("#")
    return f"https://github.com/{repository}/issues/{number}"


if __name__ == "__main__":
    run_program(main, Options)
