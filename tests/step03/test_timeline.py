from __future__ import annotations

import json
from pathlib import Path

from step02_mlp_parallel import run_ranks
from step03_attention_parallel.timeline import chrome_trace, draw, one_block


def test_a_real_run_shows_figure_4(tmp_path: Path) -> None:
    """Two all-reduces in each half on every rank, and the pictures made of it."""
    ranks = run_ranks(one_block, 2, 64, 2, 16)
    for events in ranks:
        turn = next(e.start for e in events if e.name == "backward pass")
        sums = [e.start < turn for e in events if e.kind == "all-reduce"]
        assert sums == [True, True, False, False]
        gemms = [e.start < turn for e in events if e.kind == "GEMM"]
        assert gemms.count(True) == 4, "QKV, projection, A, B"
        assert gemms.count(False) == 8, "two for each of them"
        assert sum(e.kind == "attention" for e in events) >= 2
        assert all(e.end >= e.start for e in events)
    for one, other in zip(*([e for e in r if e.kind == "all-reduce"] for r in ranks), strict=True):
        assert max(one.start, other.start) < min(one.end, other.end) + 200, (
            "ranks meet in an all-reduce"
        )
    trace = json.loads(chrome_trace(ranks))["traceEvents"]
    assert {row["pid"] for row in trace} == {"rank 0", "rank 1"}
    assert all(row["ph"] == "X" and row["dur"] >= 0 for row in trace)
    draw(ranks, tmp_path / "t.svg")
    assert "<svg" in (tmp_path / "t.svg").read_text()
