"""Cross-entropy over the tokens that count: the plain version, in a few lines.

`fused_loss.py` gives the same numbers without ever holding all logits; this is what it is
proved equal to.
"""

from __future__ import annotations

import torch
from torch import Tensor


# exercise 1.2
def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    divisor: float | Tensor | None = None,
) -> Tensor:
    """-log softmax(logits)[target] for each token whose target is not `ignore_index`.

    logits [..., v] (half dtypes are summed in float32), targets [...] integers. Raises ValueError
    for a target outside the vocabulary. See `reduce_losses` for the other arguments.
    """
    check_shapes(logits, targets)
    valid = valid_targets(targets, logits.size(-1), ignore_index)
    wide = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    picked = wide.gather(-1, targets.masked_fill(~valid, 0).long().unsqueeze(-1)).squeeze(-1)
    losses = (wide.logsumexp(-1) - picked).masked_fill(~valid, 0.0)
    return reduce_losses(losses, valid, reduction, divisor)


def reduce_losses(
    losses: Tensor, valid: Tensor, reduction: str, divisor: float | Tensor | None = None
) -> Tensor:
    """One number from the losses of tokens, or all of them.

    "none": as they are, zero where ignored. "sum": their sum, over `divisor` if one is given
    (data parallelism divides by a count that only all ranks together know). "mean": the sum over
    the number of valid tokens. No valid token gives a loss of zero with zero gradients; torch
    gives NaN there, which would end a training run for an empty row.
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f'reduction is {reduction!r}; it must be "mean", "sum" or "none"')
    if divisor is not None and reduction != "sum":
        raise ValueError(f'divisor goes with reduction="sum", not with {reduction!r}')
    if reduction == "none":
        return losses
    if reduction == "mean":
        divisor = valid.sum().clamp(min=1)
    return losses.sum() if divisor is None else losses.sum() / divisor


def check_shapes(x: Tensor, targets: Tensor) -> None:
    """Raise ValueError unless there is one target for each row of x [..., width]."""
    if x.shape[:-1] != targets.shape:
        raise ValueError(
            f"targets have shape {list(targets.shape)}, and the rows they are for "
            f"{list(x.shape[:-1])}: there must be one for each"
        )


def valid_targets(targets: Tensor, vocab_size: int, ignore_index: int) -> Tensor:
    """Bool, True where a target counts. Raises ValueError for one outside the vocabulary."""
    valid = targets.long() != ignore_index  # in a narrow type -100 may be a real id
    check_ids(targets, vocab_size, "target", also=~valid)
    return valid


def check_ids(ids: Tensor, vocab_size: int, what: str, also: Tensor | None = None) -> None:
    """Raise ValueError if an id is outside [0, vocab_size), those marked in `also` apart.

    On an accelerator the answer would cost a wait for the device at every step, so there the
    device itself checks and stops.
    """
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise ValueError(f"{what} ids are {ids.dtype}; they must be integers, such as torch.int64")
    ids = ids.long()
    good = (ids >= 0) & (ids < vocab_size)
    if also is not None:
        good = good | also
    if ids.is_meta:
        return
    if ids.device.type != "cpu":
        torch._assert_async(good.all(), f"a {what} id is outside the vocabulary of {vocab_size}")
    elif not good.all():
        bad = ids[~good][0].item()
        raise ValueError(
            f"{what} id {bad} is outside the vocabulary: ids go from 0 to {vocab_size - 1}"
        )
