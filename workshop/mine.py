"""The learner's functions in the places of the real ones, in this process.

    WithMine(mines, fn)   a function that first installs them, then is fn: for `run_ranks`

Whatever imported a real function by name gets the learner's: every loaded module of the steps is
gone through, and what is imported later finds it in its home already.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .exercises import exercise
from .load import functions, parse

# g_ is g with one copy less, for the layers that own their result: they get the learner's g.
ALSO = {"2.2": {"g": "g_"}}
_FRAME = re.compile(r'File "([^"]+)", line (\d+),? in (\w+)')


@dataclass(frozen=True)
class Mine:
    """A learner's file, and which of its exercises are to be used."""

    source: str
    filename: str
    ids: tuple[str, ...]

    def install(self, calls: str = "") -> None:
        """Put the functions in place. They see one another, as in the step itself. In the folder
        `calls` each of them leaves a file of its id's name when it is called."""
        tree = parse(self.source, self.filename)
        made = {id: functions(tree, self.filename, exercise(id)) for id in self.ids}
        put: list[tuple[str, Any, Any]] = []
        for id, own in made.items():
            for part, function in zip(exercise(id).parts, own, strict=True):
                home = importlib.import_module(part.module)
                placed = _noted(function, Path(calls) / id) if calls else function
                if part.owner:
                    setattr(getattr(home, part.owner), part.name, placed)
                    continue
                put.append((part.name, getattr(home, part.name), placed))
                also = ALSO.get(id, {}).get(part.name)
                if also:
                    put.append((also, getattr(home, also), placed))
        spaces = [vars(module) for name, module in list(sys.modules.items())
                  if name.startswith(("step0", "tests."))]  # fmt: skip
        # (Under a decorator is the function itself, with the names that it looks up.)
        spaces += [
            inspect.unwrap(function).__globals__ for own in made.values() for function in own
        ]
        for name, real, function in put:
            for space in spaces:
                if space.get(name) is real:
                    space[name] = function


@dataclass(frozen=True)
class WithMine:
    """Picklable: what `run_ranks` starts instead of `function`."""

    mines: tuple[Mine, ...]
    function: Callable[..., Any]
    calls: str = ""

    def __call__(self, *args: Any) -> Any:
        for mine in self.mines:
            mine.install(self.calls)
        return self.function(*args)


def called(folder: str) -> list[str]:
    """The ids of the functions that were called, in order."""
    return sorted(path.name for path in Path(folder).iterdir())


def gist(error: Exception) -> str:
    """What a RankError comes to in a line: the rank's own error, or that it did not come back."""
    lines = str(error).strip().splitlines()
    return lines[-1] if " raised" in lines[0] else lines[0]


def blame(trace: str, mines: Iterable[Mine]) -> str:
    """The learner's function in which a traceback ends: "2.4 RowParallelLinear.forward, line 31
    of workshop/work/…", or "" if it doesn't go through the learner's file."""
    files = {mine.filename: mine for mine in mines}
    found = [match for match in _FRAME.findall(trace) if match[0] in files]
    if not found:
        return ""
    file, line, name = found[-1]
    mine = files[file]
    for id in mine.ids:
        for part in exercise(id).parts:
            first, last = _lines(parse(mine.source, file), part.owner, part.name)
            if first <= int(line) <= last:
                return f"{id} {part.qualname}, line {line} of {file}"
    return f"{name}, line {line} of {file}"


def _lines(tree: ast.Module, owner: str, name: str) -> tuple[int, int]:
    """First and last line of a definition in the learner's file."""
    body: list[ast.stmt] = tree.body
    if owner:
        body = [n for c in body if isinstance(c, ast.ClassDef) and c.name == owner for n in c.body]
    found = [n for n in body if isinstance(n, ast.FunctionDef) and n.name == name]
    return (found[-1].lineno, found[-1].end_lineno or 0) if found else (0, -1)


def _noted(function: Callable[..., Any], file: Path) -> Callable[..., Any]:
    """The function, which leaves `file` behind when it is called."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not file.exists():  # whoever reads the folder may empty it in between
            file.touch()
        return function(*args, **kwargs)

    return call
