"""Which functions are exercises: read off the steps' own sources, where a comment marks them.

    # exercise 2.1
    def f(x, group=None): ...

Standard library only: this runs before torch is loaded, and where it is missing.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import re
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_MARK = re.compile(r"^\s*# exercise (\d\.\d+)\s*$")


@dataclass(frozen=True)
class Part:
    """One marked function: where it is, and its text."""

    module: str  # "step02_mlp_parallel.operators"
    qualname: str  # "f", "RowParallelLinear.forward"
    text: str  # decorators, head, docstring and body, not indented
    path: Path

    @property
    def name(self) -> str:
        return self.qualname.rpartition(".")[2]

    @property
    def owner(self) -> str:
        """The class that a method belongs to, "" for a function."""
        return self.qualname.rpartition(".")[0]

    @cached_property
    def node(self) -> ast.FunctionDef:
        (node,) = ast.parse(self.text).body
        assert isinstance(node, ast.FunctionDef)
        return node

    @property
    def head(self) -> str:
        """Decorators and signature, to the colon."""
        lines = self.text.splitlines()
        return "\n".join(lines[: self.node.body[0].lineno - 1]).rstrip()

    @property
    def docstring(self) -> str:
        return ast.get_docstring(self.node) or ""


@dataclass(frozen=True)
class Exercise:
    """One exercise: one id for its text, source, test, hint and check."""

    id: str
    parts: tuple[Part, ...]

    @property
    def step(self) -> int:
        return int(self.id.partition(".")[0])

    @property
    def title(self) -> str:
        return ", ".join(part.qualname for part in self.parts)

    @property
    def version(self) -> str:
        """Changes when the head or the docstring of a part does: what a learner was asked for."""
        asked = self.id + "\0".join(part.head + part.docstring for part in self.parts)
        return hashlib.blake2b(asked.encode(), digest_size=4).hexdigest()


def step_folder(step: int) -> Path:
    """The folder of a step. Raises ValueError, naming the steps, if there is none."""
    found = sorted(ROOT.glob(f"step{step:02d}_*"))
    if not found:
        known = ", ".join(str(int(p.name[4:6])) for p in sorted(ROOT.glob("step[0-9][0-9]_*")))
        raise ValueError(f"there is no step {step}; the steps are {known}")
    return found[0]


@cache
def exercises_of(step: int) -> tuple[Exercise, ...]:
    """The exercises of a step in the order of their ids; the sources are read once.

    The id says whose an exercise is, not the folder: step 6's `block` stands in step 3, which
    may not import it from above.
    """
    step_folder(step)  # is there one?
    parts: dict[str, list[Part]] = {}
    for id, part in _all_marked():
        if int(id.partition(".")[0]) == step:
            parts.setdefault(id, []).append(part)
    if not parts:
        raise ValueError(f"step {step} has no exercises yet")
    return tuple(Exercise(id, tuple(parts[id])) for id in sorted(parts, key=_key))


def exercise(id: str) -> Exercise:
    """The exercise of that id. Raises ValueError that names near ones."""
    match = re.fullmatch(r"(\d)\.(\d+)", id)
    if not match:
        raise ValueError(
            f"{id!r} is not an exercise; write its step and number, such as 2.1{_by_name(id)}"
        )
    known = {e.id: e for e in exercises_of(int(match[1]))}
    if id not in known:
        near = difflib.get_close_matches(id, known, n=3, cutoff=0.3) or list(known)
        raise ValueError(f"there is no exercise {id}; near it: {', '.join(sorted(near, key=_key))}")
    return known[id]


def _by_name(word: str) -> str:
    """Exercises whose function is called like that."""
    titles = {
        part.name if part.name != "forward" else part.owner: e
        for step in all_steps()
        for e in exercises_of(step)
        for part in e.parts
    }
    near = difflib.get_close_matches(word, titles, n=2, cutoff=0.6)
    found = ", ".join(f"{titles[name].id} {titles[name].title}" for name in near)
    return f" ({found}?)" if found else ""


def all_steps() -> list[int]:
    """The steps that have exercises."""
    return sorted({int(id.partition(".")[0]) for id, _ in _all_marked()})


@cache
def _all_marked() -> tuple[tuple[str, Part], ...]:
    """(id, part) of every mark in the steps' sources."""
    paths = sorted(ROOT.glob("step[0-9][0-9]_*/*.py"))
    return tuple(found for path in paths for found in _marked(path))


def _marked(path: Path) -> list[tuple[str, Part]]:
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    marks = {n + 1: m[1] for n, line in enumerate(lines, start=1) if (m := _MARK.match(line))}
    if not marks:
        return []
    found = []
    for owner, node in _functions(ast.parse(text)):
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        if first in marks:
            indent = node.col_offset
            piece = [line[indent:] for line in lines[first - 1 : node.end_lineno]]
            qualname = f"{owner}.{node.name}" if owner else node.name
            module = f"{path.parent.name}.{path.stem}"
            found.append((marks.pop(first), Part(module, qualname, "\n".join(piece), path)))
    if marks:
        raise ValueError(f"{path}: no function stands behind the mark in line {min(marks) - 1}")
    return found


def _functions(tree: ast.Module) -> list[tuple[str, ast.FunctionDef]]:
    found = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found.append(("", node))
        elif isinstance(node, ast.ClassDef):
            found += [(node.name, n) for n in node.body if isinstance(n, ast.FunctionDef)]
    return found


def _key(id: str) -> tuple[int, ...]:
    return tuple(int(part) for part in id.split("."))
