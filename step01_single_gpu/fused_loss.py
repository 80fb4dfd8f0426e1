"""The output GEMM and the cross-entropy in one, a few tokens at a time.

All logits of a batch are its largest tensor by far: 16 sequences of 1,024 tokens and 50,257
words are 3.3 GB in float32, held twice while the softmax is taken. Here a chunk of tokens goes
from hidden states to logits to loss to gradients, and its logits are gone before the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .loss import check_shapes, reduce_losses, valid_targets

# Logits held at once, in numbers: 4 Mi float32 are 16 MiB. Smaller chunks make slower GEMMs (128
# rows: three quarters of the rate). Blocks above 32 MiB never stay with malloc: Linux clears fresh
# pages for them at every step, which cost more than the GEMM that fills them.
CHUNK_NUMBERS = 4 * 1024 * 1024
# Rows whose weight gradient one half-precision GEMM may add up: float16 ends at 65,504.
HALF_ROWS = 1024


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    divisor: float | Tensor | None = None,
) -> Tensor:
    """`cross_entropy(hidden @ weight.T, targets, …)`, equal in value and gradients.

    hidden [..., h], weight [v, h], targets [...]. Losses are float32, or float64 for float64
    input; under autocast the GEMMs run in its dtype. "mean" and "sum" take the gradients during
    forward, while the logits are at hand, and backward only scales them; "none", whose upstream
    gradient is not known yet, computes the logits again in backward. Under `no_grad` neither
    happens. Asking for a second derivative (`create_graph=True`) raises RuntimeError.
    """
    check_shapes(hidden, targets)
    check_widths(hidden, weight)
    valid = valid_targets(targets, weight.size(0), ignore_index)
    reduce_losses(hidden.new_zeros(()), valid.new_zeros(()), reduction, divisor)  # checks them
    dtype = gemm_dtype(hidden)
    targets = targets.long().masked_fill(~valid, 0)
    flat, where = hidden.reshape(-1, hidden.size(-1)), targets.reshape(-1, 1)
    if reduction == "none" or not wants_gradient(hidden, weight):
        losses = _TokenLosses.apply(  # type: ignore[no-untyped-call]
            flat, weight, where, valid.reshape(-1), dtype
        )
        return reduce_losses(losses.view_as(targets), valid, reduction, divisor)
    total = _SumOfLosses.apply(  # type: ignore[no-untyped-call]
        flat, weight, where, valid.reshape(-1), dtype
    )
    return reduce_losses(total, valid, reduction, divisor)


def wants_gradient(hidden: Tensor, weight: Tensor) -> bool:
    """Whether a backward can come."""
    return torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)


def check_widths(hidden: Tensor, weight: Tensor) -> None:
    """Raise ValueError unless hidden [..., h] and weight [v, h] can be multiplied."""
    if weight.dim() != 2 or hidden.size(-1) != weight.size(1):
        raise ValueError(
            f"hidden states are {hidden.size(-1)} wide and the weight is {list(weight.shape)}; it "
            "must be [words, that width]"
        )


def gemm_dtype(hidden: Tensor) -> torch.dtype:
    """Autocast's dtype if that is on (float64 it leaves alone), else hidden's own."""
    kind = hidden.device.type
    if hidden.is_meta or hidden.dtype == torch.float64 or not torch.is_autocast_enabled(kind):
        return hidden.dtype
    return torch.get_autocast_dtype(kind)


class _SumOfLosses(torch.autograd.Function):
    """Sum over the valid tokens; the gradients are ready before anyone asks for them."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, valid: Tensor, dtype: torch.dtype
    ) -> Tensor:
        chunks = Chunks(hidden, weight, dtype)
        grads = Gradients(hidden, weight, ctx.needs_input_grad)
        total = torch.zeros((), device=hidden.device, dtype=chunks.wide)
        for rows, x, logits in chunks:
            loss, exponentials, sums = _statistics(logits, targets[rows])
            total += loss.masked_fill(~valid[rows], 0.0).sum()
            d_logits = _logits_gradient(exponentials, sums, targets[rows], valid[rows])
            grads.add(rows, x, chunks.weight, d_logits)
        ctx.save_for_backward(grads.hidden, grads.weight)
        ctx.dtypes = hidden.dtype, weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("linear_cross_entropy")
        return *scaled(ctx.saved_tensors, grad, ctx.dtypes), None, None, None


class _TokenLosses(torch.autograd.Function):
    """The loss of each token; backward makes the logits again, chunk by chunk."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, valid: Tensor, dtype: torch.dtype
    ) -> Tensor:
        ctx.save_for_backward(hidden, weight, targets, valid)
        ctx.dtype, chunks = dtype, Chunks(hidden, weight, dtype)
        losses = torch.empty(hidden.size(0), device=hidden.device, dtype=chunks.wide)
        for rows, _, logits in chunks:
            losses[rows] = _statistics(logits, targets[rows])[0]
        return losses.masked_fill_(~valid, 0.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("linear_cross_entropy")
        hidden, weight, targets, valid = ctx.saved_tensors
        chunks = Chunks(hidden, weight, ctx.dtype)
        grads = Gradients(hidden, weight, ctx.needs_input_grad)
        scale = grad.masked_fill(~valid, 0.0)
        for rows, x, logits in chunks:
            _, exponentials, sums = _statistics(logits, targets[rows])
            d_logits = _logits_gradient(exponentials, sums, targets[rows], scale[rows])
            grads.add(rows, x, chunks.weight, d_logits)
        d_weight = None if grads.weight is None else grads.weight.to(weight.dtype)
        return grads.hidden, d_weight, None, None, None


def scaled(
    saved: tuple[Tensor | None, ...], grad: Tensor, dtypes: tuple[torch.dtype, ...]
) -> list[Tensor | None]:
    """Gradients that were taken in forward, times the upstream one, in the inputs' dtypes: in place
    if nobody needs them again, since the one for the weight is as large as the weight.

    Half types are multiplied in float32: the upstream gradient may be a loss scale of 65,536, which
    float16 doesn't have.
    """
    kept = graph_is_kept()
    results: list[Tensor | None] = []
    for gradient, dtype in zip(saved, dtypes, strict=True):
        if gradient is None:
            results.append(None)
        elif gradient.dtype in (torch.float16, torch.bfloat16):
            results.append((gradient.float() * grad).to(dtype))
        else:
            results.append((gradient * grad if kept else gradient.mul_(grad)).to(dtype))
    return results


def graph_is_kept() -> bool:
    """In a backward: was it called with `retain_graph=True`? (torch has no public name for it.)"""
    return torch._C._autograd._get_current_graph_task_keep_graph()


def refuse_second_derivative(function: str) -> None:
    """Gradients made without a graph would count as constants in a gradient penalty: silently."""
    if torch.is_grad_enabled():  # in a backward: somebody asked for create_graph=True
        raise RuntimeError(
            f"{function} has no second derivative; use cross_entropy of step 1 on whole logits"
        )


def _statistics(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Loss of each row, from three numbers: its maximum, its sum of exponentials, its target logit.

    logits [n, v] is worked on in place (the chunk's own buffer) and comes back as
    exp(logits - maximum). These three are also all that step 4's ranks tell each other.
    """
    logits -= logits.amax(1, keepdim=True)
    at_target = logits.gather(1, targets).squeeze(1)
    exponentials = logits.exp_()
    sums = exponentials.sum(1)
    return sums.log() - at_target, exponentials, sums


def _logits_gradient(exponentials: Tensor, sums: Tensor, targets: Tensor, scale: Tensor) -> Tensor:
    """d loss / d logits = (softmax - one-hot) * scale, in the exponentials' own buffer."""
    d_logits = exponentials.mul_((scale / sums).unsqueeze(1))
    return d_logits.scatter_add_(1, targets, -scale.to(sums.dtype).unsqueeze(1))


class Gradients:
    """Collects d loss / d hidden and d loss / d weight over the chunks."""

    def __init__(self, hidden: Tensor, weight: Tensor, needed: tuple[bool, ...]) -> None:
        self.hidden = torch.empty_like(hidden) if needed[0] else None
        # Half types would round the sum once for each chunk: it is made in float32.
        half = weight.dtype in (torch.float16, torch.bfloat16)
        dtype = torch.float32 if half else weight.dtype
        self.weight = torch.zeros_like(weight, dtype=dtype) if needed[1] else None

    def add(self, rows: slice, x: Tensor, weight: Tensor, d_logits: Tensor) -> None:
        """One chunk: its rows x [c, h] and the gradient of its logits [c, v]."""
        d_logits = d_logits.to(x.dtype)
        if self.hidden is not None:
            self.hidden[rows] = d_logits @ weight
        if self.weight is not None and self.weight.dtype == x.dtype:
            self.weight.addmm_(d_logits.T, x)
        elif self.weight is not None:
            self.weight += d_logits.T @ x


class Chunks:
    """Goes over the rows of `hidden` in pieces whose logits fit CHUNK_NUMBERS.

    Yields (rows, those rows in the GEMMs' dtype, their logits in float32 or better); the logits
    stand in one buffer that the next piece overwrites.
    """

    def __init__(self, hidden: Tensor, weight: Tensor, dtype: torch.dtype) -> None:
        self.hidden, self.weight = hidden.to(dtype), weight.to(dtype)
        self.wide = torch.float64 if dtype == torch.float64 else torch.float32

    def __iter__(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        total, width = self.hidden.size(0), self.weight.size(0)
        half = self.hidden.dtype in (torch.float16, torch.bfloat16)
        size = max(1, min(total, CHUNK_NUMBERS // width, HALF_ROWS if half else total))
        buffer = torch.empty(size, width, device=self.hidden.device, dtype=self.wide)
        for start in range(0, total, size):
            rows = slice(start, min(start + size, total))
            x = self.hidden[rows]
            logits = buffer[: x.size(0)]
            if x.dtype == self.wide:
                torch.mm(x, self.weight.T, out=logits)
            else:
                logits.copy_(x @ self.weight.T)
            yield rows, x, logits
