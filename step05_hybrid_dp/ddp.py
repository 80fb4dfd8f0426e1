"""Data parallelism as it runs: DistributedDataParallel, which sends while backward computes.

The same numbers as data_parallel.py's page. DDP puts gradients into buckets of some megabytes and
sends a bucket when its last gradient is there, so that most of the traffic hides behind the rest
of backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from step02_mlp_parallel.wire import Group, all_reduce_, group_size
from step03_attention_parallel.rng import RNGTracker

from .data_parallel import label_counts
from .objective import NEXT_TOKEN, Batch, Objective


class DataParallel:
    """Runs `model` forward and backward on this rank's rows, with gradients of the global batch.

    DDP is kept inside, around a module that hasn't a name to anybody else: `model` stays the object
    to load, save, clip and step, and its parameters keep their names. `dp_group` must not be the
    world's where there is tensor parallelism: DDP makes all members of its group equal to the
    first, and would overwrite one rank's part of a weight by another's. Making it is collective
    over `dp_group`: it compares shapes and sends rank 0's weights. A group of one has no DDP.
    `forward_context` is entered around each forward, such as autocast; backward stays outside.
    `objective`: what a batch is and what its loss; by default (tokens, targets), as GPT-2 has it.
    """

    def __init__(
        self,
        model: nn.Module,
        dp_group: Group = None,
        *,
        forward_context: Callable[[], AbstractContextManager[Any]] = nullcontext,
        bucket_megabytes: float = 25.0,
        objective: Objective = NEXT_TOKEN,
    ) -> None:
        self.model, self.dp_group, self.forward_context = model, dp_group, forward_context
        self.objective = objective
        self.device = next(model.parameters()).device
        self.run: nn.Module = _Losses(model, objective)
        if dp_group is not None and group_size(dp_group) > 1:
            ddp = DistributedDataParallel(
                self.run,
                process_group=dp_group,
                bucket_cap_mb=bucket_megabytes,
                gradient_as_bucket_view=True,  # gradients live in the buckets: no copy into them
            )
            # (A lambda has no annotations: as strings, DDP would refuse them.)
            ddp.register_comm_hook(dp_group, lambda group, bucket: average_bucket(group, bucket))
            self.run = ddp

    def backward_global_mean(
        self,
        micro_batches: Sequence[Batch],
        *,
        scale: float = 1.0,
        before: Callable[[int], object] = lambda rows: None,
    ) -> Tensor:
        """As in data_parallel.py, with gradients times `scale` (fp16); returns the unscaled mean.

        Of an objective with several parts, the mean of each, [parts]; the gradient is their sum's.
        `before(rows)` is called ahead of each micro-batch with the number of rows already done: the
        place for `rng.at(step, first_sample + rows)`. Each rank needs one micro-batch at least, not
        necessarily as many as the others; only the last one's backward sends.
        Wire: a count for each part, once; each bucket once, in float32 for half types; the losses.
        Raises ValueError without a micro-batch, before any communication.
        """
        if not micro_batches:
            raise ValueError("this rank has no micro-batch; it needs one, if of ignored targets")
        n, rows, parts = group_size(self.dp_group), 0, len(self.objective.parts)
        labels = [self.objective.labels(batch) for batch in micro_batches]
        counts = label_counts(labels, parts, self.device, self.dp_group)
        divisors = [count / n for count in counts]
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for index, batch in enumerate(micro_batches):
            before(rows)
            send = index == len(micro_batches) - 1
            total = total + self._backward(batch, divisors, scale, send=send).double()
            rows += len(batch[0])
        all_reduce_(total, self.dp_group)
        return total / n

    def settle(self, batch: Batch, rng: RNGTracker | None = None) -> None:
        """One forward and backward whose result is thrown away; no trace but in DDP's buckets.

        DDP sorts its buckets anew after its first backward, by the order in which gradients came.
        From 3 ranks on, the place of a number in its bucket decides in which order gloo sums it, so
        the first step of a process rounds differently from any later one. Call this after start
        and after resume, and a resumed run is the uninterrupted one bit for bit. Collective over
        the grid. Random streams are put back, torch's global ones and `rng`'s (None: the model's
        own, if it has one); gradients are cleared.
        """
        if not isinstance(self.run, DistributedDataParallel):
            return
        devices = [torch.cuda.current_device()] if self.device.type == "cuda" else []
        rng = rng or getattr(self.model, "rng", None)
        state = None if rng is None else rng.state_dict()
        divisors = [float(labels.numel()) for labels in self.objective.labels(batch)]
        with torch.random.fork_rng(devices=devices):
            self._backward(batch, divisors, 1.0, send=True)
        if rng is not None and state is not None:
            rng.load_state_dict(state)
        self.model.zero_grad(set_to_none=True)

    def _backward(
        self, batch: Batch, divisors: Sequence[float], scale: float, *, send: bool
    ) -> Tensor:
        """One micro-batch; this rank's share of each part. Unless `send`, gradients wait."""
        ddp = self.run if isinstance(self.run, DistributedDataParallel) else None
        with ddp.no_sync() if ddp is not None and not send else nullcontext():
            with self.forward_context():
                losses: Tensor = self.run(batch, divisors)
            (losses.sum() * scale).backward()  # type: ignore[no-untyped-call]
        return losses.detach()


def average_bucket(dp_group: dist.ProcessGroup, bucket: Any) -> Any:
    """DDP's communication hook: the mean of a bucket, summed in float32 where it is half precision.

    Through the wire functions, so that a ledger sees it.
    """
    buffer: Tensor = bucket.buffer()
    half = buffer.dtype in (torch.bfloat16, torch.float16)
    total = buffer.float() if half else buffer
    work = all_reduce_(total, dp_group, async_op=True)
    assert work is not None

    def finish(future: Any) -> Tensor:
        mean = total.div_(group_size(dp_group))  # the closure keeps the buffer alive until here
        return buffer.copy_(mean) if half else mean

    return work.get_future().then(finish)


class _Losses(nn.Module):
    """The objective as a forward, since DDP's work begins with the forward that it wraps."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Batch, divisors: Sequence[float]) -> Tensor:
        return self.objective.losses(self.model, batch, divisors)
