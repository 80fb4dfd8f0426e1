"""The batch of step k: a function of (seed, k) and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .weights import generator_for


# exercise 1.4
def global_batch(
    tokens: Any, step: int, *, batch_size: int, seq_length: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Inputs and targets [batch_size, seq_length] of optimizer step `step`, int64, on the CPU.

    `tokens` is one long row of ids (memory map, array or tensor). Each row of the batch is a
    window that starts anywhere with equal chance; a target is the token after its input. No
    state is kept, so a resumed run, another number of ranks or of micro-batches sees the same
    data. Raises ValueError for a corpus shorter than one window and its last target.
    """
    if len(tokens) < seq_length + 1:
        raise ValueError(
            f"the corpus has {len(tokens)} tokens; one window of seq_length {seq_length} and its "
            f"last target need {seq_length + 1}: use more text or a smaller seq_length"
        )
    generator = generator_for("batch", int(seed), int(step))
    starts = torch.randint(
        len(tokens) - seq_length, (batch_size,), generator=generator, device="cpu"
    )
    rows = np.stack([np.asarray(tokens[i : i + seq_length + 1]) for i in starts.tolist()])
    windows = torch.from_numpy(rows.astype(np.int64))
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
