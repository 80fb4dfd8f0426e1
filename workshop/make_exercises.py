"""Writes a step's work file: its exercises with their statements and nothing in their bodies.

Derived from the step's source each time. A file that a learner has is never overwritten: with
`force` it is kept beside the new one. Standard library only.
"""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

from .exercises import ROOT, Exercise, Part, exercises_of, step_folder
from .solutions import solution
from .texts import text, written

WORK = ROOT / "workshop" / "work"
_VERSIONS = re.compile(r"^# versions: (.*)$", re.MULTILINE)


def work_file(step: int) -> Path:
    """Where the learner's file of a step is."""
    return WORK / f"{step_folder(step).name}.py"


def shown(path: Path) -> str:
    """The path as a learner would type it."""
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def usable(step: int) -> list[Exercise]:
    """The exercises of a step that have a text and so can be given out."""
    ready = written(step)
    found = [e for e in exercises_of(step) if e.id in ready]
    if not found:
        raise ValueError(f"the exercises of step {step} have no texts yet")
    return found


def make(step: int, *, force: bool = False) -> str:
    """Write the file of a step; returns what to tell the learner. Raises ValueError, OSError."""
    path, exercises = work_file(step), usable(step)
    backup = None
    if path.exists():
        if not force:
            changed = changes(path.read_text(encoding="utf-8"), exercises)
            note = f"\n{changed}" if changed else ""
            return (
                f"{shown(path)} is there already and stays as it is (FORCE=1 makes a fresh one, "
                f"and keeps a backup).{note}"
            )
        backup = _backup(path)
        path.replace(backup)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(contents(step, exercises), encoding="utf-8")
    kept = f" The old one is {backup.name}." if backup else ""
    return f"{shown(path)} is ready: open it in an editor.{kept} Then: make check-step{step}"


def changes(source: str, exercises: list[Exercise]) -> str:
    """What has changed in the exercises since the file was made; "" if nothing has."""
    match = _VERSIONS.search(source)
    had = dict(pair.split("=") for pair in match[1].split() if "=" in pair) if match else {}
    lines = []
    for exercise in exercises:
        if exercise.id not in had:
            lines.append(f"  {exercise.id} {exercise.title}: new since your file was made")
        elif had[exercise.id] != exercise.version:
            heads = "; ".join(part.head.replace("\n", " ") for part in exercise.parts)
            lines.append(f"  {exercise.id} {exercise.title}: is now asked as {heads}")
    if not lines:
        return ""
    return "\n".join(["Your file is of an older version of the exercises:", *lines])


def contents(step: int, exercises: list[Exercise]) -> str:
    """The text of a fresh work file."""
    versions = " ".join(f"{e.id}={e.version}" for e in exercises)
    imports = "\n".join(_imports(exercises))
    head = (
        f'"""Step {step}: your functions. Write their bodies; the rest of the step is real.\n\n'
        f"make check-step{step}      what is right, and what is wrong with the rest\n"
        f"make hint EX={exercises[0].id}       a question; again: where to read; again: the shape\n"
        '"""\n\n'
        f"# versions: {versions}\n"
        "from __future__ import annotations\n\n"
        f"{imports}\n"
    )
    return head + "".join(f"\n\n{_stub(e)}" for e in exercises)


def _stub(exercise: Exercise) -> str:
    said = text(exercise.id)
    pieces = []
    for part in exercise.parts:
        doc = part.docstring
        body = f'"""{doc}"""' if doc.count("\n") == 0 else f'"""{doc}\n"""'
        body = textwrap.indent(body, "    ") + "\n" if doc else ""
        stub = f'{part.head}\n{body}    raise NotImplementedError("{exercise.id}")'
        if part.owner:
            stub = f"class {part.owner}:\n" + textwrap.indent(stub, "    ")
        pieces.append(stub)
    task = textwrap.indent(said.task, "# ")
    about = f"about {said.lines} lines, {said.minutes} minutes"
    head = f"# {exercise.id} · {exercise.title} · {about}\n#\n{task}\n"
    return head + "\n\n\n".join(pieces) + "\n"


_BASE = (
    ("typing", "Any"),
    ("torch", ""),
    ("torch.distributed", "as dist"),
    ("torch", "Tensor"),
    ("torch.nn", "functional as F"),
)
_STANDARD = {"collections", "contextlib", "hashlib", "math", "typing"}


def _imports(exercises: list[Exercise]) -> list[str]:
    """What the real bodies use from outside their files; of the wire, all that there is."""
    used = {name for e in exercises for name in re.findall(r"\w+", solution(e))}
    parts = [part for exercise in exercises for part in exercise.parts]
    own = {part.owner or part.name for part in parts}
    found = set(_BASE)
    for part in parts:
        found |= _imported(part, used, own)
    whole = sorted(
        f"import {module}" + (f" {name}" if name else "")
        for module, name in found
        if not name or name.startswith("as ")
    )
    groups: dict[str, list[str]] = {}
    for module, name in sorted(found):
        if name and not name.startswith("as "):
            groups.setdefault(module, []).append(name)
    parted = [_from(module, names) for module, names in groups.items()]
    lines = [*whole, *parted]
    return sorted(lines, key=_rank_of_import)


def _from(module: str, names: list[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    return (
        line
        if len(line) <= 100
        else f"from {module} import (\n    " + ",\n    ".join(names) + ",\n)"
    )


def _rank_of_import(line: str) -> tuple[int, int, str]:
    package = line.split()[1].partition(".")[0]
    kind = 0 if package in _STANDARD else 2 if package.startswith("step0") else 1
    return kind, 0 if line.startswith("import") else 1, line


def _imported(part: Part, used: set[str], own: set[str]) -> set[tuple[str, str]]:
    """(module, name) pairs of what the part's file imports and an exercise may need."""
    package, found = part.module.partition(".")[0], set()
    for node in ast.parse(part.path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            found |= {(a.name, f"as {a.asname}" if a.asname else "")
                      for a in node.names if (a.asname or a.name) in used}  # fmt: skip
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            module = f"{package}.{node.module}" if node.level else node.module or ""
            for alias in node.names:
                name = alias.asname or alias.name
                wanted = name in used or module.endswith(".wire")
                if wanted and name not in own and not name.startswith("_"):
                    renamed = f" as {alias.asname}" if alias.asname else ""
                    found.add((module, alias.name + renamed))
    return found


def _backup(path: Path) -> Path:
    number = 1
    while (backup := path.with_name(f"{path.stem}.backup{number}.py")).exists():
        number += 1
    return backup
