"""One optimizer step of fine-tuning, and predictions: the same numbers at any tp × dp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from step01_single_gpu.model import in_eval_mode
from step02_mlp_parallel.wire import all_reduce_
from step03_attention_parallel.rng import RNGTracker
from step05_hybrid_dp.agreement import Layout
from step05_hybrid_dp.data_parallel import average_gradients

from .task_rows import Row, collate, own_part

Context = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Place:
    """Where rows are computed: this rank of the grid, its device, how many rows at once (None: all
    that it has), and what to enter around each forward (autocast)."""

    grid: Layout
    pad_id: int
    device: torch.device
    micro_batch_size: int | None = None
    context: Context = nullcontext


def backward_rows(
    model: Any, rows: Sequence[Row], step: int, place: Place, rng: RNGTracker | None = None
) -> Tensor:
    """Gradients of the mean loss over a global batch's rows and their questions; returns that mean.

    Every rank gives all rows, and computes its own. A data-parallel rank that is left without any
    (a short last batch) has zero gradients and takes part in the averaging. Clear gradients first.
    Wire, over the data-parallel group: the gradients, and one number.
    """
    grid = place.grid
    width, texts = max(row.length for row in rows), len(rows[0].texts)
    asked = len(rows) * len(rows[0].labels)
    first, own = own_part(range(len(rows)), grid.dp_rank, grid.dp_size)
    size = place.micro_batch_size or max(1, len(own))
    total = torch.zeros((), dtype=torch.float64, device=place.device)
    for start in range(0, len(own), size):
        part = [rows[i] for i in own[start : start + size]]
        if rng is not None:
            rng.at(step, (first + start) * texts)
        batch = collate(part, width, place.pad_id).to(place.device)
        with place.context():
            loss = model.loss(batch, asked / grid.dp_size)
        loss.backward()
        total += loss.detach()
    average_gradients(model.parameters(), grid.dp_group)
    all_reduce_(total, grid.dp_group)
    return total / grid.dp_size


@torch.no_grad()
def predict(model: nn.Module, rows: Sequence[Row], place: Place, batch_size: int = 32) -> Tensor:
    """Logits [rows, q, n] in float64 on the CPU, in the order given, the same on all ranks.

    n is the widest row's; beyond its own width a row has -inf. Dropout is off. Each data-parallel
    rank computes some batches, of rows of like length. Wire: one all-reduce of all logits.
    """
    order = sorted(range(len(rows)), key=lambda i: rows[i].length)
    batches = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    widest = max(row.length for row in rows)
    found: Tensor | None = None
    with in_eval_mode(model):
        # All ranks look at the last batch's shape, also those that own none of the batches.
        for number in range(len(batches) - 1, -1, -1):
            mine = number % place.grid.dp_size == place.grid.dp_rank
            if found is not None and not mine:
                continue
            part = [rows[i] for i in batches[number]]
            batch = collate(part, part[-1].length, place.pad_id).to(place.device)
            with place.context():
                logits = model(batch).double()
            if found is None:
                n = widest if rows[0].allowed is not None else logits.size(-1)
                found = logits.new_zeros(len(rows), logits.size(1), n)
            if mine:
                found[batches[number]] = torch.nn.functional.pad(
                    logits, (0, found.size(-1) - logits.size(-1)), value=-torch.inf
                )
    assert found is not None
    all_reduce_(found, place.grid.dp_group)
    return found.cpu()


def linear_rate(step: int, *, peak: float, warmup: int, total: int) -> float:
    """Learning rate of step 0, 1, …: up to `peak` in `warmup` steps, then in a line to 0 at total.

    (The paper says how high it is, in table 6, and not how it goes; this is BERT's way.)
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * max(0.0, (total - step) / max(1, total - warmup))
