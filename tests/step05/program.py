"""The training program with a tiny model, for torchrun: `-m tests.step05.program`.

Each step takes a moment, so that a test can kill somebody in mid-training; every rank writes its
process number into the folder PIDS.
"""

import os
import time
from pathlib import Path
from typing import Any

from step01_single_gpu.config import PAPER_MODELS
from step05_hybrid_dp import loop, program, train
from step05_hybrid_dp.options import Options
from step05_hybrid_dp.start import run_ranked
from tests.step05.train_ranks import TINY


def slow(training: Any, step: int, step_of: Any = loop.train_step) -> Any:
    time.sleep(float(os.environ.get("STEP_SECONDS", "0")))
    return step_of(training, step)


if __name__ == "__main__":
    PAPER_MODELS["tiny"] = TINY
    loop.gemm_peak = program.gemm_peak = lambda *_: 1e9  # type: ignore[attr-defined]
    loop.train_step = slow
    (Path(os.environ["PIDS"]) / os.environ["RANK"]).write_text(str(os.getpid()))
    run_ranked(train.main, Options)
