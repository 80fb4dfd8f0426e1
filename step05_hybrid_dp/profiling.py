"""`--profile`: one training step of every rank as a timeline for Perfetto."""

from __future__ import annotations

from torch.profiler import record_function

from step01_single_gpu.run_folder import write_text
from step03_attention_parallel.timeline import chrome_trace, recorded

from .agreement import together
from .loop import Training, micro_batches


def write_profile(training: Training, step: int) -> None:
    """Write timeline.json of a forward and backward on step k's batch; nothing is trained by it."""
    t = training
    rows = micro_batches(t, step)
    state = t.rng.state_dict()
    t.engine.backward_global_mean(rows)  # once to warm up
    with recorded() as events, record_function("forward"):
        t.engine.backward_global_mean(rows)
    t.model.zero_grad(set_to_none=True)
    t.rng.load_state_dict(state)
    ranks = together(t.grid, lambda: events)
    if t.metrics is not None:
        write_text(t.run / "timeline.json", chrome_trace(ranks))
        print(f"{t.run / 'timeline.json'}: open it in ui.perfetto.dev")
