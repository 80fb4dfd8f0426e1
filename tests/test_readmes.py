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
READMES = sorted(
    [ROOT / "README.md", *ROOT.glob("step0*/README.md"), *ROOT.glob("[bemw]*/README.md")]
)
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
        ["make", "-n", "-o", ".venv/ready", "-o", ".venv/bench-ready", *words[1:]],
        capture_output=True, text=True, cwd=ROOT, check=True,
    ).stdout  # fmt: skip
    for line in expanded.replace("\\\n", " ").splitlines():
        parts = shlex.split(line)
        if "torch.distributed.run" in parts:  # the program comes behind torchrun's own options
            parts = [".venv/bin/python", "-m", *parts[parts.index("--") + 1 :]]
        if parts[:2] == [".venv/bin/python", "-m"] and parts[2] != "pytest":
            parsed(parts[2], parts[3:])


def parsed(module_name: str, arguments: list[str]) -> None:
    """The program's own parser takes these arguments."""
    if module_name == "workshop":
        workshop(arguments)
        return
    module: Any = importlib.import_module(module_name)
    if hasattr(module, "Options"):
        tyro.cli(module.Options, args=arguments)
    else:
        assert not arguments, f"{module_name} takes no options"


def workshop(arguments: list[str]) -> None:
    """The workshop's program knows the command, the step and the exercise."""
    from workshop.__main__ import _step, parse
    from workshop.exercises import exercise, exercises_of

    options, others = parse(arguments)
    assert not others or options.command == "test"
    if options.command in ("exercise", "check", "watch", "test"):
        assert exercises_of(_step(options.what))
    elif options.command in ("hint", "solution", "play"):
        assert exercise(*options.what)


def test_launch_scripts_of_a_cluster_have_options_that_exist() -> None:
    """```bash blocks can't run here; torchrun's parser and the program's take what they say."""
    from torch.distributed.run import get_args_parser

    found = 0
    for path in READMES:
        for kind, body in blocks(path):
            lines = body.replace("\\\n", " ").splitlines() if kind == "bash" else []
            for line in (line for line in lines if "torchrun" in line):
                words = shlex.split(line.replace("$SLURM_NNODES", "64").replace(" $OPTIONS", ""))
                words = words[words.index("torchrun") + 1 :]
                taken = get_args_parser().parse_args(words)
                assert taken.training_script == "step05_hybrid_dp.train"
                parsed(taken.training_script, taken.training_script_args)
                found += 1
    assert found == 3


@pytest.mark.parametrize("path", READMES, ids=lambda p: p.parent.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"
