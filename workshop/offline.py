"""`make setup-offline TO=folder`: all that another machine's set-up needs, for a stick.

    wheels/          every package of constraints.txt that the project asks for, with setuptools
    data/downloads/  the default text, if it is here
    repository.zip   the project itself
    README.md        how the other machine installs from it

Standard library only. Wheels are for this kind of machine, or for --platform and --python.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from .exercises import ROOT

LEFT_OUT = (".git", ".venv", "data", "runs", "work", "__pycache__", ".pytest_cache", ".mypy_cache",
            ".ruff_cache", ".hypothesis")  # fmt: skip


def make_stick(folder: Path, wanted_platform: str = "", python: str = "") -> str:
    """Fill the folder; returns what to tell. Raises ValueError if pip can't fetch the wheels."""
    (folder / "wheels").mkdir(parents=True, exist_ok=True)
    run(download(folder / "wheels", wanted_platform, python))
    text = copy_data(folder)
    zip_project(folder / "repository.zip")
    kind = wanted_platform or f"{platform.system()} on {platform.machine()}"
    version = python or ".".join(map(str, sys.version_info[:2]))
    (folder / "README.md").write_text(README.format(kind=kind, version=version, text=text), "utf-8")
    return (
        f"{folder} is ready for {kind}, Python {version}; its README.md says how to install from "
        "it. For another kind of machine run it once more, into the same folder: "
        "ARGS='--platform win_amd64 --python 3.12' (or macosx_11_0_arm64, manylinux_2_28_x86_64)"
    )


def download(wheels: Path, wanted_platform: str, python: str) -> list[str]:
    """pip's command."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["dev"], "setuptools>=77"]
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet"]
    command += ["--dest", str(wheels), "--find-links", str(wheels)]
    command += ["--constraint", str(ROOT / "constraints.txt")]
    if wanted_platform or python:
        command += ["--only-binary=:all:"]
    command += ["--platform", wanted_platform] if wanted_platform else []
    command += ["--python-version", python] if python else []
    return [*command, *needed]


def run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        last = (result.stderr.strip() or "no reason given").splitlines()[-1]
        raise ValueError(
            f"pip could not fetch the wheels: {last}\n  the command was: {' '.join(command)}\n"
            "  this machine needs a network, once"
        )


def copy_data(folder: Path) -> str:
    """The downloads of `make data`, if they are here; returns a line for the README."""
    downloads = ROOT / "data" / "downloads"
    if not downloads.is_dir():
        return (
            "No text is on the stick (`make data` had not been run). Training with your functions "
            "takes the chapters then; `make train CORPUS=/path/to/text` takes any text."
        )
    shutil.copytree(downloads, folder / "data" / "downloads", dirs_exist_ok=True)
    return "The text for `make train` is on the stick too, and is copied by the set-up."


def zip_project(path: Path) -> None:
    """The project as it is here, without what is made from it and without anybody's answers."""
    files = [file for file in sorted(ROOT.rglob("*")) if file.is_file() and not _left_out(file)]
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for file in files:
            archive.write(file, Path("megatron-in-six-steps") / file.relative_to(ROOT))


def _left_out(file: Path) -> bool:
    parts = file.relative_to(ROOT).parts
    return any(part in LEFT_OUT or part.endswith(".egg-info") for part in parts)


README = """# Megatron-LM in six steps, from a stick

For {kind}, Python {version}. No network is needed.

1. Unpack `repository.zip` somewhere, and open a terminal in `megatron-in-six-steps`.
2. `make setup OFFLINE=/path/to/this/folder`, or without make:
   `python3.11 tools/setup.py --offline /path/to/this/folder`
3. `make doctor` (`.venv/bin/python -m workshop doctor`) says whether all is well.

{text}
"""
