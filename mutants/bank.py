"""The bank: planted faults, one TOML file a step, and the rules that keep it from rotting.

    [[mutant]]
    name = "f-without-all-reduce"
    file = "step02_mlp_parallel/operators.py"
    fault = "what is wrong, in a line that gives no code away"
    old = "the exact text, which must be there once"
    new = "what stands there instead"
    tests = ["the cheapest pytest ids that turn red"]
    pitfall = 12                  # the project's number of it, or
    cost = "what it costs"        # a line of one's own

A fault with a public report behind it has a story too, and can be a mystery:

    [mutant.story]
    reports = ["NVIDIA/Megatron-LM#19"]
    told = "what happened there"
    hints = ["…", "…", "…"]
"""

from __future__ import annotations

import ast
import difflib
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BANK = Path(__file__).parent / "bank"
REQUIRED = {"name", "file", "fault", "old", "new", "tests"}
STORY = {"reports", "told", "hints"}


@dataclass(frozen=True)
class Story:
    """A public report of such a fault."""

    reports: tuple[str, ...]  # "owner/repo#number"
    told: str
    hints: tuple[str, ...]  # three, each nearer than the last


@dataclass(frozen=True)
class Mutant:
    """One fault: `old` becomes `new` in `file`, and `tests` must turn red."""

    step: int
    name: str
    file: str
    fault: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str  # "pitfall 12", or what it costs
    story: Story | None


def load(folder: Path = BANK) -> list[Mutant]:
    """All mutants, step by step. Raises ValueError, naming the mutant, for a wrong entry."""
    found = []
    for path in sorted(folder.glob("step*.toml")):
        try:
            entries = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
        except (tomllib.TOMLDecodeError, KeyError) as error:
            raise ValueError(f"{path} is not a list of mutants: {error}") from error
        found += [_mutant(entry, int(path.stem.removeprefix("step")), path) for entry in entries]
    return found


def _mutant(entry: dict[str, Any], step: int, path: Path) -> Mutant:
    where = f"{path.name}: the mutant {entry.get('name', 'without a name')!r}"
    missing = REQUIRED - entry.keys()
    unknown = entry.keys() - REQUIRED - {"pitfall", "cost", "story"}
    if missing or unknown:
        raise ValueError(f"{where} lacks {sorted(missing)} and has unknown {sorted(unknown)}")
    if ("pitfall" in entry) == ("cost" in entry):
        raise ValueError(f'{where} needs "pitfall" (a number) or "cost" (a line), one of the two')
    story = entry.get("story")
    if story is not None and story.keys() != STORY:
        raise ValueError(f"{where}: its story has {sorted(story)}, it must have {sorted(STORY)}")
    return Mutant(
        step=step,
        name=entry["name"],
        file=entry["file"],
        fault=entry["fault"],
        old=entry["old"],
        new=entry["new"],
        tests=tuple(entry["tests"]),
        why=f"pitfall {entry['pitfall']}" if "pitfall" in entry else entry["cost"],
        story=None
        if story is None
        else Story(tuple(story["reports"]), story["told"], tuple(story["hints"])),
    )


def planted(mutant: Mutant, root: Path = ROOT) -> tuple[str, str]:
    """(the file as it is, the file with the fault).

    Raises ValueError with the mutant's name if the text that it changes isn't there just once.
    """
    path = root / mutant.file
    if not path.is_file():
        raise ValueError(f"the mutant {mutant.name!r} is refused: there is no {mutant.file}")
    text = path.read_text(encoding="utf-8")
    times = text.count(mutant.old)
    if times != 1 or mutant.old == mutant.new:
        raise ValueError(
            f"the mutant {mutant.name!r} is refused: the text that it changes is in {mutant.file} "
            f"{times} times, and must be there once; has the code changed? Write it anew in the "
            f"bank (step {mutant.step})"
        )
    return text, text.replace(mutant.old, mutant.new)


def check(mutants: Iterable[Mutant], root: Path = ROOT) -> list[str]:
    """What is wrong with the bank, without running anything: a line for each mutant refused."""
    mutants = list(mutants)
    names = Counter(mutant.name for mutant in mutants)
    wrong = [f"{times} mutants are called {name!r}" for name, times in names.items() if times > 1]
    for mutant in mutants:
        try:
            compile(planted(mutant, root)[1], mutant.file, "exec")
        except (ValueError, SyntaxError) as error:
            wrong.append(f"{error}" if isinstance(error, ValueError) else f"{mutant.name}: {error}")
        unknown = [test for test in mutant.tests if not _test_exists(test, root)]
        if unknown or not mutant.tests:
            wrong.append(f"the mutant {mutant.name!r} names tests that don't exist: {unknown}")
    return wrong


def _test_exists(node_id: str, root: Path) -> bool:
    """Whether file and function are there. (What stands in brackets, pytest alone knows.)"""
    file, _, rest = node_id.partition("::")
    path, function = root / file, rest.partition("[")[0]
    if not path.is_file():
        return False
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef) and node.name == function for node in tree.body)


def place(mutant: Mutant, root: Path = ROOT) -> str:
    """ "step02_mlp_parallel/operators.py, f": the file and the innermost function or class."""
    text, _ = planted(mutant, root)
    pairs = zip(mutant.old, mutant.new, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(mutant.new))
    line = text[: text.index(mutant.old) + same].count("\n") + 1
    names: list[str] = []
    nodes: list[ast.stmt] = ast.parse(text).body
    while nodes:
        inside = [
            node
            for node in nodes
            if isinstance(node, (ast.FunctionDef, ast.ClassDef))
            and node.lineno <= line <= (node.end_lineno or 0)
        ]
        if not inside:
            break
        names.append(inside[0].name)
        nodes = inside[0].body
    return f"{mutant.file}, {'.'.join(names)}" if names else mutant.file


def difference(mutant: Mutant, root: Path = ROOT) -> str:
    """The fault as a unified diff."""
    before, after = planted(mutant, root)
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), mutant.file, mutant.file, lineterm=""
    )
    return "\n".join(lines)
