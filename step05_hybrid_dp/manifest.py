"""A folder of checkpoints that always has a whole one, whenever the power goes.

    checkpoints/step-00000200/manifest.json  sha256 and size of every file beside it, written last
    checkpoints/step-00000300/…
    checkpoints/latest                       "step-00000300"

A checkpoint is written into a hidden temporary folder, flushed to the disk, renamed, and only then
named by `latest`. None is ever written over or deleted before its successor stands. What decides
which is newer is a number in the manifest, not the step (a run may go back) or the clock.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

MANIFEST, LATEST = "manifest.json", "latest"
FORMAT = 1


def newest_checkpoint(folder: str | Path) -> Path | None:
    """The checkpoint that `folder/latest` names; if that is gone, the newest other one, or None.

    Not opened here: a damaged one is refused when it is loaded, rather than passed over in silence.
    """
    folder = Path(folder)
    with contextlib.suppress(OSError, ValueError):
        named = (folder / LATEST).read_text(encoding="utf-8").strip()
        if named.startswith("step-") and (folder / Path(named).name).is_dir():
            return folder / Path(named).name
    numbered = _numbered(folder)
    return numbered[-1][1] if numbered else None


def keep_newest(folder: str | Path, k: int) -> None:
    """Delete all checkpoints in `folder` but the newest `k`, and never the one `latest` names.

    Raises ValueError unless k is at least 1.
    """
    check_keep(k)
    folder = Path(folder)
    newest = newest_checkpoint(folder)
    for _, path in _numbered(folder)[:-k]:
        if path != newest:
            # Renamed first: one that is half deleted must not look like a checkpoint.
            hidden = temporary(folder, path.name)
            os.replace(path, hidden)
            shutil.rmtree(hidden, ignore_errors=True)


def check_keep(k: int) -> None:
    """Raise ValueError unless k is a whole number of at least 1."""
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ValueError(f"keep is {k!r}; it must be a whole number of at least 1")


def free_name(folder: Path, step: int) -> str:
    """A name for a checkpoint of `step` that no folder has: step-00000300, or with -2, -3, …"""
    name, again = f"step-{step:08d}", 1
    while (folder / name).exists():
        again += 1
        name = f"step-{step:08d}-{again}"
    return name


def temporary(folder: Path, name: str) -> Path:
    """The hidden folder in which `name` is written or deleted."""
    return folder / f".{name}.{os.getpid()}.tmp"


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary folders and files of saves that were killed."""
    for path in folder.glob(".step-*.tmp"):
        shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob(f".{LATEST}.*.tmp"):
        path.unlink(missing_ok=True)


def fingerprint(path: Path) -> dict[str, Any]:
    """The file's sha256 and size."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"sha256": digest, "size": path.stat().st_size}


def publish(folder: Path, hidden: Path, name: str, files: dict[str, Any]) -> Path:
    """Write the manifest into `hidden`, rename it to `name`, then let `latest` name it."""
    number = 1 + max((number for number, _ in _numbered(folder)), default=0)
    text = json.dumps({"format": FORMAT, "number": number, "files": files}, indent=1)
    write_through(hidden / MANIFEST, text)
    _flush_folder(hidden)
    os.rename(hidden, folder / name)
    _flush_folder(folder)
    beside = folder / f".{LATEST}.{os.getpid()}.tmp"
    try:
        write_through(beside, name + "\n")
        os.replace(beside, folder / LATEST)
    finally:
        beside.unlink(missing_ok=True)
    _flush_folder(folder)
    return folder / name


def read_manifest(path: Path) -> dict[str, Any]:
    """The files that `path` must have, by name. Raises ValueError if there is no whole manifest."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        files = dict(manifest["files"])
        if manifest["format"] != FORMAT:
            raise ValueError(f"its format is {manifest['format']!r}, this program reads {FORMAT}")
        for name, entry in files.items():
            if Path(name).name != name or not isinstance(entry["sha256"], str):
                raise ValueError(f"it names {name!r}")
            int(entry["size"])
    except FileNotFoundError as error:
        raise ValueError(f"there is no whole checkpoint in {path}: no {MANIFEST}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path / MANIFEST} is damaged: {error}") from error
    return files


def check_files(path: Path, files: dict[str, Any], first: int = 0, every: int = 1) -> None:
    """Raise ValueError, naming the file, if one is missing, cut short or changed.

    Sizes of all; the sha256 of each `every`-th from `first` on, so that ranks share the reading.
    """
    for number, (name, expected) in enumerate(sorted(files.items())):
        file = path / name
        size = file.stat().st_size if file.is_file() else None
        if size is None:
            raise ValueError(f"{file} is missing: the checkpoint is not whole")
        if size != expected["size"]:
            raise ValueError(f"{file} has {size} bytes; it was saved with {expected['size']}")
        if number % every == first and fingerprint(file)["sha256"] != expected["sha256"]:
            raise ValueError(f"{file} is corrupt: its sha256 is not the one it was saved with")


def write_through(path: Path, text: str) -> None:
    """Write a file and wait until it is on the disk."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _numbered(folder: Path) -> list[tuple[int, Path]]:
    """(number, path) of each checkpoint, oldest first. The manifest comes last, so it is enough."""
    found = []
    for manifest in folder.glob(f"step-*/{MANIFEST}"):
        with contextlib.suppress(ValueError, OSError, KeyError, TypeError):
            number = int(json.loads(manifest.read_text(encoding="utf-8"))["number"])
            found.append((number, manifest.parent))
    return sorted(found)


def _flush_folder(folder: Path) -> None:
    """A rename is on the disk only when its folder is (not on Windows, which can't open one)."""
    if os.name != "nt":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
