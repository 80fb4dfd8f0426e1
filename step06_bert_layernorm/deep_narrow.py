"""One model of figure 7: deep and narrow, in either norm order, trained and looked into."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from step01_single_gpu.optimizer import make_optimizer
from step05_hybrid_dp.optimizer import clip_grad_norm_

from .config import BertConfig
from .examples import Batch
from .parallel_bert import ParallelBERT

PAPER_WIDTH = 1024  # of the paper's 336M model, whose matrices start at 0.02


@dataclass(frozen=True)
class Sizes:
    """What all models of a study share."""

    vocab_size: int
    hidden_size: int
    num_heads: int
    seq_length: int
    steps: int
    start: str = "bert"
    probe: int = 10  # steps until the gradients are measured a second time


@dataclass(frozen=True)
class Trial:
    """One training run of it."""

    norm: str
    depth: int
    rate: float
    warmup: int
    seed: int


def build(sizes: Sizes, norm: str, depth: int, seed: int) -> ParallelBERT:
    """The model at its start.

    A matrix of std 0.02 multiplies what a model of width 1024 hands it by 0.64, and what one of
    width 32 hands it by 0.11: the branches of a narrow model would say nothing. So the matrices of
    the MLPs and the last one of attention are scaled up to do here what they do in the paper's
    model. (Q, K and V keep 0.02: attention starts by looking at all tokens alike, and softly.)
    `start` "bert": the last matrix of a branch is like the others, as in the BERT that the original
    order comes from. "gpt2": it is smaller by √(2 · depth), as in this project's models.
    """
    config = BertConfig(
        sizes.vocab_size, sizes.seq_length, sizes.hidden_size, depth, sizes.num_heads,
        dropout=0.0, norm=norm,
    )  # fmt: skip
    model = ParallelBERT(config, seed=seed)
    width = math.sqrt(PAPER_WIDTH / sizes.hidden_size)
    with torch.no_grad():
        for name, p in model.blocks.named_parameters():
            if name.endswith(("up.weight", "out.weight", "down.weight")):
                p.mul_(width)
                if sizes.start == "bert" and name.endswith(("out.weight", "down.weight")):
                    p.mul_(math.sqrt(2 * depth))  # undoes GPT-2's
    return model


def train(sizes: Sizes, trial: Trial, batches: Sequence[Batch]) -> dict[str, Any]:
    """Train with the paper's recipe (AdamW, clipping at 1, linear decay) on `batches` in turn.

    Returns the losses and gradient norms before clipping of each step, and what `look` finds
    before the first step and after `probe` steps. Ends early at a loss that is no number.
    """
    model = build(sizes, trial.norm, trial.depth, trial.seed)
    optimizer = make_optimizer(model)
    losses: list[float] = []
    norms: list[float] = []
    looks = [look(model, batches[0])]
    for step in range(sizes.steps):
        if step == sizes.probe:
            looks.append(look(model, batches[0]))
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, trial.rate, trial.warmup, sizes.steps)
        optimizer.zero_grad()
        loss = words_loss(model, batches[step % len(batches)])
        loss.backward()  # type: ignore[no-untyped-call]
        norms.append(float(clip_grad_norm_(model, 1.0)))
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1] + norms[-1]):
            break
        optimizer.step()
    return {"losses": losses, "norms": norms, "looks": looks}


def rate_at(step: int, peak: float, warmup: int, steps: int) -> float:
    """Linear warm-up to `peak`, then a line to zero (paper, section 4.3, for BERT)."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (steps - step) / (steps - warmup)


def words_loss(model: ParallelBERT, batch: Batch) -> Tensor:
    """Of the masked words alone: the order of sentences says nothing about frequencies."""
    return model.loss(
        batch.tokens, batch.targets, segments=batch.segments, padding_mask=batch.padding_mask
    )


def look(model: ParallelBERT, batch: Batch) -> dict[str, Any]:
    """`layers`: for each layer the norm of the gradient of all its weights. `alike`: see below."""
    model.zero_grad()
    words_loss(model, batch).backward()  # type: ignore[no-untyped-call]
    squares = [
        sum(float(p.grad.square().sum()) for p in block.parameters() if p.grad is not None)
        for block in model.blocks
    ]
    model.zero_grad()
    with torch.no_grad():
        hidden = model.hidden(batch.tokens, batch.segments, batch.padding_mask)
    return {"layers": [math.sqrt(s) for s in squares], "alike": alike(hidden[batch.padding_mask])}


def alike(hidden: Tensor) -> float:
    """Mean cosine of any two tokens' last hidden states [t, h]: at 1 all tokens look the same, and
    nothing that is said of one can depend on the text."""
    centred = hidden - hidden.mean(-1, keepdim=True)
    unit = centred / centred.norm(dim=-1, keepdim=True)
    return float((unit @ unit.T).mean())
