"""docs/paper.md: the paper's tables and figures beside this repository's (`make paper`).

Generated from three sources: the planner (reckoned now), benchmarks/results.json (`make bench`) and
docs/runs.json, the results of the longer runs. That one takes in what `make figure6`,
`make figure7` and `make finetune` left in runs/, the newest of each.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from step01_single_gpu.run_folder import write_text

from . import beyond, scaling, training

HERE = Path(__file__).parents[1]
HEAD = """# The paper, table by table

What the paper reports, what the planner reckons for the paper's machines, and what was measured on
the small machine named at the end. Written by `make paper`; only the paper's own figures are typed
in by hand.

**How to read it.** Nobody can train 8.3 billion weights on two cores. What carries over is the
arithmetic (equal results at every layout: the tests), what is sent (counted), and ratios between
ways of doing the same work. What doesn't: absolute speed, and the quality of a model that has seen
300,000 batches. Where a table is out of reach, this page says so.
"""


@dataclass(frozen=True)
class Options:
    """Write the page that holds the paper beside this repository."""

    results: Path = HERE / "results.json"
    runs: Path = Path("runs")
    """Where the longer runs left their results."""
    docs: Path = Path("docs")
    """Where paper.md, its pictures and runs.json go."""


def main(options: Options) -> str:
    """Write the page, and return it."""
    options.docs.mkdir(parents=True, exist_ok=True)
    kept = take_in(options.runs, options.docs)
    measured = json.loads(options.results.read_text(encoding="utf-8"))
    text = page(measured, kept)
    scaling.draw(measured, options.docs / "figure5.png")
    write_text(options.docs / "paper.md", text)
    print(f"in {options.docs}: paper.md, figure5.png, runs.json")
    return text


def page(measured: dict[str, Any], kept: dict[str, Any]) -> str:
    """All of docs/paper.md."""
    parts = [
        HEAD,
        *scaling.sections(measured),
        *training.sections(kept),
        *beyond.sections(measured),
        "## The machine\n",
        *sorted({f"{found['date']}: {found['machine']}.\n" for found in measured.values()}),
    ]
    return "\n".join(parts)


def take_in(runs: Path, docs: Path) -> dict[str, Any]:
    """docs/runs.json, brought up to date from the newest runs; their plots go to docs/."""
    path = docs / "runs.json"
    kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name, shorten in (("figure6", whole), ("figure7", without_curves), ("boolq", whole)):
        found = sorted(runs.glob(f"{name}*/results.json"), key=lambda p: p.stat().st_mtime)
        if not found:
            continue
        newest = found[-1]
        day = date.fromtimestamp(newest.stat().st_mtime).isoformat()
        kept[name] = {"date": day, **shorten(json.loads(newest.read_text(encoding="utf-8")))}
        if (newest.parent / f"{name}.png").exists():
            shutil.copyfile(newest.parent / f"{name}.png", docs / f"{name}.png")
    write_text(path, json.dumps(kept, indent=1) + "\n")
    return kept


def whole(found: dict[str, Any]) -> dict[str, Any]:
    return found


def without_curves(found: dict[str, Any]) -> dict[str, Any]:
    """Figure 7's runs, each with its last losses' mean in place of all of them."""
    from step06_bert_layernorm.stability_results import final_loss

    steps, runs = found["sizes"]["steps"], []
    for run in found["runs"]:
        short = {k: run[k] for k in ("norm", "depth", "rate", "warmup", "seed")}
        last = final_loss(run["losses"], steps)
        runs.append(short | {"final": round(last, 4) if last < 1e9 else None})
    return {"unigram": found["unigram"], "margin": found["margin"], "steps": steps, "runs": runs}


if __name__ == "__main__":
    import tyro

    main(tyro.cli(Options))
