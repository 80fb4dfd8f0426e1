"""What `make setup` says about machines that we don't have."""

from __future__ import annotations

import itertools
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tools import setup
from tools.setup import GIB, advice, problems

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("version", [(3, 11), (3, 14)])
@pytest.mark.parametrize(
    "where", [("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "arm64"), ("Windows", "AMD64")]
)
def test_machines_that_torch_has_wheels_for(
    where: tuple[str, str], version: tuple[int, int]
) -> None:
    assert not problems(*where, version, 50 * GIB)


@pytest.mark.parametrize(
    ("where", "cure"),
    [
        (("Darwin", "x86_64"), "Apple silicon"),
        (("Windows", "ARM64"), "WSL"),
        (("FreeBSD", "amd64"), "Linux"),
    ],
)
def test_machines_without_a_wheel_are_told_what_works(where: tuple[str, str], cure: str) -> None:
    (message,) = problems(*where, (3, 11), 50 * GIB)
    assert f"no wheel for {where[0]} on {where[1]}" in message
    assert cure in message


def test_python_and_disk() -> None:
    for version in ((3, 10), (3, 15), (2, 7)):
        (message,) = problems("Linux", "x86_64", version, 50 * GIB, "/usr/bin/python3")
        assert f"/usr/bin/python3 is Python {version[0]}.{version[1]}" in message
        assert "PYTHON=" in message
    (message,) = problems("Linux", "x86_64", (3, 12), GIB)
    assert "1.0 GiB free" in message
    assert len(problems("Darwin", "x86_64", (3, 9), 0)) == 3, "all problems at once"


def test_the_cuda_download_is_announced_only_where_it_would_come() -> None:
    assert "TORCH_INDEX" in advice("Linux", gpu=False, torch_index="", free=50 * GIB)
    assert "Only 5.0 GiB" in advice("Linux", gpu=False, torch_index="", free=5 * GIB)
    assert not advice("Linux", gpu=True, torch_index="", free=50 * GIB)
    assert not advice("Linux", gpu=False, torch_index="somewhere", free=50 * GIB)
    assert not advice("Darwin", gpu=False, torch_index="", free=50 * GIB)


def test_from_a_stick_nothing_is_asked_of_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip gets the stick's wheels and no index; the text is copied beside what is there."""
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(setup, "run", lambda *command: ran.append(command))
    for name, path in (("ROOT", "project"), ("VENV", "venv"), ("DONE", "venv/ready")):
        monkeypatch.setattr(setup, name, tmp_path / path)
    (tmp_path / "venv").mkdir()
    text = tmp_path / "stick" / "data" / "downloads" / "text.whl"
    text.parent.mkdir(parents=True)
    text.write_text("a text")
    setup.install("", tmp_path / "stick")
    assert ran[0][1:3] == ("-m", "venv")
    (install,) = ran[1:]
    assert "--no-index" in install
    assert install[install.index("--find-links") + 1] == str(tmp_path / "stick" / "wheels")
    copied = tmp_path / "project" / "data" / "downloads" / "text.whl"
    assert copied.read_text() == "a text"
    monkeypatch.setattr("sys.argv", ["setup.py", "--offline", str(tmp_path)])
    with pytest.raises(SystemExit, match="has no folder wheels"):
        setup.main()


def test_help_is_the_default_and_names_every_public_target() -> None:
    output = subprocess.run(["make"], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for target in targets:
        assert f"make {target} " in output, target


def test_pins_name_everything_that_is_installed() -> None:
    """A fresh environment is the same everywhere: no package without an exact version."""
    pins = dict(
        line.lower().split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    )
    assert pins["torch"] == "2.13.0"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(
        itertools.chain(project["dependencies"], *project["optional-dependencies"].values())
    )
    names = {re.split("[<>=]", requirement)[0] for requirement in wanted}
    assert not names - set(pins)
