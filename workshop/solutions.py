"""The text of a solution: the marked function, and the helpers of its own file that it uses."""

from __future__ import annotations

import ast
from pathlib import Path

from .exercises import Exercise, Part, exercises_of


def solution(exercise: Exercise) -> str:
    """The real code of an exercise, helpers first, as one would read it in the step."""
    pieces = []
    for part in exercise.parts:
        pieces += [text for text in _helpers(part) if text not in pieces]
        pieces.append(_as_method(part.text, part.owner))
    return "\n\n\n".join(pieces) + "\n"


def _as_method(text: str, owner: str) -> str:
    if not owner:
        return text
    return "\n".join(
        [f"class {owner}:", *("    " + line if line else "" for line in text.split("\n"))]
    )


def _helpers(part: Part) -> list[str]:
    """Functions and classes of the part's file that it leads to and that are no exercises."""
    tree, lines = _parsed(part.path)
    exercises = {p.name for e in exercises_of(int(part.module[4:6])) for p in e.parts}
    known = {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and node.name not in exercises
        and node.name != part.owner
    }
    wanted: dict[str, ast.FunctionDef | ast.ClassDef] = {}
    queue: list[ast.AST] = [part.node]
    while queue:
        for name in _names(queue.pop()):
            if name in known and name not in wanted and _is_helper(known[name]):
                wanted[name] = known[name]
                queue.append(known[name])
    ordered = sorted(wanted.values(), key=lambda node: node.lineno)
    return ["\n".join(lines[_first(node) - 1 : node.end_lineno]) for node in ordered]


def _is_helper(node: ast.AST) -> bool:
    """A layer that an exercise is given isn't part of its solution; an autograd function is."""
    return not isinstance(node, ast.ClassDef) or node.name.startswith("_")


def _names(node: ast.AST) -> set[str]:
    """Names that the code uses; annotations are text and don't count."""
    found = set()
    for child in ast.walk(node):
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load):
            found.add(child.id)
    return found


def _first(node: ast.FunctionDef | ast.ClassDef) -> int:
    return min([node.lineno, *(d.lineno for d in node.decorator_list)])


def _parsed(path: Path) -> tuple[ast.Module, list[str]]:
    text = path.read_text(encoding="utf-8")
    return ast.parse(text), text.splitlines()
