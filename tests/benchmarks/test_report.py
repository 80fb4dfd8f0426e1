"""Tables as text, as Markdown, as files; ratios round by round."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from benchmarks.report import Table, beside, interleaved, opened, quartiles, show, slower_rank

TABLE = Table("A title", ["", "ms", "times ours"], [["ours", "1.00", "1"]], "a note", {"x": 1.5})


def test_text_is_aligned_and_markdown_is_a_table() -> None:
    assert TABLE.text().splitlines() == [
        "A title",
        "          ms  times ours",
        "  ----------------------",
        "  ours  1.00           1",
        "a note",
    ]
    assert "|---|---:|---:|" in TABLE.markdown()
    assert "| ours | 1.00 | 1 |" in TABLE.markdown()


def test_what_is_saved_opens_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show([TABLE, TABLE], str(tmp_path / "tables.json"))
    assert list(opened(tmp_path / "tables.json")) == [TABLE, TABLE]
    assert capsys.readouterr().out.count("A title") == 2


def test_ratios_are_taken_round_by_round() -> None:
    """A machine that is twice as slow in every second round changes no ratio."""
    seconds = {"ours": [1.0, 2.0, 1.0, 2.0], "theirs": [1.5, 3.0, 1.5, 3.0]}
    rows, figures = beside(seconds, {"absent": "no such package"})
    assert figures == {"ours": 1.0, "theirs": 1.5}
    assert rows[1][2] == "1.50 (1.50 to 1.50)"
    assert rows[2] == ["absent", "-", "not here: no such package"]


def test_a_step_is_over_when_the_slower_rank_is() -> None:
    assert slower_rank([{"a": [1.0, 5.0]}, {"a": [2.0, 4.0]}]) == {"a": [2.0, 5.0]}


def test_rounds_are_interleaved_and_the_first_two_are_not_counted() -> None:
    calls: list[str] = []

    def step(name: str) -> float:
        calls.append(name)
        return 0.0

    seconds = interleaved({"a": lambda: step("a"), "b": lambda: step("b")}, 3)
    assert calls == ["a", "b"] * 5
    assert {name: len(row) for name, row in seconds.items()} == {"a": 3, "b": 3}


def test_quartiles_hold_the_median() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert quartiles(values).startswith(f"{statistics.median(values):.2f} (")
