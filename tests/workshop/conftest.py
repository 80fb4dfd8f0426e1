"""Answers, progress and log in a folder of their own: nobody's work is touched by a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from workshop import make_exercises, progress


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of work files of its own."""
    monkeypatch.setattr(make_exercises, "WORK", tmp_path)
    monkeypatch.setattr(make_exercises, "ROOT", tmp_path)
    monkeypatch.setattr(progress, "STATE", tmp_path / "progress.json")
    monkeypatch.setattr(progress, "LOG", tmp_path / "log.jsonl")
    return tmp_path
