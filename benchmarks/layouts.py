"""The ways to put one model on some ranks, and a training step of each that can be repeated."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from step01_single_gpu.config import GPTConfig
from step01_single_gpu.optimizer import make_optimizer
from step02_mlp_parallel import record_collectives
from step04_embeddings_loss import ParallelGPT
from step05_hybrid_dp.data_parallel import backward_global_mean

from .plan import most_held
from .schedules import PipelinedGPT
from .stages import GPTStage, StageGrid

ROWS = 2  # of a micro-batch


@dataclass(frozen=True)
class Layout:
    """pp stages of tp ranks each; no schedule with one stage."""

    name: str
    pp: int
    tp: int
    schedule: str = ""

    @property
    def ranks(self) -> int:
        return self.pp * self.tp


LAYOUTS = (
    Layout("one rank", 1, 1),
    Layout("TP 2", 1, 2),
    Layout("GPipe 2", 2, 1, "GPipe"),
    Layout("1F1B 2", 2, 1, "1F1B"),
    Layout("TP 4", 1, 4),
    Layout("GPipe 4", 4, 1, "GPipe"),
    Layout("1F1B 4", 4, 1, "1F1B"),
    Layout("TP 2 × GPipe 2", 2, 2, "GPipe"),
    Layout("TP 2 × 1F1B 2", 2, 2, "1F1B"),
)


class Step:
    """A training step of this rank's part of the model, in any number of micro-batches."""

    def __init__(self, config: GPTConfig, layout: Layout, grid: StageGrid) -> None:
        self.config, self.layout = config, layout
        self.module: Any = (
            ParallelGPT(config, group=grid.tp_group)
            if layout.pp == 1
            else GPTStage(config, grid)
        )  # fmt: skip
        self.optimizer = make_optimizer(self.module)
        self.pipelines: dict[int, PipelinedGPT] = {}

    def backward(self, tokens: Tensor, targets: Tensor) -> Tensor | None:
        """The loss, on the ranks that know it."""
        self.optimizer.zero_grad(set_to_none=False)  # kept, so that memory is that of activations
        m = len(tokens) // ROWS
        if self.layout.pp == 1:
            rows = (x.view(m, ROWS, -1).unbind() for x in (tokens, targets))
            return backward_global_mean(self.module, list(zip(*rows, strict=True)))
        return self.pipeline(m).backward_global_mean(tokens, targets)

    def pipeline(self, m: int) -> PipelinedGPT:
        if m not in self.pipelines:
            shape = (ROWS, self.config.seq_length)
            self.pipelines[m] = PipelinedGPT(self.module, self.layout.schedule, m, shape)
        return self.pipelines[m]

    def facts(self, micro_batches: tuple[int, ...], tokens: Tensor) -> dict[str, Any]:
        """Loss, bytes held and bytes sent, of this rank."""
        loss = self.backward(tokens, tokens)
        self.optimizer.step()
        found: dict[str, Any] = {"loss": None if loss is None else loss.item(), "held": {}}
        for m in micro_batches:
            x = tokens[: m * ROWS]
            self.backward(x, x)
            found["held"][m] = most_held(partial(self.backward, x, x))
            if self.layout.pp > 1:
                found["held"][m] += self.pipeline(m).pipeline.stage.buffers()
        with record_collectives() as ledger:
            self.backward(tokens, tokens)
        # A ring sends 2 (n-1)/n of the buffer from each rank.
        reduced = sum(2 * (len(e.ranks) - 1) / len(e.ranks) * e.nbytes for e in ledger)
        stage = self.pipeline(len(tokens) // ROWS).pipeline.stage if self.layout.pp > 1 else None
        state = [t for row in self.optimizer.state.values() for t in row.values()]
        kept = [t for p in self.module.parameters() for t in (p, p.grad)] + state
        return found | {
            "reduced": reduced,
            "messages": len(ledger) + (stage.messages if stage else 0),
            "passed on": stage.sent if stage else 0,
            "weights": sum(t.nbytes for t in kept),
        }
