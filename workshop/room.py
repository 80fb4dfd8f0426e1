"""`make room FILES="…"`: which misconception a room is stuck on, from the learners' own logs.

A log is opt-in (`make log`), stays on the learner's machine and has no names in it: one line a
check, of exercise, state, diagnosis and time. Whoever wants to hands the file on. Standard library
only.
"""

from __future__ import annotations

import json
import statistics
import textwrap
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import progress
from .exercises import exercise
from .make_exercises import shown
from .texts import chapter, text

SHOWN = 5  # misconceptions


@dataclass(frozen=True)
class Stuck:
    """One learner's exercise that is red at its last check."""

    id: str
    keys: tuple[str, ...]  # of the last diagnosis; () if there was none
    minutes: float  # since this exercise was first red, and not green since


def room(files: list[str]) -> str:
    """The text for whoever runs the room. Raises ValueError, OSError for files that are no logs."""
    if not files:
        raise ValueError('say which logs: make room FILES="anna.jsonl ben.jsonl"')
    stuck: list[Stuck] = []
    passed: Counter[str] = Counter()
    for file in files:
        own, done = read_log(Path(file))
        stuck += own
        passed.update(done)
    groups: dict[tuple[str, tuple[str, ...]], list[Stuck]] = {}
    for one in stuck:
        groups.setdefault((one.id, one.keys), []).append(one)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    lines = [f"{len(files)} logs"]
    for (id, keys), members in ordered[:SHOWN]:
        minutes = statistics.median(member.minutes for member in members)
        lines += [
            "",
            f"{len(members)} stuck on {id} {_title(id)} for {minutes:.0f} minutes (median)",
        ]
        lines += _said(id, keys)
    if not ordered:
        lines.append("nobody is stuck")
    if len(ordered) > SHOWN:
        lines.append(f"\nand {len(ordered) - SHOWN} others, of one or a few each")
    everyone = sorted({*passed, *(one.id for one in stuck)})
    waiting = Counter(one.id for one in stuck)
    lines += ["", "exercise   passed   stuck"]
    lines += [f"{id:<11}{passed[id]:>6}{waiting[id]:>8}" for id in everyone]
    return "\n".join(lines)


def read_log(path: Path) -> tuple[list[Stuck], list[str]]:
    """(what one learner is stuck on, the ids that are green). A torn line is passed over."""
    since: dict[str, float] = {}
    last: dict[str, dict[str, Any]] = {}
    end = 0.0
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(_row, lines) if row is not None]
    if lines and not rows:
        raise ValueError(f"{path} is not a log of the workshop: no line of it has an exercise")
    for row in rows:
        id, end = row["exercise"], float(row["time"])
        if row["state"] == "green":
            since.pop(id, None)
        else:
            since.setdefault(id, end)
        last[id] = row
    stuck = [
        Stuck(id, tuple(last[id]["diagnosis"]), (end - began) / 60) for id, began in since.items()
    ]
    return stuck, [id for id, row in last.items() if row["state"] == "green"]


def switch(words: Iterable[str]) -> str:
    """`make log ON=1`, `ON=0`, or what it is: the text that is shown."""
    word, path = next(iter(words), ""), progress.LOG
    if word not in ("", "on", "off"):
        raise ValueError(f"{word!r}: say on or off (make log ON=1, make log ON=0)")
    if word == "on":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    if word == "off" and path.exists():
        path.unlink()
    if not path.exists():
        return f"No log is kept. make log ON=1 begins one in {shown(path)}. {WHAT}"
    count = len(path.read_text(encoding="utf-8").splitlines())
    return f"{shown(path)} has {count} lines. {WHAT} make log ON=0 deletes it."


WHAT = (
    "Each check adds its exercises, whether they were right, the diagnosis and the time: no name, "
    "no code, and nothing is sent anywhere."
)


def _row(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
        float(row["time"]), row["exercise"] + row["state"], list(row["diagnosis"])
    except (ValueError, TypeError, KeyError):
        return None
    return row if isinstance(row, dict) else None


def _title(id: str) -> str:
    try:
        return exercise(id).title
    except ValueError:  # a log of another version
        return ""


def _said(id: str, keys: tuple[str, ...]) -> list[str]:
    """The invariant that is broken and where it stands, for each diagnosis."""
    lines = [] if keys else ["without a diagnosis: look over a shoulder"]
    for key in keys:
        try:
            message = text(id).messages[key]
        except (ValueError, KeyError):
            lines.append(key)
            continue
        lines += [message.invariant, f"Read on: {chapter(id, message.place)}"]
    return [
        textwrap.fill(line, 92, initial_indent="   ", subsequent_indent="   ") for line in lines
    ]
