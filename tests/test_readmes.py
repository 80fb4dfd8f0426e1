"""Everything that a README shows is run: Python for real, shell lines up to their options."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tyro

ROOT = Path(__file__).parents[1]
READMES = sorted([ROOT / "README.md", *ROOT.glob("step0*/README.md")])
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(path: Path) -> list[tuple[str, str]]:
    return FENCE.findall(path.read_text(encoding="utf-8"))


def commands(path: Path) -> list[str]:
    lines = "\n".join(body for kind, body in blocks(path) if kind == "sh").splitlines()
    return [line.split("  #")[0].strip() for line in lines if line.strip()]


@pytest.mark.parametrize("path", READMES, ids=lambda p: p.parent.name)
def test_python_prints_what_the_readme_says(path: Path) -> None:
    """A ```text block after a ```python block is its output, to the letter."""
    found = blocks(path)
    for (kind, body), following in zip(found, [*found[1:], ("", "")], strict=True):
        if kind == "python":
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(compile(body, f"{path.name}", "exec"), {})
            if following[0] == "text":
                assert output.getvalue() == following[1]


@pytest.mark.parametrize(
    ("path", "command"),
    [(path, command) for path in READMES for command in commands(path)],
    ids=lambda x: x if isinstance(x, str) else x.parent.name,
)
def test_a_command_exists_and_its_options_are_known(path: Path, command: str) -> None:
    """`make -n` expands it, and the program's own parser takes what comes out."""
    words = shlex.split(command)
    assert words[0] == "make"
    expanded = subprocess.run(
        ["make", "-n", "-o", ".venv/ready", *words[1:]],
        capture_output=True, text=True, cwd=ROOT, check=True,
    ).stdout  # fmt: skip
    for line in expanded.splitlines():
        parts = shlex.split(line)
        if parts[:2] != [".venv/bin/python", "-m"] or parts[2] == "pytest":
            continue
        module: Any = importlib.import_module(parts[2])
        if hasattr(module, "Options"):
            tyro.cli(module.Options, args=parts[3:])
        else:
            assert not parts[3:], f"{parts[2]} takes no options"


@pytest.mark.parametrize("path", READMES, ids=lambda p: p.parent.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"
