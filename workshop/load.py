"""The learner's file: parsed first, then the functions are taken out of it one by one.

It is never imported, so nothing in it can take the rest down: a statement that fails is noted and
passed over, and what isn't a definition, an import or an assignment doesn't run at all. Around the
one function that is looked at, everything is the real thing, other exercises included.
"""

from __future__ import annotations
import __future__

import ast
import difflib
import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from .exercises import Exercise, Part, exercises_of


class LearnerError(Exception):
    """Something about the file that the learner should know; the message is meant for them."""


@functools.lru_cache(maxsize=4)
def parse(text: str, filename: str) -> ast.Module:
    """The file as a tree. Raises LearnerError with line and caret if Python can't read it."""
    try:
        return ast.parse(text, filename)
    except SyntaxError as error:
        line = (error.text or "").rstrip("\n")
        caret = " " * max(0, (error.offset or 1) - 1) + "^"
        raise LearnerError(
            f"{filename}, line {error.lineno}: Python can't read this ({error.msg})\n\n"
            f"    {line}\n    {caret}"
        ) from None
    except ValueError as error:  # null bytes
        raise LearnerError(f"{filename}: Python can't read this file ({error})") from None


@dataclass(frozen=True)
class Found:
    """What the file has for one exercise, before anything of it is run."""

    state: str  # "todo", "missing", "ready"
    note: str = ""


def look(tree: ast.Module, exercise: Exercise) -> Found:
    """Whether the exercise is there, touched, and under its own names."""
    todo = False
    for part in exercise.parts:
        node = _definition(tree, part)
        if node is None:
            return Found("missing", _missing(tree, part, exercise.step))
        wrong = _arguments(node, part)
        if wrong:
            return Found("missing", wrong)
        todo = todo or _is_stub(node)
    return Found("todo") if todo else Found("ready")


def functions(tree: ast.Module, filename: str, exercise: Exercise) -> list[Callable[..., Any]]:
    """The learner's functions for the exercise, in the order of its parts.

    Raises LearnerError if one of them can't be made.
    """
    return [_function(tree, filename, exercise, part) for part in exercise.parts]


def _function(tree: ast.Module, filename: str, exercise: Exercise, part: Part) -> Any:
    module = importlib.import_module(part.module)
    names: dict[str, Any] = {**vars(module), "__name__": "learner", "__file__": filename}
    failed = _run_definitions(tree, filename, names)
    taken = names.get(part.owner or part.name)
    if part.owner and taken is not None:
        taken = vars(taken).get(part.name) if isinstance(taken, type) else None
    problem = failed.get(part.owner or part.name)
    if problem is not None or taken is None:
        raise LearnerError(f"{filename}: {part.qualname} can't be made: {problem}")
    for other in exercises_of(exercise.step):
        for piece in other.parts:
            name = piece.owner or piece.name
            if name in names and (part.owner or name != part.name):
                names[name] = getattr(importlib.import_module(piece.module), name)
    return taken


def _run_definitions(tree: ast.Module, filename: str, names: dict[str, Any]) -> dict[str, str]:
    """Run the file's definitions one by one; returns what failed: name -> why."""
    failed = {}
    for name, line, code in _compiled(tree, filename):
        try:
            exec(code, names)
        except Exception as error:
            failed[name] = f"line {line}: {type(error).__name__}: {error}"
    return failed


@functools.lru_cache(maxsize=4)
def _compiled(tree: ast.Module, filename: str) -> list[tuple[str, int, CodeType]]:
    """(name, line, code) of each definition, import and assignment at the top of the file."""
    kept = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef,
            ast.Assign, ast.AnnAssign)  # fmt: skip
    flags = __future__.annotations.compiler_flag
    found = []
    for node in tree.body:
        if not isinstance(node, kept):
            continue
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            continue
        name = getattr(node, "name", f"line {node.lineno}")
        code = compile(ast.Module([node], []), filename, "exec", flags)
        found.append((name, node.lineno, code))
    return found


def _definition(tree: ast.Module, part: Part) -> ast.FunctionDef | None:
    """The last definition of that name counts, as in Python."""
    body: list[ast.stmt] = tree.body
    if part.owner:
        owners = [n for n in body if isinstance(n, ast.ClassDef) and n.name == part.owner]
        body = owners[-1].body if owners else []
    found = [n for n in body if isinstance(n, ast.FunctionDef) and n.name == part.name]
    return found[-1] if found else None


def _missing(tree: ast.Module, part: Part, step: int) -> str:
    there = [n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    if part.owner:
        inside = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == part.owner]
        there = [n.name for c in inside for n in c.body if isinstance(n, ast.FunctionDef)] or there
    near = difflib.get_close_matches(part.name, there, n=1, cutoff=0.5)
    renamed = f" There is a `{near[0]}`: was it renamed?" if near else ""
    return (
        f"`{part.qualname}` is not in the file.{renamed} Others call it by this name; "
        f"`make exercise-step{step} FORCE=1` keeps a backup and writes a new file."
    )


def _arguments(node: ast.FunctionDef, part: Part) -> str:
    """ "" or what is wrong with the argument names."""
    wanted, got = _names(part.node), _names(node)
    spare = len(node.args.defaults) + len(node.args.kw_defaults)
    if [n for n in wanted if n not in got] == [] and len(got) - len(wanted) <= spare:
        return ""
    if node.args.kwarg is not None or node.args.vararg is not None:
        return ""
    return (
        f"`{part.qualname}` takes ({', '.join(got)}); it is called with ({', '.join(wanted)}), "
        "some of them by name: give the arguments these names again."
    )


def _names(node: ast.FunctionDef) -> list[str]:
    a = node.args
    return [arg.arg for arg in (*a.posonlyargs, *a.args, *a.kwonlyargs)]


def _is_stub(node: ast.FunctionDef) -> bool:
    body = [
        n for n in node.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))
    ]
    if not body:
        return True
    last = body[0]
    return isinstance(last, ast.Raise) and "NotImplementedError" in ast.dump(last)
