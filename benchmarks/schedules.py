"""torch's pipeline schedules around a stage, with an eye on when it computes and what it sends.

GPipe: all micro-batches forward, then all backward. 1F1B: as soon as a stage can, a backward after
each forward, so that it never keeps more than p micro-batches' activations.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from step05_hybrid_dp.data_parallel import valid_tokens

from .stages import GPTStage, StageGrid

SCHEDULES = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}


def bubble(p: int, m: int) -> float:
    """The share of a step that each of p equal stages waits, with m micro-batches.

    A stage computes for m slots out of m + p - 1 (GPipe, arXiv 1811.06965, section 2; 1F1B waits
    as long).
    """
    return (p - 1) / (m + p - 1)


class WatchedStage(PipelineStage):
    """torch's stage, which notes its seconds of computing, what it keeps and what it sends."""

    def start(self) -> None:
        """Forget the step before."""
        self.busy, self.sent, self.messages, self.most_kept = 0.0, 0, 0, 0

    def timed(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """`run`, whose seconds count as busy."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = run(*args, **kwargs)
            self.busy += time.perf_counter() - start
            return result

        return timed

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        output = self.timed(super().forward_one_chunk)(*args, **kwargs)
        self.most_kept = max(self.most_kept, len(self.fwd_cache))
        return output

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> None:
        self.timed(super().backward_one_chunk)(*args, **kwargs)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._counted(super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._counted(super().get_bwd_send_ops(bwd_chunk_id))

    def buffers(self) -> int:
        """Bytes of the buffers to receive into: torch makes one for each micro-batch, for good."""
        infos = [*self.args_recv_info.values(), *self.grad_recv_info.values()]
        return sum(info.buffer.nbytes for row in infos for info in row if info.buffer is not None)

    def _counted(self, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        for op in ops:
            if not op.tensor.is_contiguous():  # gloo would send the memory beside it (wire.py)
                raise ValueError(f"a stage sends strides {op.tensor.stride()}: make it contiguous")
            self.sent += op.tensor.nbytes
            self.messages += 1
        return ops


class Pipeline:
    """A stage under a schedule. `first` and `hidden`: examples of a micro-batch as the first stage
    gets it and as it goes from stage to stage; so torch has no need of a trial run to learn them.

    Raises ValueError for an unknown schedule, or 1F1B with fewer micro-batches than stages.
    """

    def __init__(
        self,
        module: nn.Module,
        grid: StageGrid,
        schedule: str,
        micro_batches: int,
        first: Tensor,
        hidden: Tensor,
        loss: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        if schedule not in SCHEDULES:
            raise ValueError(f"schedule is {schedule!r}; there are {', '.join(SCHEDULES)}")
        hidden = hidden.requires_grad_()
        self.grid, self.micro_batches = grid, micro_batches
        self.stage = WatchedStage(
            module,
            grid.stage,
            grid.pp_size,
            torch.device("cpu"),
            input_args=first if grid.is_first else hidden,
            output_args=hidden,
            group=grid.pp_group,
        )
        self.schedule = SCHEDULES[schedule](
            self.stage, micro_batches, loss_fn=self.stage.timed(loss), scale_grads=False
        )

    def run(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """All micro-batches forward and backward; on the last stage, the sum of their losses.

        `inputs` and `targets`: of all micro-batches together, along dim 0, on every stage.
        Wire: for each micro-batch hidden states to the next stage and a gradient to the one before.
        """
        self.stage.start()
        losses: list[Tensor] = []
        mine = [inputs] if self.grid.is_first else []
        self.schedule.step(*mine, target=targets, losses=losses, return_outputs=False)
        return torch.stack(losses).detach().sum() if losses else None


class PipelinedGPT:
    """GPT-2 in a pipeline, in micro-batches of `shape` [b, s]."""

    def __init__(
        self,
        module: GPTStage,
        schedule: str,
        micro_batches: int,
        shape: tuple[int, int],
    ) -> None:
        self.module, self.shape, self.divisor = module, shape, 1
        dtype = next(module.parameters()).dtype
        self.pipeline = Pipeline(
            module,
            module.grid,
            schedule,
            micro_batches,
            torch.zeros(shape, dtype=torch.int64),
            torch.zeros(*shape, module.config.hidden_size, dtype=dtype),
            lambda hidden, targets: module.loss(hidden, targets, self.divisor),
        )

    def backward_global_mean(self, tokens: Tensor, targets: Tensor) -> Tensor | None:
        """Backward of the mean loss over all valid tokens of the global batch; returns it on the
        last stage. tokens, targets: [micro_batches · b, s], the same on all ranks.

        The gradients come on top of what was there, but those of the embedding must start from
        zero: what is there is added between the stages. Raises ValueError for another shape.
        """
        expected = (self.pipeline.micro_batches * self.shape[0], self.shape[1])
        for what, rows in (("tokens", tokens), ("targets", targets)):
            if tuple(rows.shape) != expected:
                raise ValueError(f"{what} are {list(rows.shape)}; expected {list(expected)}")
        self.divisor = valid_tokens([(tokens, targets)], tokens.device, None)
        loss = self.pipeline.run(tokens, targets)
        self.module.add_tied_gradients()
        return loss
