"""Linear layers cut over the ranks: by columns (of the paper's A) and by rows (section 3).

The paper writes Y = X A with A [in, out]; torch keeps A transposed, as weight [out, in]. So
A's columns are the weight's rows: column-parallel is a cut along dim 0, row-parallel along dim 1.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from step01_single_gpu.weights import dotted, draw_weight

from .operators import f, g, g_, gather_last_dim
from .sharding import ParallelModule, check_divides, cut, marked
from .wire import Group, all_reduce_, group_size


class ColumnParallelLinear(ParallelModule):
    """x Aᵢ + bᵢ: each rank computes some of the outputs. [..., in] -> [..., out/n].

    weight [out/n, in], bias [out/n]. x is the same on all ranks, and so is its gradient: the f in
    front is part of the layer. With `gather_output` the result is [..., out], the same on all
    ranks. Wire: forward nothing (with `gather_output` an all-gather of [..., out/n]); backward an
    all-reduce of x's gradient, [..., in] numbers, which runs beside the weight-gradient GEMM
    unless `overlap` is False (same numbers bit for bit).
    Raises ValueError if the group's ranks don't divide out_features.
    """

    shard_dims: ClassVar[dict[str, int | None]] = {"weight": 0, "bias": 0}

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        group: Group = None,
        bias: bool = True,
        gather_output: bool = False,
        overlap: bool = True,
        std: float = 0.02,
        seed: int = 0,
        name: str = "",
    ) -> None:
        super().__init__()
        check_divides(out_features, group, "out_features")
        self.group, self.gather_output, self.overlap = group, gather_output, overlap
        self.in_features, self.out_features = in_features, out_features
        self.weight = _cut_weight((out_features, in_features), 0, group, std, seed, name)
        self.bias = _zeros(out_features // group_size(group), 0, group) if bias else None

    # exercise 2.3
    def forward(self, x: Tensor) -> Tensor:
        _check_width(x, self.in_features, "in_features", self)
        y = column_parallel(x, self.weight, self.bias, self.group, overlap=self.overlap)
        return gather_last_dim(y, self.group) if self.gather_output else y

    def extra_repr(self) -> str:
        return f"{self.in_features} -> {self.out_features}/{group_size(self.group)}"


class RowParallelLinear(ParallelModule):
    """Σᵢ xᵢ Aᵢ + b: each rank multiplies its part of the inputs. [..., in/n] -> [..., out].

    weight [out, in/n], bias [out] replicated. The partial products are summed by g; the bias is
    not a partial product, so it is added once, behind g, and by every rank (added by one alone it
    would have a gradient there alone, and the replicas would drift apart).
    Wire: forward an all-reduce of [..., out] numbers; backward nothing.
    Raises ValueError if the group's ranks don't divide in_features.
    """

    shard_dims: ClassVar[dict[str, int | None]] = {"weight": 1, "bias": None}

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        group: Group = None,
        bias: bool = True,
        std: float = 0.02,
        seed: int = 0,
        name: str = "",
    ) -> None:
        super().__init__()
        check_divides(in_features, group, "in_features")
        self.group, self.in_features, self.out_features = group, in_features, out_features
        self.weight = _cut_weight((out_features, in_features), 1, group, std, seed, name)
        self.bias = _zeros(out_features, None, group) if bias else None

    # exercise 2.4
    def forward(self, x: Tensor) -> Tensor:
        width = self.in_features // group_size(self.group)
        _check_width(x, width, "this rank's part of in_features", self)
        x, weight, bias = _autocast(x, self.weight, self.bias)
        y = g_(F.linear(x, weight), self.group)  # the GEMM's result is ours: no copy for the sum
        return y if bias is None else y.add_(bias)

    def extra_repr(self) -> str:
        return f"{self.in_features}/{group_size(self.group)} -> {self.out_features}"


def column_parallel(
    x: Tensor, weight: Tensor, bias: Tensor | None, group: Group, *, overlap: bool = True
) -> Tensor:
    """`F.linear(f(x), weight, bias)`, all in autocast's dtype if that is on; the function under
    every column-parallel layer. `overlap` as in ColumnParallelLinear."""
    x, weight, bias = _autocast(x, weight, bias)
    if not overlap:
        return F.linear(f(x, group), weight, bias)
    return _OverlappedColumnParallel.apply(x, weight, bias, group)  # type: ignore[no-any-return, no-untyped-call]


class _OverlappedColumnParallel(torch.autograd.Function):
    """`F.linear(f(x), weight, bias)`, whose backward sends while it computes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, group: Group) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group = group
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        need_x, need_weight, need_bias, _ = ctx.needs_input_grad
        if torch.is_grad_enabled():  # a second derivative: x's part in the weight gradient has an f
            x = f(x, ctx.group)
        flat, inputs = grad.reshape(-1, grad.size(-1)), x.reshape(-1, x.size(-1))
        d_x = d_weight = work = None
        if need_x:
            d_x = (flat @ weight).view_as(x)
            if torch.is_grad_enabled():  # and the sum stays in the graph
                d_x = g(d_x, ctx.group)
            else:
                work = all_reduce_(d_x, ctx.group, async_op=True)
        if need_weight:
            d_weight = flat.T @ inputs
        d_bias = flat.sum(0) if need_bias else None
        if work is not None:
            work.wait()
        return d_x, d_weight, d_bias, None


def _autocast(x: Tensor, *others: Tensor | None) -> tuple[Any, ...]:
    """All in autocast's dtype, if it is on: our autograd function is a black box to autocast."""
    kind = x.device.type
    if x.is_meta or x.dtype == torch.float64 or not torch.is_autocast_enabled(kind):
        return x, *others  # (torch's autocast leaves float64 alone too)
    dtype = torch.get_autocast_dtype(kind)
    return tuple(t if t is None else t.to(dtype) for t in (x, *others))


def _check_width(x: Tensor, width: int, what: str, layer: nn.Module) -> None:
    if x.size(-1) != width:
        raise ValueError(f"{layer}: the input's last dimension is {x.size(-1)}, {what} is {width}")


def _cut_weight(
    shape: tuple[int, int], dim: int, group: Group, std: float, seed: int, name: str
) -> nn.Parameter:
    """This rank's part of a weight that is drawn whole, so that it doesn't depend on n."""
    n = group_size(group)
    part = [size // n if d == dim else size for d, size in enumerate(shape)]
    parameter = nn.Parameter(torch.empty(part))
    if not parameter.is_meta:
        with torch.no_grad():
            whole = draw_weight(dotted(name, "weight"), shape, std, seed)
            parameter.copy_(cut(whole, dim, group))
    return marked(parameter, dim, shape)


def _zeros(size: int, dim: int | None, group: Group) -> nn.Parameter:
    whole = size if dim is None else size * group_size(group)
    return marked(nn.Parameter(torch.zeros(size)), dim, (whole,))
