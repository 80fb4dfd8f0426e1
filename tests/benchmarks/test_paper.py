"""docs/paper.md is what the kept results and the planner give, and says what is missing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.paper.__main__ import Options, main, page, take_in
from benchmarks.paper.training import cell

ROOT = Path(__file__).parents[2]


def test_every_table_and_figure_of_the_paper_has_its_place() -> None:
    text = page({}, {})
    for n in range(1, 9):
        assert f"## Table {n}:" in text
    for n in (6, 7, 8):
        assert f"## Figure {n}:" in text
    assert "## Figures 1 and 5:" in text


def test_what_was_not_measured_is_said_with_its_command() -> None:
    text = page({}, {})
    for command in ("make figure6", "make figure7", "make finetune", "make bench-ablation"):
        assert f"Not measured yet: `{command}`" in text


def test_the_kept_page_is_that_of_the_kept_results() -> None:
    measured = json.loads((ROOT / "benchmarks" / "results.json").read_text(encoding="utf-8"))
    kept = json.loads((ROOT / "docs" / "runs.json").read_text(encoding="utf-8"))
    text = page(measured, kept)
    assert (ROOT / "docs" / "paper.md").read_text(encoding="utf-8") == text
    assert "Not measured yet" not in text
    for picture in re.findall(r"\]\((\w+\.png)\)", text):
        assert (ROOT / "docs" / picture).exists()


def test_results_of_runs_are_taken_in_the_newest_of_each(tmp_path: Path) -> None:
    for name, loss in (("figure7-001", 9.0), ("figure7-002", 1.0)):
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        (run / "results.json").write_text(json.dumps(study(loss)))
        (run / "figure7.png").write_bytes(name.encode())
    docs = tmp_path / "docs"
    docs.mkdir()
    kept = take_in(tmp_path / "runs", docs)
    assert kept["figure7"]["runs"][0]["final"] == 1.0
    assert (docs / "figure7.png").read_bytes() == b"figure7-002"
    assert take_in(tmp_path / "none", docs) == kept  # kept when runs/ is gone


def study(loss: float) -> dict[str, Any]:
    run = {"norm": "original", "depth": 6, "rate": 0.001, "warmup": 0, "seed": 0}
    return {
        "unigram": 4.0,
        "margin": 0.25,
        "sizes": {"steps": 10},
        "runs": [run | {"losses": [loss] * 10}],
    }


def test_the_page_is_written_from_files(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{}")
    options = Options(tmp_path / "results.json", tmp_path / "runs", tmp_path / "docs")
    text = main(options)
    assert (tmp_path / "docs" / "paper.md").read_text(encoding="utf-8") == text
    assert (tmp_path / "docs" / "figure5.png").stat().st_size > 5000


def test_a_cell_is_bold_only_if_every_start_learned() -> None:
    assert cell([3.0, 3.5], 3.75) == "**3.25**"
    assert cell([3.0, 4.0], 3.75) == "3.50"
    assert cell([3.0, None], 3.75) == "diverged"
    assert cell([], 3.75) == "-"
