"""Output GEMM and vocabulary-parallel loss in one, a few tokens at a time.

The paper fuses the loss with the output layer so that logits are never *sent*; here a rank's part
of them is never even *held*: a chunk of tokens goes from hidden states to logits to loss to
gradients before the next (step 1's fused_loss.py, with the three numbers exchanged in between).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from step01_single_gpu.fused_loss import (
    Chunks,
    Gradients,
    check_widths,
    gemm_dtype,
    refuse_second_derivative,
    scaled,
    wants_gradient,
)
from step01_single_gpu.loss import check_shapes, reduce_losses, valid_targets
from step02_mlp_parallel.operators import f
from step02_mlp_parallel.wire import Group

from .cross_entropy import (
    Combined,
    Terms,
    check_smoothing,
    combine,
    logits_gradient_,
    rank_statistics,
    token_losses,
)
from .vocab import words_of


def vocab_parallel_linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    group: Group = None,
    *,
    vocab_size: int | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: str = "mean",
    divisor: float | Tensor | None = None,
    allow_empty_ranks: bool = False,
) -> Tensor:
    """`vocab_parallel_cross_entropy(f(hidden) @ weight.T, …)`, equal in value and gradients.

    hidden [..., h] and targets [...], the same on all ranks; weight [padded_v/n, h], this rank's
    rows: of an embedding, or whatever is to be told apart (the batch's other half in a contrastive
    loss). All ranks have equally many, so pad the last ones (with finite numbers). Other arguments
    and errors as there; under autocast the GEMMs run in its dtype.
    Wire: forward two all-reduces a chunk, 3 numbers a token in all (4 with smoothing); backward
    one of hidden's gradient, since f stands in front of the chunks and not in each.
    "mean" and "sum" take the gradients during forward, "none" makes the logits again in backward,
    without a word to the other ranks. Under `no_grad` neither happens.
    """
    check_shapes(hidden, targets)
    check_widths(hidden, weight)
    words = words_of(weight.size(0), vocab_size, group, allow_empty_ranks)
    valid = valid_targets(targets, words.vocab_size, ignore_index)
    reduce_losses(hidden.new_zeros(()), valid.new_zeros(()), reduction, divisor)  # checks them
    terms = Terms(words, group, check_smoothing(label_smoothing), z_loss)
    arguments = (
        f(hidden, group).reshape(-1, hidden.size(-1)),
        weight,
        targets.long().masked_fill(~valid, 0).reshape(-1),
        valid.reshape(-1),
        terms,
        gemm_dtype(hidden),
    )
    if reduction == "none" or not wants_gradient(hidden, weight):
        losses = _TokenLosses.apply(*arguments)  # type: ignore[no-untyped-call]
        return reduce_losses(losses.view_as(targets), valid, reduction, divisor)
    total = _SumOfLosses.apply(*arguments)  # type: ignore[no-untyped-call]
    return reduce_losses(total, valid, reduction, divisor)


class _SumOfLosses(torch.autograd.Function):
    """Sum over the valid tokens; the gradients are ready before anyone asks for them."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        valid: Tensor,
        terms: Terms,
        dtype: torch.dtype,
    ) -> Tensor:
        chunks, grads = (
            Chunks(hidden, weight, dtype),
            Gradients(hidden, weight, ctx.needs_input_grad),
        )
        total = torch.zeros((), device=hidden.device, dtype=chunks.wide)
        for rows, x, logits in chunks:
            known = combine(rank_statistics(logits, targets[rows], terms), targets[rows], terms)
            total += token_losses(known, terms).masked_fill(~valid[rows], 0.0).sum()
            scale = valid[rows].to(chunks.wide)
            d_logits = logits_gradient_(logits, targets[rows], known, scale, terms)
            grads.add(rows, x, chunks.weight, d_logits)
        ctx.save_for_backward(grads.hidden, grads.weight)
        ctx.dtypes = hidden.dtype, weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("vocab_parallel_linear_cross_entropy")
        return *scaled(ctx.saved_tensors, grad, ctx.dtypes), None, None, None, None


class _TokenLosses(torch.autograd.Function):
    """The loss of each token; backward makes the logits again, and knows what to subtract."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        valid: Tensor,
        terms: Terms,
        dtype: torch.dtype,
    ) -> Tensor:
        chunks, kept = Chunks(hidden, weight, dtype), []
        losses = torch.empty(hidden.size(0), device=hidden.device, dtype=chunks.wide)
        for rows, _, logits in chunks:
            known = combine(rank_statistics(logits, targets[rows], terms), targets[rows], terms)
            losses[rows] = token_losses(known, terms)
            kept.append(torch.stack([known.largest, known.sums]))
        ctx.save_for_backward(hidden, weight, targets, valid, *kept)
        ctx.terms, ctx.dtype = terms, dtype
        return losses.masked_fill_(~valid, 0.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("vocab_parallel_linear_cross_entropy")
        hidden, weight, targets, valid, *kept = ctx.saved_tensors
        chunks = Chunks(hidden, weight, ctx.dtype)
        grads = Gradients(hidden, weight, ctx.needs_input_grad)
        scale = grad.masked_fill(~valid, 0.0)
        for (rows, x, logits), (largest, sums) in zip(chunks, kept, strict=True):
            exponentials = _exponentials_(logits, largest, ctx.terms)
            known = Combined(largest, sums, sums, None, torch.ones_like(sums))
            d_logits = logits_gradient_(exponentials, targets[rows], known, scale[rows], ctx.terms)
            grads.add(rows, x, chunks.weight, d_logits)
        d_weight = None if grads.weight is None else grads.weight.to(weight.dtype)
        return grads.hidden, d_weight, None, None, None, None


def _exponentials_(logits: Tensor, largest: Tensor, terms: Terms) -> Tensor:
    """exp(logit - largest), 0 where padded, in the logits' own buffer."""
    logits.sub_(largest.unsqueeze(1)).exp_()
    logits[:, terms.words.count :] = 0.0
    return logits
