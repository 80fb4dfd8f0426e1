"""All benchmarks, one after another (`make bench`): RESULTS.md, results.json and a plot.

Each runs in a process of its own, so that none inherits another's malloc settings or threads. One
that fails is named in RESULTS.md with its last line; the others go on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from tqdm import tqdm

from step01_single_gpu.run_folder import write_text

from .plots import draw
from .report import Table, machine, opened

HERE = Path(__file__).parent
ALL = {  # module -> what it measures
    "single": "One process against transformers' GPT-2",
    "bert": "One process against transformers' BERT",
    "parallel": "Tensor-parallel layers against other people's",
    "loss": "The loss over a cut vocabulary",
    "endtoend": "A whole tensor-parallel training step against other people's",
    "training": "Weak scaling of the whole training step",
    "ablation": "The paper's cut against others",
    "pipeline": "Cut by layers instead: GPipe and 1F1B",
    "plan": "The planner against this machine",
    "growth": "How cost grows",
}


@dataclass(frozen=True)
class Options:
    """Run the benchmarks and write benchmarks/RESULTS.md."""

    only: str = ""
    """Some of them, by name, with commas; the others' last results stay."""
    rounds: int | None = None
    """Rounds of each; None is what each of them takes by itself."""
    folder: Path = HERE
    """Where results.json, RESULTS.md and the plot go."""


def main(options: Options) -> None:
    names = [name.strip() for name in options.only.split(",")] if options.only else list(ALL)
    unknown = [name for name in names if name not in ALL]
    if unknown:
        raise SystemExit(f"no benchmark is called {unknown[0]!r}; there are {', '.join(ALL)}")
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / "results.json"
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    failed = []
    for name in (bar := tqdm(names, unit=" benchmarks", disable=None)):
        bar.set_description_str(name)
        kept[name] = found = one(name, options.rounds)
        write_text(path, json.dumps(kept, indent=1) + "\n")
        if "error" in found:
            failed.append(f"{name}: {found['error']}")
    write_text(options.folder / "RESULTS.md", results(kept))
    draw(kept, options.folder / "peers.png")
    print(f"in {options.folder}: RESULTS.md, results.json, peers.png")
    if failed:
        raise SystemExit("failed: " + "; ".join(failed))


def one(name: str, rounds: int | None) -> dict[str, object]:
    """Run it; its tables, when, how long, on what machine; or the last line of its error."""
    described, start = machine(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "tables.json"
        command = [sys.executable, "-m", f"benchmarks.{name}", "--save", str(saved)]
        if rounds is not None:
            command += ["--rounds", str(rounds)]
        done = subprocess.run(command, capture_output=True, text=True)
        seconds = round(time.perf_counter() - start)
        about = {"date": date.today().isoformat(), "machine": described, "seconds": seconds}
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            return {**about, "error": lines[-1]}
        return {**about, "tables": [asdict(table) for table in opened(saved)]}


def results(kept: dict[str, dict[str, object]]) -> str:
    """RESULTS.md: all tables, and where and when each was measured."""
    lines = [
        "# Measured",
        "",
        "Written by `make bench`. Times are medians over interleaved rounds in one run; ratios are",
        "medians of the ratios of each round, with their quartiles; above 1, ours is faster.",
        "",
        "![how many times as long the others take](peers.png)",
        "",
    ]
    for name, title in ALL.items():
        found = kept.get(name)
        if found is None:
            continue
        lines += [f"## {title}", ""]
        lines += [
            f"`make bench-{name}`, {found['date']}, {found['seconds']} s. {found['machine']}.",
            "",
        ]
        if "error" in found:
            lines += [f"**It failed:** `{found['error']}`", ""]
        tables = found.get("tables", [])
        assert isinstance(tables, list)
        lines += [Table(**row).markdown() for row in tables]
    return "\n".join(lines)


if __name__ == "__main__":
    import tyro

    main(tyro.cli(Options))
