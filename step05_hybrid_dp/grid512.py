"""`python -m step05_hybrid_dp.grid512`: the paper's 8 × 64 grid, run for real on this machine.

512 processes take one training step of a tiny GPT-2 together, dropout on: forward, backward, all
reductions, clipping, AdamW. Then each compares its part of every weight with what one process made
of the same global batch. (`make grid512`; any size: `make grid WORLD=64 TP=8`.)
"""

from __future__ import annotations

import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from step01_single_gpu.programs import run_program
from step02_mlp_parallel import run_ranks
from step02_mlp_parallel.launch import warm_up

from .grid import check_world, figure_8
from .grid_step import CONFIG, ROWS, STAGES, Outcome, one_rank, reference
from .machine_limits import available_memory, check_machine

BOUND = 1e-10  # float64, after AdamW


@dataclass(frozen=True)
class Options:
    """Run one training step on a tp × dp grid of gloo processes, and compare every weight."""

    world: int = 512
    tp: int = 8
    timeout: float = 900.0
    """Seconds until the ranks that hang are named."""


def main(options: Options) -> Outcome:
    """Run it, print what came out, and raise ValueError if a weight is off."""
    if options.tp < 1 or options.world % options.tp:
        check_world(options.world, options.tp, max(1, options.world // max(1, options.tp)))
    dp = options.world // options.tp
    if CONFIG.num_heads % options.tp:
        raise ValueError(f"tp {options.tp} doesn't divide the {CONFIG.num_heads} heads: 1, 2, 4, 8")
    check_machine(options.world)
    print(figure_8(options.tp, dp))
    began, memory = time.monotonic(), available_memory()
    with tempfile.TemporaryDirectory(prefix="grid-") as name:
        folder = Path(name)
        loss = reference(folder, dp * ROWS)
        outcomes, least = _watched(options, folder)
    worst = max(outcomes, key=lambda outcome: outcome.worst)
    k_bias = max(outcome.k_bias for outcome in outcomes)
    off = max(abs(outcome.loss - loss) for outcome in outcomes) / loss
    print(
        f"{options.world} ranks took one step in {time.monotonic() - began:.0f} s and at most "
        f"{(memory - least) / 2**30:.1f} GiB\n"
        f"loss {loss:.6f}, largest difference {off:.1e}\n"
        f"weights against one process: largest difference {worst.worst:.1e} ({worst.tensor}), "
        f"bound {BOUND:.0e}; K biases {k_bias:.1e} of the learning rate"
    )
    if not (worst.worst <= BOUND and off <= BOUND and k_bias < 1e-3):
        raise ValueError("the grid's step is not the single process's")
    return worst


def _watched(options: Options, folder: Path) -> tuple[list[Outcome], int]:
    """Start the ranks in a thread and show how far they are; also the least memory seen free."""
    # Once, for all: what a rank would else import by itself.
    warm_up(
        "torch._dynamo",
        "torch.utils.serialization.config",
        "step01_single_gpu.programs",
        "tqdm",
        "step05_hybrid_dp.grid_step",
    )
    result: dict[str, Any] = {}

    def run() -> None:
        try:
            result["value"] = run_ranks(
                one_rank, options.world, options.tp, folder, timeout=options.timeout,
                env={"TORCH_GLOO_LAZY_INIT": "1"},  # connect to whom one talks to, not to all
            )  # fmt: skip
        except BaseException as error:
            result["error"] = error

    thread, least = threading.Thread(target=run, daemon=True), available_memory()
    thread.start()
    with tqdm(total=len(STAGES) * options.world, unit=" ranks", disable=None) as bar:
        while thread.is_alive():
            thread.join(0.25)
            least = min(least, available_memory())
            reached = [_count(folder, stage) for stage in range(len(STAGES))]
            at = max((s for s in range(len(STAGES)) if reached[s]), default=0)
            bar.set_description_str(f"{STAGES[at]}: {reached[at]} of {options.world}", False)
            bar.update(sum(reached) - bar.n)
    if "error" in result:
        raise result["error"]
    return result["value"], least


def _count(folder: Path, stage: int) -> int:
    path = folder / f"stage-{stage}"
    return path.stat().st_size if path.exists() else 0


if __name__ == "__main__":
    run_program(main, Options)
