"""Data parallelism on one page: the loss is the global batch's mean, the gradients are averaged.

Every data-parallel rank has the whole model (its tensor-parallel group together) and some rows of
the batch. What one process would compute on all rows is

    loss = Σ over all valid tokens of all ranks and micro-batches / their number

so each rank sums its own tokens, and divides by the number that all ranks have together. A mean on
each rank would count a token of a rank with few of them for more.

This is the readable version; `ddp.py` gives the same numbers and sends while it computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from step02_mlp_parallel.wire import Group, all_reduce_, group_size

IGNORED = -100  # the target of a token that doesn't count
MicroBatches = Sequence[tuple[Tensor, Tensor]]  # (tokens [b, s], targets [b, s])


# exercise 5.2
def average_gradients(parameters: Iterable[nn.Parameter], dp_group: Group = None) -> None:
    """Replace each gradient by its mean over the ranks of `dp_group`.

    A missing gradient counts as zero, and is there afterwards: a rank that skipped it would leave
    the others waiting, or add up two different parameters. (Frozen parameters are left out, on all
    ranks alike.) A sum that is then divided: gloo's own average is for floats only. Half types are
    summed in float32: a sum of 64 bfloat16 numbers, rounded 64 times, has few right bits left.
    Wire: one all-reduce of p.numel() numbers for each parameter, in the order given, which must
    be the same on all ranks.
    """
    n = group_size(dp_group)
    for parameter in parameters:
        if n == 1 or not parameter.requires_grad:
            continue
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        half = grad.dtype in (torch.bfloat16, torch.float16)
        total = grad.to(torch.float32 if half else grad.dtype, copy=True).contiguous()
        all_reduce_(total, dp_group)
        parameter.grad = total.div_(n).to(grad.dtype)


# exercise 5.3
def backward_global_mean(model: Any, micro_batches: MicroBatches, dp_group: Group = None) -> Tensor:
    """Backward of the mean loss over all valid tokens of the global batch; returns that mean.

    `model` has step 1's `.loss`; `micro_batches` are this rank's, as many as it likes, also none.
    Afterwards the gradients are the global batch's, on top of what was there before, so clear them
    first. A global batch without a valid token gives a loss of zero and zero gradients.
    Each rank divides by count / n, n times too little, since the averaging divides by n again.
    Wire: the count, once; the gradients, once; the loss, one number.
    """
    n = group_size(dp_group)
    device = next(model.parameters()).device
    count = valid_tokens(micro_batches, device, dp_group)
    total = torch.zeros((), dtype=torch.float64, device=device)
    for tokens, targets in micro_batches:
        loss = model.loss(tokens, targets, reduction="sum", divisor=count / n)
        loss.backward()
        total += loss.detach()
    average_gradients(model.parameters(), dp_group)
    all_reduce_(total, dp_group)
    return total / n


def valid_tokens(micro_batches: MicroBatches, device: torch.device, dp_group: Group) -> int:
    """How many targets count, in all micro-batches of all ranks; at least 1, so as to divide by it.

    Wire: one all-reduce of one number.
    """
    return label_counts([[targets] for _, targets in micro_batches], 1, device, dp_group)[0]


def label_counts(
    labels: Sequence[Sequence[Tensor]], parts: int, device: torch.device, dp_group: Group
) -> list[int]:
    """How many labels of each part count, in all micro-batches of all ranks; at least 1.

    `labels`: for each micro-batch one tensor a part. Wire: one all-reduce of `parts` numbers.
    """
    counts = torch.zeros(parts, dtype=torch.int64, device=device)
    for batch in labels:
        counts += torch.stack([(part != IGNORED).sum() for part in batch])
    all_reduce_(counts, dp_group)
    return [max(count, 1) for count in counts.tolist()]
