"""What is said about an exercise: its task, hints, and the entries of the catalogue, from TOML."""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .exercises import exercise, step_folder

FOLDER = Path(__file__).with_name("texts")


@dataclass(frozen=True)
class Message:
    """An entry of the catalogue: what is to be seen, what is broken, where to read on."""

    key: str
    says: str
    invariant: str
    place: str


@dataclass(frozen=True)
class Text:
    id: str
    task: str
    minutes: int
    lines: int
    teaches: str
    place: str
    hints: tuple[str, ...]
    messages: dict[str, Message]

    def key_of(self, key: str) -> str:
        """The entry that a wrong choice belongs to; "" if the catalogue has none."""
        return self.messages[key].key if key in self.messages else ""


def text(id: str) -> Text:
    """Raises ValueError for an exercise that doesn't exist or that nobody has written about."""
    exercise(id)
    found = _file(f"step{id.partition('.')[0]:0>2}").get(id)
    if found is None:
        raise ValueError(f"exercise {id} has no text yet: texts/ has no entry for it")
    messages = _messages(_file("common")) | _messages(found.get("messages", {}))
    return Text(
        id, found["task"].strip(), found["minutes"], found["lines"], found["teaches"],
        found["place"], tuple(found["hints"]), messages,
    )  # fmt: skip


def own_messages(id: str) -> dict[str, Message]:
    """The entries of this exercise alone."""
    return _messages(_file(f"step{id.partition('.')[0]:0>2}")[id].get("messages", {}))


def written(step: int) -> list[str]:
    """Ids of the exercises of a step that have texts."""
    return list(_file(f"step{step:02d}"))


def chapter(id: str, place: str) -> str:
    """Where to read: the README of the exercise's step, or of another ("2: …"), and the heading."""
    other = re.match(r"(\d): ", place)
    step = int(other[1] if other else id.partition(".")[0])
    return f'{step_folder(step).name}/README.md, "{place[other.end() :] if other else place}"'


@functools.cache
def _file(name: str) -> dict[str, Any]:
    path = FOLDER / f"{name}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _messages(table: dict[str, Any]) -> dict[str, Message]:
    made = {
        key: Message(key, row["says"], row["invariant"], row["place"])
        for key, row in table.items()
        if isinstance(row, dict)
    }
    return made | {key: made[row] for key, row in table.items() if isinstance(row, str)}
