"""f and g, the paper's conjugate pair (section 3, figure 3), and split/gather beside them.

                forward          backward
    f           identity         all-reduce        into a tensor-parallel region
    g           all-reduce       identity          out of it
    split       own slice        all-gather        of the last dimension
    gather      all-gather       own slice

Why is g's backward the identity, when g is a sum over ranks? Because the loss is not summed over
the ranks: each of them computes *the same* loss from the same y = x₀ + x₁ + …, so dL/dxᵢ = dL/dy,
which every rank has already. A second all-reduce would count one loss n times.

No operator changes its input or returns it: what comes back may be changed in place. Each is the
other's backward, so second derivatives work too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .wire import Group, all_gather, all_reduce_, group_rank, group_size


# exercise 2.1
def f(x: Tensor, group: Group = None) -> Tensor:
    """Identity forward, all-reduce backward: stands before what is cut over the ranks.

    x: the same on all ranks, any shape. Every rank's part of the layer sends back its part of x's
    gradient; their sum is the gradient. Wire: forward nothing, backward x.numel() numbers.
    """
    return _F.apply(x, group)  # type: ignore[no-any-return, no-untyped-call]


# exercise 2.2
def g(x: Tensor, group: Group = None) -> Tensor:
    """All-reduce forward, identity backward: stands behind what is cut over the ranks.

    x: each rank's partial result; returns their sum, the same on all ranks.
    Wire: forward x.numel() numbers, backward nothing.
    """
    return _G.apply(x, group)  # type: ignore[no-any-return, no-untyped-call]


def g_(x: Tensor, group: Group = None) -> Tensor:
    """g in x's own memory, for a result that nobody else needs, such as a GEMM's.

    If another operation had saved x for its backward, autograd raises there, instead of going on
    with a sum that it takes for its own input.
    """
    return _GInPlace.apply(x, group)  # type: ignore[no-any-return, no-untyped-call]


def split_last_dim(x: Tensor, group: Group = None) -> Tensor:
    """This rank's slice of x [..., c], the same on all ranks: [..., c/n].

    Wire: forward nothing, backward an all-gather of [..., c/n]. Raises ValueError if n doesn't
    divide c.
    """
    n = group_size(group)
    if x.size(-1) % n:
        raise ValueError(f"the last dimension, {x.size(-1)}, doesn't divide by the {n} ranks")
    return _Split.apply(x, group)  # type: ignore[no-any-return, no-untyped-call]


def gather_last_dim(x: Tensor, group: Group = None) -> Tensor:
    """The slices [..., c/n] of all ranks side by side: [..., c], the same on all ranks.

    Its backward takes this rank's slice of the gradient. That is right if the gradient is whole
    and the same on all ranks: behind the gather stands replicated work, or a cut layer *with its
    f*. (A cut layer without f would leave partial gradients, which would need a reduce-scatter.)
    Wire: forward an all-gather of [..., c/n], backward nothing.
    """
    return _Gather.apply(x, group)  # type: ignore[no-any-return, no-untyped-call]


class _F(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        group_size(group)  # a group that isn't this rank's is named here, not first in backward
        # A copy: the input itself would come back as a view that refuses in-place operations.
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return g(grad, ctx.group), None


class _G(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _reduced_copy(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _identity(grad, ctx.group), None


class _GInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        ctx.mark_dirty(x)
        all_reduce_(x, group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _identity(grad, ctx.group), None


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _own_slice(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return gather_last_dim(grad, ctx.group), None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return torch.cat(all_gather(x, group).unbind(0), dim=-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return split_last_dim(grad, ctx.group), None


def _reduced_copy(x: Tensor, group: Group) -> Tensor:
    """The sum over ranks in new, dense memory: x may be expanded (`y.sum().backward()` hands back
    one number with stride 0 for a whole tensor), and it may be saved by somebody."""
    total = x.clone(memory_format=torch.contiguous_format)
    all_reduce_(total, group)
    return total


def _identity(grad: Tensor, group: Group) -> Tensor:
    """grad as it is; when a second derivative is wanted, with f's place in the graph."""
    return f(grad, group) if torch.is_grad_enabled() else grad


def _own_slice(x: Tensor, group: Group) -> Tensor:
    width = x.size(-1) // group_size(group)
    return x.narrow(-1, group_rank(group) * width, width).clone(
        memory_format=torch.contiguous_format
    )
