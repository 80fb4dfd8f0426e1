"""Make .venv, once: `python3 tools/setup.py` (what `make setup` runs).

Standard library only, since nothing else is there yet. It looks at the system before it
downloads anything, and says what would work where this machine can't.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
DONE = VENV / "ready"  # written last: an interrupted set-up starts again

# What torch 2.13 has wheels for.
WHEELS = {
    ("Linux", "x86_64"),
    ("Linux", "aarch64"),
    ("Windows", "AMD64"),
    ("Darwin", "arm64"),
}
GIB = 2**30
NEEDED_CPU, NEEDED_CUDA = 3 * GIB, 9 * GIB  # a .venv on disk, and pip's room to unpack


def problems(
    system: str, machine: str, version: tuple[int, int], free: int, python: str = sys.executable
) -> list[str]:
    """What stands in the way here, each with what would work instead."""
    found = []
    if (system, machine) not in WHEELS:
        cure = "Linux (x86-64 or arm64), Windows x64, or a Mac with Apple silicon"
        if system == "Darwin":
            cure = "a Mac with Apple silicon (or an arm64 Python, if this Mac has it), or Linux"
        if system == "Windows":
            cure = "Windows x64, or Linux on this machine (WSL)"
        found.append(f"torch 2.13 has no wheel for {system} on {machine}; use {cure}")
    if not (3, 11) <= version <= (3, 14):
        found.append(
            f"{python} is Python {version[0]}.{version[1]}; Python 3.11 to 3.14 works: "
            "make setup PYTHON=/path/to/python3.11"
        )
    if free < NEEDED_CPU:
        found.append(
            f"{free / GIB:.1f} GiB free on this disk; the environment needs {NEEDED_CPU // GIB} "
            f"({NEEDED_CUDA // GIB} with CUDA): free some, or clone to another disk"
        )
    return found


def advice(system: str, gpu: bool, torch_index: str, free: int) -> str:
    """What a user should know before the download starts; empty if nothing."""
    if system != "Linux" or gpu or torch_index:
        return ""
    text = (
        "No NVIDIA GPU seen. The default torch wheel for Linux brings several GB of CUDA with it.\n"
        "A smaller one does the same on a CPU: stop here (Ctrl-C) and run\n"
        "    make setup TORCH_INDEX=<address>\n"
        "with the address of the CPU index that pytorch.org names (Get Started > Locally > CPU)."
    )
    if free < NEEDED_CUDA:
        text += f"\nOnly {free / GIB:.1f} GiB are free here, and CUDA needs {NEEDED_CUDA // GIB}."
    return text


def gpu_seen() -> bool:
    """Whether the NVIDIA driver is there."""
    return bool(shutil.which("nvidia-smi")) or Path("/proc/driver/nvidia/version").exists()


def install(torch_index: str, offline: Path | None = None) -> None:
    """Make the environment and fill it with the pinned packages: from the package index, or from
    the folder that `make setup-offline` made."""
    python = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    DONE.unlink(missing_ok=True)
    works = python.exists() and subprocess.run([python, "-c", ""], check=False).returncode == 0
    if torch_index or not works:  # another torch, or a moved folder: start anew
        run(sys.executable, "-m", "venv", "--clear", str(VENV))
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check"]
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    if offline is not None:
        constraints += ["--no-index", "--find-links", str(offline / "wheels")]
    if torch_index:
        run(*pip, *constraints, "--index-url", torch_index, "torch")
    run(*pip, *constraints, "--editable", f"{ROOT}[dev]")
    if offline is not None and (offline / "data").is_dir():
        shutil.copytree(offline / "data", ROOT / "data", dirs_exist_ok=True)
    DONE.write_text("The environment is complete; remove this file to check it again.\n")


def run(*command: str) -> None:
    """Run a command; if it fails, say which and how to go on."""
    result = subprocess.run(command, check=False, env={**os.environ, "PIP_REQUIRE_VIRTUALENV": "0"})
    if result.returncode:
        sys.exit(
            f"error: this command failed ({result.returncode}): {' '.join(command)}\n"
            "Look at its last lines above; without a network, see README.md. "
            "Then run make setup again: what is there already is kept."
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch-index", default="", help="package index to take torch from")
    parser.add_argument("--offline", type=Path, help="folder that `make setup-offline` made")
    options = parser.parse_args()
    if options.offline is not None and not (options.offline / "wheels").is_dir():
        sys.exit(f"error: {options.offline} has no folder wheels: make setup-offline makes one")
    free = shutil.disk_usage(ROOT).free
    version = sys.version_info[:2]
    stop = problems(platform.system(), platform.machine(), version, free)
    if stop:
        sys.exit("\n".join(f"error: {line}" for line in stop))
    if options.offline is None:
        print(advice(platform.system(), gpu_seen(), options.torch_index, free), flush=True)
    began = time.monotonic()
    try:
        install(options.torch_index, options.offline)
    except KeyboardInterrupt:
        sys.exit("stopped; make setup goes on from here")
    print(f"ready in {time.monotonic() - began:.0f} s: {VENV}")


if __name__ == "__main__":
    main()
