"""Mistakes that people make, done to the real code: one function of it replaced for a run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F

from step01_single_gpu.config import GPTConfig
from step02_mlp_parallel import RowParallelLinear, linear, sharding, split_last_dim
from step02_mlp_parallel.sharding import ParallelModule
from step02_mlp_parallel.wire import Group, all_reduce_, group_rank, group_size
from step03_attention_parallel import ParallelBlock

from .steps import Layout


@dataclass(frozen=True)
class Misconception:
    """What is believed, what is true, and what is replaced: `owner.name` by `by`.

    `parts_at`: the operation where the numbers must leave the reference, at 2 ranks and more.
    `against`: operations that stand for another one of the reference here, or lie otherwise over
    the ranks: name -> (the reference's name, layout).
    """

    key: str
    title: str
    belief: str
    truth: str
    owner: Any
    name: str
    by: Any
    parts_at: str
    against: Mapping[str, tuple[str, Layout]] = field(default_factory=dict)


@contextmanager
def made(misconception: Misconception | None) -> Iterator[None]:
    """The real code has this mistake while the `with` is open; for None it stays as it is."""
    if misconception is None:
        yield
        return
    with patch.object(misconception.owner, misconception.name, misconception.by):
        yield


def no_sum(buffer: Tensor, group: Group, op: str = "sum", *, async_op: bool = False) -> None:
    """In the place of f's all-reduce."""


class _SummedTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _sum(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _sum(grad, ctx.group), None


def _sum(x: Tensor, group: Group) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    all_reduce_(total, group)
    return total


def summed_twice(x: Tensor, group: Group = None) -> Tensor:
    """g with an all-reduce in both directions, as torch's own differentiable all_reduce has it."""
    return _SummedTwice.apply(x, group)  # type: ignore[no-any-return, no-untyped-call]


def row_parallel(add_bias: Callable[[Tensor, RowParallelLinear], Tensor]) -> Any:
    """RowParallelLinear.forward with the bias added in front of the sum."""

    def forward(self: RowParallelLinear, x: Tensor) -> Tensor:
        g_ = vars(linear)["g_"]  # by the name that is watched
        total: Tensor = g_(add_bias(F.linear(x, self.weight), self), self.group)
        return total

    return forward


def on_every_rank(y: Tensor, layer: RowParallelLinear) -> Tensor:
    assert layer.bias is not None
    return y + layer.bias


def on_rank_0(y: Tensor, layer: RowParallelLinear) -> Tensor:
    return on_every_rank(y, layer) if group_rank(layer.group) == 0 else y


class _NoSum(RowParallelLinear):
    """A row-parallel layer whose sum over the ranks is put off. With a part of the bias each, so
    that the parts do add up to the whole, and GeLU is the only mistake."""

    def forward(self, x: Tensor) -> Tensor:
        assert self.bias is not None
        return F.linear(x, self.weight, self.bias / group_size(self.group))


class GeluOfParts(ParallelModule):
    """Step 2's rejected MLP: A cut by rows, GeLU taken of each rank's part of a sum."""

    def __init__(
        self, config: GPTConfig, *, group: Group = None, seed: int = 0, name: str = "mlp"
    ) -> None:
        super().__init__()
        h, self.group = config.hidden_size, group
        self.approximate = "tanh" if config.gelu == "tanh" else "none"
        self.up = _NoSum(h, 4 * h, group=group, seed=seed)
        self.down = RowParallelLinear(4 * h, h, group=group, seed=seed)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.gelu(self.up(split_last_dim(x, self.group)), approximate=self.approximate)
        output: Tensor = self.down(split_last_dim(inner, self.group))
        return output


_cut = sharding.cut


def rows_of_the_stack(full: Tensor, shard_dim: int | None, group: Group) -> Tensor:
    """`cut` for somebody who sees Q, K and V as one matrix of 3h rows."""
    if shard_dim != 1 or full.size(0) != 3:
        return _cut(full, shard_dim, group)
    rows = _cut(full.flatten(0, 1), 0, group)
    return rows.view(3, full.size(1) // group_size(group), *full.shape[2:])


_BIAS = {
    name: new
    for branch, last in (("attention", "out"), ("mlp", "down"))
    for name, new in (
        (f"{branch}.{last}", (f"{branch}.bias", Layout("partial"))),
        (f"{branch}.g", (f"{branch}.bias", Layout("replicated"))),
    )
}

MISCONCEPTIONS = (
    Misconception(
        "f-dropped",
        "No all-reduce in f's backward",
        "Each rank has computed a gradient of x, and it has the right shape. Why add them up?",
        "Every rank used all of x, but only for its own columns. Its gradient is one term of a "
        "sum. The output stays right; every LayerNorm below trains on a different, partial "
        "gradient on each rank, and the copies drift apart without an error.",
        linear, "all_reduce_", no_sum, "mlp.f.grad",
    ),
    Misconception(
        "g-doubled",
        "g adds up in backward too",
        "g is an all-reduce, so its backward must be an all-reduce as well.",
        "That is the derivative of another loss: the sum of all ranks' losses. Ours is one loss, "
        "which every rank computes for itself. So what comes back through g is n times too "
        "large, and torch's own differentiable all_reduce does just that.",
        linear, "g_", summed_twice, "mlp.g.grad",
    ),
    Misconception(
        "bias-every-rank",
        "The bias inside the sum",
        "A linear layer adds its bias. So each rank's part of the layer adds it.",
        "The bias is no partial product. Added in front of g by all n ranks, it is counted "
        "n times: the output is off by (n − 1) · bias. While biases are zero, nobody sees it.",
        RowParallelLinear, "forward", row_parallel(on_every_rank), "attention.out", against=_BIAS,
    ),
    Misconception(
        "bias-one-rank",
        "The bias on rank 0 only",
        "It must be counted once. So rank 0 adds it in front of the sum, and nobody else.",
        "The output is right. But only rank 0 has a gradient for the bias: its copy trains, the "
        "others stay where they were. The replicas part in silence.",
        RowParallelLinear, "forward", row_parallel(on_rank_0), "mlp.down.bias.grad", against=_BIAS,
    ),
    Misconception(
        "a-by-rows",
        "A cut by rows, the sum put off",
        "Both cuts of A give every rank a piece of X A. The sum can wait until after B.",
        "Cut by rows, each rank holds a term of every entry: X A = X₁A₁ + X₂A₂. GeLU is not "
        "linear: GeLU(X₁A₁ + X₂A₂) is not GeLU(X₁A₁) + GeLU(X₂A₂). The sum would have to come "
        "before GeLU: one more all-reduce, of 4h numbers a token. That is why A is cut by columns.",
        sys.modules[ParallelBlock.__module__], "ParallelMLP", GeluOfParts, "mlp.gelu",
        against={
            "mlp.f": ("mlp.f", Layout("cut", 1)),
            "mlp.up": ("mlp.up", Layout("partial")),
            "mlp.up.grad": ("mlp.up.grad", Layout("replicated")),
            "mlp.up.weight.grad": ("mlp.up.weight.grad", Layout("cut", 1)),
            "mlp.up.bias.grad": ("mlp.up.bias.grad", Layout("partial")),
        },
    ),
    Misconception(
        "qkv-stacked",
        "Q, K and V cut as one stack",
        "The weight of Q, K and V is a matrix of 3h rows. Rank i takes the i-th part of the rows.",
        "The shape is right and nothing complains. But at 2 ranks, rank 0 gets all of Q and half "
        "of K, and takes them for its heads' Q, K and V. Cut inside each of the three.",
        sharding, "cut", rows_of_the_stack, "attention.qkv",
    ),
)  # fmt: skip
BY_KEY = {misconception.key: misconception for misconception in MISCONCEPTIONS}
