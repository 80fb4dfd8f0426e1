"""What has been done: kept by the content of the answers, so that finished work isn't run again
and a change of it isn't forgotten. Standard library only."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from .exercises import Exercise, all_steps
from .load import look
from .make_exercises import WORK, usable, work_file

STATE = WORK / "progress.json"
LOG = WORK / "log.jsonl"  # only written if it is there: an empty file switches it on


def load() -> dict[str, Any]:
    """{"passed": {id: hash}, "hints": {id: how often one was asked for}, "solutions": the same,
    "together": {step: [hash, whether it went well, what was said]}}"""
    try:
        found = json.loads(STATE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        found = {}
    for key in ("passed", "hints", "solutions", "together"):
        if not isinstance(found.get(key), dict):
            found[key] = {}
    return found


def save(state: dict[str, Any]) -> None:
    """Whole or not at all. Where nothing can be written the work goes on, and a line says so."""
    try:
        STATE.parent.mkdir(parents=True, exist_ok=True)
        new = STATE.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(state, indent=1), encoding="utf-8")
        new.replace(STATE)
    except OSError as error:
        print(f"(progress can't be kept: {error.filename}: {error.strerror})", file=sys.stderr)


def fingerprint(tree: ast.Module, exercise: Exercise, real: str) -> str:
    """Of everything in the file that the exercise may use: all but the other exercises, so that
    comments and blank lines don't count. `real`: of the real code around it."""
    names = {part.owner or part.name for part in exercise.parts}
    others = {
        part.owner or part.name for e in usable(exercise.step) for part in e.parts
    } - names  # fmt: skip
    kept = [node for node in tree.body if getattr(node, "name", None) not in others]
    text = "\0".join([real, exercise.id, *(ast.dump(node) for node in kept)])
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def real_code() -> str:
    """A hash of the steps and the workshop, as they are now."""
    digest = hashlib.blake2b(digest_size=8)
    root = WORK.parents[1]
    for path in sorted([*root.glob("step0*/*.py"), *root.glob("workshop/*.py"),
                        *root.glob("workshop/probes/*.py")]):  # fmt: skip
        digest.update(path.read_bytes())
    return digest.hexdigest()


def note(id: str, state: str, keys: tuple[str, ...]) -> None:
    """A line in the local log, if the learner has switched it on: exercise, diagnosis, time."""
    if LOG.exists() and state != "todo":
        row = {"time": int(time.time()), "exercise": id, "state": state, "diagnosis": list(keys)}
        with LOG.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def board() -> str:
    """All steps: a mark for each exercise."""
    state, real, lines, done, total = load(), real_code(), [], 0, 0
    for step in all_steps():
        try:
            exercises = usable(step)
        except ValueError:
            lines.append(f"step {step}   (no exercises to hand out yet)")
            continue
        tree = _tree(work_file(step))
        row = []
        for exercise in exercises:
            passed = tree is not None and state["passed"].get(exercise.id) == fingerprint(
                tree, exercise, real
            )
            once = exercise.id in state["passed"]
            done, total = done + passed, total + 1
            row.append(
                f"{exercise.id} {'✔' if passed else '↻' if once else _begun(tree, exercise)}"
            )
        lines.append(f"step {step}   " + "   ".join(row))
    share = round(100 * done / total) if total else 0
    lines.append(f"{done} of {total} done, {share} %    (↻: passed once, changed since)")
    return "\n".join(lines)


def _tree(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None


def _begun(tree: ast.Module | None, exercise: Exercise) -> str:
    return "…" if tree is not None and look(tree, exercise).state == "ready" else "·"
