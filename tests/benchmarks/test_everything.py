"""`make bench`: one benchmark that fails is named and doesn't stop the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import everything
from benchmarks.everything import Options, main
from benchmarks.plots import draw
from benchmarks.report import Table, show

ROOT = Path(__file__).parents[2]


def test_every_benchmark_exists_and_takes_rounds_and_save() -> None:
    import importlib

    import tyro

    for name in everything.ALL:
        options = tyro.cli(
            importlib.import_module(f"benchmarks.{name}").Options,
            args=["--rounds", "3", "--save", "x.json"],
        )
        assert (options.rounds, options.save) == (3, "x.json")


def test_an_unknown_name_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="'lost'; there are single, bert"):
        main(Options(only="lost", folder=tmp_path))


def test_a_failure_is_named_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(everything, "ALL", {"absent": "Not there", "tables": "There"})
    real = everything.one

    def one(name: str, rounds: int | None) -> dict[str, object]:
        if name == "absent":
            return real(name, rounds)  # no such module: a process that really fails
        table = Table("A peer: tiny", ["", "ms"], [["ours", "1"]], "", {"DTensor": 1.5})
        show([table], str(tmp_path / "one.json"))
        tables = json.loads((tmp_path / "one.json").read_text())
        return {"date": "a day", "machine": "this one", "seconds": 1, "tables": tables}

    monkeypatch.setattr(everything, "one", one)
    with pytest.raises(SystemExit, match=r"failed: absent: .*No module named benchmarks\.absent"):
        main(Options(folder=tmp_path / "out"))
    text = (tmp_path / "out" / "RESULTS.md").read_text()
    assert "**It failed:**" in text
    assert "### A peer: tiny" in text


def test_the_picture_has_a_bar_for_each_peer(tmp_path: Path) -> None:
    table = {"title": "MLP: tiny", "figures": {"ours": 1.0, "DTensor": 1.5, "fairscale": 1.2}}
    draw({"parallel": {"tables": [table]}}, tmp_path / "peers.png")
    assert (tmp_path / "peers.png").stat().st_size > 5000


def test_the_kept_page_is_that_of_the_kept_results() -> None:
    folder = ROOT / "benchmarks"
    kept = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert set(kept) == set(everything.ALL)
    assert (folder / "RESULTS.md").read_text(encoding="utf-8") == everything.results(kept)
