"""The step that every rank of the big grid takes, and the one process that it is compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from step01_single_gpu.config import GPTConfig
from step01_single_gpu.model import GPT
from step01_single_gpu.optimizer import make_optimizer
from step02_mlp_parallel.crowd import let_others_first
from step02_mlp_parallel.sharding import cuts
from step03_attention_parallel import RNGTracker
from step04_embeddings_loss import ParallelGPT

from .batches import own_rows
from .ddp import DataParallel
from .grid import Grid
from .optimizer import clip_grad_norm_

CONFIG = GPTConfig(61, 8, hidden_size=16, num_layers=2, num_heads=8, dropout=0.1)
SEED, LR, CLIP, ROWS = 5, 1e-3, 0.5, 2  # ROWS: sequences of a data-parallel rank
STAGES = ("started", "groups made", "gradients", "compared")


@dataclass
class Outcome:
    """What a rank found."""

    loss: float
    worst: float  # largest error over largest value, over all tensors but the K biases
    tensor: str  # where
    k_bias: float  # largest error of a K bias, over the learning rate


def reference(folder: Path, rows: int) -> float:
    """One process takes the step; its weights go to folder/reference.pt. Returns the loss."""
    rng = RNGTracker(SEED, mode="invariant").at(0, 0)
    model = GPT(CONFIG, seed=SEED, dropout=rng.dropout).double()
    loss = model.loss(*global_rows(rows))
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    make_optimizer(model, lr=LR).step()
    torch.save(model.state_dict(), folder / "reference.pt")
    return loss.item()


def one_rank(tp_size: int, folder: Path) -> Outcome:
    """The step on this rank, and its part of every weight against the reference's."""
    _reached(folder, 0)
    dp = dist.get_world_size() // tp_size
    grid = Grid(tp_size, dp, device_type="cpu")
    let_others_first()
    _reached(folder, 1)
    rng = RNGTracker(
        SEED, tp_rank=grid.tp_rank, tp_size=grid.tp_size, dp_rank=grid.dp_rank, mode="invariant"
    )
    model = ParallelGPT(CONFIG, group=grid.tp_group, rng=rng, seed=SEED, vocab_multiple=1).double()
    tokens, targets = (own_rows(part, grid.dp_rank, dp) for part in global_rows(dp * ROWS))
    rng.at(0, grid.dp_rank * ROWS)
    loss = DataParallel(model, grid.dp_group).backward_global_mean([(tokens, targets)])
    _reached(folder, 2)
    clip_grad_norm_(model, CLIP, grid.tp_group)
    make_optimizer(model, lr=LR).step()
    whole = torch.load(folder / "reference.pt", weights_only=True)
    outcome = compared(model, whole, loss.item())
    _reached(folder, 3)
    return outcome


def compared(model: ParallelGPT, whole: dict[str, Tensor], loss: float) -> Outcome:
    """This rank's tensors against its parts of the reference's."""
    table, outcome = cuts(model), Outcome(loss, 0.0, "", 0.0)
    for name, tensor in model.state_dict().items():
        dim = table[name].shard_dim
        expected = table[name].part_of(whole[name], tensor.size(dim) if dim is not None else 0)
        errors = (tensor - expected).abs()
        if name.endswith("qkv.bias"):
            # K's gradient is zero but for rounding, which Adam divides by eps.
            outcome.k_bias = max(outcome.k_bias, errors[1].max().item() / LR)
            errors = errors[[0, 2]]
        error = errors.max().item() / whole[name].abs().max().item()
        if not error <= outcome.worst:  # NaN too
            outcome.worst, outcome.tensor = error if error == error else math.inf, name
    return outcome


def global_rows(rows: int) -> tuple[Tensor, Tensor]:
    """A global batch in which rows have different numbers of valid tokens, some of them none."""
    generator = torch.Generator().manual_seed(SEED)
    tokens = torch.randint(CONFIG.vocab_size, (rows, CONFIG.seq_length), generator=generator)
    targets = tokens.roll(-1, 1)
    valid = torch.randint(CONFIG.seq_length + 1, (rows, 1), generator=generator)
    return tokens, targets.where(torch.arange(CONFIG.seq_length) < valid, -100)


def _reached(folder: Path, stage: int) -> None:
    """One byte more for a stage; a short append is never torn."""
    with open(folder / f"stage-{stage}", "ab", buffering=0) as file:
        file.write(b".")
