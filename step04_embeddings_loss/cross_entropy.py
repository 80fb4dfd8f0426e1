"""Cross-entropy of logits that are spread over the ranks: three numbers a token go over the wire.

The loss of a token is log Σ exp(logit) - logit of its target. The sum runs over all ranks and the
target's logit is on one of them; the largest logit is subtracted from both, so that exp can't
overflow. Each rank finds the three for its own words, and they are combined by one all-reduce for
the maximum and one for the two sums (paper, section 3: the loss is fused with the parallel output
layer, so that b·s numbers are sent and not b·s·v).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from step01_single_gpu.fused_loss import graph_is_kept, refuse_second_derivative
from step01_single_gpu.loss import check_shapes, reduce_losses, valid_targets
from step02_mlp_parallel.wire import Group, all_reduce_

from .vocab import Words, words_of

# Numbers worked on at a time on a CPU: 2 MiB of float32 stay in its cache from the first pass to
# the last, and there are few enough blocks that starting operators costs little. (A GPU takes all
# at once.)
BLOCK_NUMBERS = 512 * 1024


def vocab_parallel_cross_entropy(
    logits: Tensor,
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
    """`F.cross_entropy` of the gathered logits, without gathering them; the same on all ranks.

    logits [..., padded_v/n], this rank's, equally wide on all ranks; targets [...], the same on all
    ranks. `vocab_size` is the true width, needed on several ranks: columns beyond it are padding
    and count for nothing.
    Computed in float32, or float64 for float64 logits, which are left as they are. `reduction` and
    `divisor` as in step 1's `reduce_losses`; no valid token gives zero, with zero gradients.
    `label_smoothing` spreads that part of the target over the whole true vocabulary; `z_loss` adds
    z_loss · (log Σ exp(logit))², which keeps logits from drifting.
    Wire: forward one all-reduce (max) of a number a token and one (sum) of two, three with
    smoothing; backward nothing. Needs logits of f(x): the loss is the same on all ranks, x's
    gradient is a sum over them.
    Raises ValueError, before any communication, for a target outside the vocabulary, and for a
    width that doesn't fit `vocab_size` on these ranks (whole logits passed by mistake, say);
    `allow_empty_ranks` admits ranks whose columns are all padding. No second derivative.
    """
    check_shapes(logits, targets)
    words = words_of(logits.size(-1), vocab_size, group, allow_empty_ranks)
    valid = valid_targets(targets, words.vocab_size, ignore_index)
    reduce_losses(logits.new_zeros(()), valid.new_zeros(()), reduction, divisor)  # checks them
    terms = Terms(words, group, check_smoothing(label_smoothing), z_loss)
    losses = _CrossEntropy.apply(  # type: ignore[no-untyped-call]
        logits.reshape(-1, logits.size(-1)),
        targets.long().masked_fill(~valid, 0).reshape(-1),
        terms,
    )
    losses = losses.view_as(targets).masked_fill(~valid, 0.0)
    return reduce_losses(losses, valid, reduction, divisor)


class Terms(NamedTuple):
    """What the loss is made of, beside logits and targets."""

    words: Words
    group: Group
    label_smoothing: float = 0.0
    z_loss: float = 0.0


# exercise 4.3
def rank_statistics(logits: Tensor, targets: Tensor, terms: Terms) -> Tensor:
    """This rank's part of the story of each token: [3, t], or [4, t] with label smoothing.

    The rows: the largest logit of the rank's own words, `largest`; Σ exp(logit - largest); the
    target's logit - largest (0 on the ranks that don't have it); Σ (logit - largest).
    logits [t, padded_v/n] is worked on in place and comes back as exp(logit - largest), 0 where
    padded.
    """
    words, column = terms.words, terms.words.column(targets)
    own, lowest = logits[:, : words.count], torch.finfo(logits.dtype).min
    largest = own.amax(1) if words.count else logits.new_full(column.shape, lowest)
    largest = largest.clamp_(min=lowest)  # finite, also over -inf alone: -inf - -inf would be NaN
    own -= largest.unsqueeze(1)
    at_target = logits.gather(1, column.unsqueeze(1)).squeeze(1)
    rows = [largest, torch.zeros_like(largest), at_target.masked_fill_(~words.has(targets), 0.0)]
    if terms.label_smoothing:
        rows.append(own.sum(1))
    own.exp_()
    logits[:, words.count :] = 0.0
    rows[1] = own.sum(1)
    return torch.stack(rows)


class Combined(NamedTuple):
    """What all ranks know of each token, [t] each, and how this rank's part fits in."""

    largest: Tensor  # over the whole vocabulary
    sums: Tensor  # Σ exp(logit - largest)
    at_target: Tensor  # the target's logit - largest
    total: Tensor | None  # Σ (logit - largest)
    weight: Tensor  # this rank's exponentials times it are exp(logit - largest)


# exercise 4.3
def combine(own: Tensor, targets: Tensor, terms: Terms) -> Combined:
    """The statistics of all ranks out of each rank's, [3 or 4, t]: one MAX, one SUM of the rest."""
    largest = own[0].clone()
    all_reduce_(largest, terms.group, "max")
    shift = own[0] - largest  # ≤ 0
    sums = own[1:].clone()
    sums[0] *= shift.exp()
    sums[1] += shift.masked_fill(~terms.words.has(targets), 0.0)
    if terms.label_smoothing:
        sums[2] += terms.words.count * shift
    all_reduce_(sums, terms.group)
    total = sums[2] if terms.label_smoothing else None
    return Combined(largest, sums[0], sums[1], total, shift.exp())


def token_losses(known: Combined, terms: Terms) -> Tensor:
    """[t]: log Σ exp - target, with smoothing and z-loss if they are on. No communication."""
    smooth, log_sum = terms.label_smoothing, known.sums.log()
    losses = log_sum - (1.0 - smooth) * known.at_target
    if known.total is not None:
        losses = losses - smooth / terms.words.vocab_size * known.total
    if terms.z_loss:
        losses = losses + terms.z_loss * (known.largest + log_sum).square()
    return losses


# exercise 4.4
def logits_gradient_(
    exponentials: Tensor, targets: Tensor, known: Combined, scale: Tensor, terms: Terms
) -> Tensor:
    """d loss / d logits [t, padded_v/n], in the exponentials' own buffer; no communication.

    scale [t]: d whole loss / d this token's. softmax - target, where the target is a one at its
    word, of which smoothing has spread a part over the vocabulary.
    """
    words, smooth, factor = terms.words, terms.label_smoothing, scale
    if terms.z_loss:
        factor = scale * (1.0 + 2.0 * terms.z_loss * (known.largest + known.sums.log()))
    d_logits = exponentials.mul_((factor * known.weight / known.sums).unsqueeze(1))
    if smooth:
        d_logits[:, : words.count] -= (scale * smooth / words.vocab_size).unsqueeze(1)
    ones = ((smooth - 1.0) * scale).masked_fill(~words.has(targets), 0.0)
    return d_logits.scatter_add_(1, words.column(targets).unsqueeze(1), ones.unsqueeze(1))


def check_smoothing(label_smoothing: float) -> float:
    """Raise ValueError unless it is a share of the target."""
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing is {label_smoothing!r}; it must be from 0 to 1")
    return label_smoothing


class _CrossEntropy(torch.autograd.Function):
    """The loss of each token. Keeps one buffer of logits' size, which becomes the gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, terms: Terms) -> Tensor:
        wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
        rows, keep = logits.size(0), ctx.needs_input_grad[0]
        step = max(1, BLOCK_NUMBERS // logits.size(1)) if logits.device.type == "cpu" else rows
        # Without a backward, one block's buffer does for all.
        shape = (rows if keep else min(step, rows), logits.size(1))
        exponentials = torch.empty(shape, dtype=wide, device=logits.device)
        own = []
        for start in range(0, max(rows, 1), max(step, 1)):
            part = logits[start : start + step]
            block = exponentials[start : start + step] if keep else exponentials[: len(part)]
            own.append(rank_statistics(block.copy_(part), targets[start : start + step], terms))
        known = combine(torch.cat(own, 1), targets, terms)
        if not keep:
            return token_losses(known, terms)
        ctx.save_for_backward(exponentials, targets, known.largest, known.sums, known.weight)
        ctx.terms, ctx.dtype = terms, logits.dtype
        return token_losses(known, terms)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        refuse_second_derivative("vocab_parallel_cross_entropy")
        exponentials, targets, largest, sums, weight = ctx.saved_tensors
        buffer = exponentials.clone() if graph_is_kept() else exponentials
        known = Combined(largest, sums, sums, None, weight)
        return logits_gradient_(buffer, targets, known, grad, ctx.terms).to(ctx.dtype), None, None
