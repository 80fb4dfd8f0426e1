"""The official files of the paper's tasks: GLUE's MNLI and QQP, RACE, SQuAD 1.1 and 2.0.

Each reader raises ValueError that names the file and the line (or the question, where one line
holds everything) of the first thing that is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple


class Pair(NamedTuple):
    """Two texts and which of the task's classes they are; `group` is scored for itself too."""

    first: str
    second: str
    label: int
    group: str = ""


class Choice(NamedTuple):
    """A text, a question to it, answers to choose from, and which is right."""

    context: str
    question: str
    options: tuple[str, ...]
    label: int
    group: str = ""


class Question(NamedTuple):
    """A question whose answers are spans of `context`: (text, where it begins). None: no answer."""

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...]
    group: str = ""


@dataclass(frozen=True)
class Columns:
    """Which columns of a .tsv are meant, by their names in its first line. Rows labelled `no_label`
    have no answer that their writers agreed on; nobody scores them."""

    first: str
    second: str
    label: str
    classes: tuple[str, ...]
    no_label: str = ""


MNLI = Columns(
    "sentence1", "sentence2", "gold_label", ("contradiction", "entailment", "neutral"), "-"
)
QQP = Columns("question1", "question2", "is_duplicate", ("0", "1"))


def read_tsv(
    path: Path, columns: Columns, group: str = "", *, skip_malformed: bool = False
) -> tuple[list[Pair], list[int]]:
    """(pairs, lines left out). With `skip_malformed` (QQP's training file has lines that were torn
    apart) bad lines are left out and counted, else the first of them raises ValueError."""
    # Only "\n" ends a line: str.splitlines also cuts at characters that texts contain.
    lines = [line.removesuffix("\r") for line in _text(path).split("\n")]
    names = lines[0].split("\t")
    wanted = (columns.first, columns.second, columns.label)
    missing = [name for name in wanted if name not in names]
    if missing:
        raise ValueError(f"{path}, line 1: no column {', '.join(missing)} among {names}")
    places = [names.index(name) for name in wanted]
    pairs, left_out = [], []
    for number, line in enumerate(lines[1:], start=2):
        if not line and number == len(lines):  # behind the last line's end
            continue
        fields = line.split("\t")
        wrong = ""
        if len(fields) != len(names):
            wrong = f"{len(fields)} fields where the first line names {len(names)}"
        else:
            first, second, label = (fields[i] for i in places)
            if columns.no_label and label == columns.no_label:
                continue
            if label in columns.classes:
                pairs.append(Pair(first, second, columns.classes.index(label), group))
                continue
            wrong = f"label {label!r} is out of range: it must be one of {columns.classes}"
        if not skip_malformed:
            raise ValueError(f"{path}, line {number}: {wrong}")
        left_out.append(number)
    return _some(pairs, path), left_out


def read_race(folder: Path) -> list[Choice]:
    """All questions of all `*.txt` below `folder`; the group is the folder's name that each file is
    in, "middle" or "high"."""
    files = sorted(folder.rglob("*.txt"))
    found = []
    for path in files:
        entry = _json(path)
        try:
            parts = zip(entry["questions"], entry["options"], entry["answers"], strict=True)
            for number, (question, options, answer) in enumerate(parts, start=1):
                if answer not in ("A", "B", "C", "D") or len(options) != 4:
                    raise ValueError(
                        f"question {number} has {len(options)} options and the answer {answer!r}; "
                        "there must be 4, and one of A, B, C, D"
                    )
                label = "ABCD".index(answer)
                article = entry["article"]
                found.append(Choice(article, question, tuple(options), label, path.parent.name))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: not a RACE passage: {_said(error)}") from error
    return _some(found, folder)


def read_squad(path: Path, *, no_answer: bool) -> list[Question]:
    """SQuAD 1.1's questions, or 2.0's with `no_answer`, where a question may have no answer."""
    found = []
    entry: Any = None
    where: str | None = None
    try:
        for a, article in enumerate(_json(path)["data"]):
            for p, paragraph in enumerate(article["paragraphs"]):
                for q, entry in enumerate(paragraph["qas"]):
                    where = f"data[{a}].paragraphs[{p}].qas[{q}]"
                    impossible = bool(entry.get("is_impossible", False))
                    answers = [] if impossible else entry["answers"]
                    spans = tuple((one["text"], one["answer_start"]) for one in answers)
                    question = Question(
                        entry["id"], entry["question"], paragraph["context"], spans,
                        article.get("title", ""),
                    )  # fmt: skip
                    if not spans and not (impossible and no_answer):
                        raise ValueError("it has no answer; SQuAD 2.0's are read as task squad2")
                    found.append(check_answers(question))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if where is None and isinstance(error, ValueError):
            raise
        name = f", id {entry['id']}" if isinstance(entry, dict) and "id" in entry else ""
        raise ValueError(f"{path}, {where or 'data'}{name}: {_said(error)}") from error
    return _some(found, path)


def check_answers(question: Question) -> Question:
    """Raise ValueError unless each answer stands in the context where it says."""
    for text, start in question.answers:
        there = question.context[start : start + len(text)]
        if not text or there != text:
            raise ValueError(
                f"the answer {text!r} is not in the context at character {start}: "
                f"{there!r} is there"
            )
    return question


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ValueError(f"can't read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise ValueError(f"{path}, line {line}: not UTF-8") from error


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {error.lineno}: not JSON: {error.msg}") from error


def _some(found: list[Any], path: Path) -> list[Any]:
    if not found:
        raise ValueError(f"there is nothing to learn or to score in {path}")
    return found


def _said(error: Exception) -> str:
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)


def accepted(questions: Iterable[Question]) -> dict[str, list[str]]:
    """The right answers by the question's id, none where there is none."""
    return {q.id: [text for text, _ in q.answers] for q in questions}
