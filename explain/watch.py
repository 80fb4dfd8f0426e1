"""Watching a block at work on one rank: what each operation gave, in order, and what it sent.

The block is step 3's own. Hooks on its modules and tensors see the values; two functions of
step 2, `g_` and the `all_reduce_` of f's backward, are wrapped for the time of the run; what was
sent comes from step 2's ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from torch import Tensor, nn

from step02_mlp_parallel import linear
from step02_mlp_parallel.ledger import Collective, record_collectives
from step02_mlp_parallel.wire import Group

# Each branch of a block: its column-parallel layer, what comes between, its row-parallel layer.
BRANCHES = (("attention", "qkv", "heads", "out"), ("mlp", "up", "gelu", "down"))


@dataclass(frozen=True)
class Seen:
    """The tensor that an operation gave on this rank, and the collectives since the one before."""

    value: Tensor
    sent: tuple[Collective, ...]


class Watch:
    """What was seen, by the operation's name (steps.py), in the order in which it happened."""

    def __init__(self, ledger: list[Collective]) -> None:
        self.seen: dict[str, Seen] = {}
        self._ledger, self._told = ledger, 0
        self._branch = ""  # where g_ and all_reduce_ are called from: they don't know it

    def saw(self, name: str, value: Tensor) -> None:
        """Keep a copy of `value`: what comes next may work in the same memory."""
        if name in self.seen:
            raise RuntimeError(f"{name} was seen twice: a block is watched for one run")
        self.seen[name] = Seen(value.detach().clone(), tuple(self._ledger[self._told :]))
        self._told = len(self._ledger)

    def follow(self, name: str, value: Tensor) -> None:
        """See `value` now, and its gradient when that is there."""
        self.saw(name, value)
        with_gradient(value, partial(self.saw, f"{name}.grad"))

    def attach(self, block: nn.Module) -> None:
        """Hooks for everything but the collectives."""
        parts = dict(block.named_modules())
        parts["ln2"].register_forward_pre_hook(lambda _, args: self.follow("residual1", args[0]))
        for norm, branch in (("ln1", "attention"), ("ln2", "mlp")):
            parts[norm].register_forward_hook(partial(self._normed, norm, branch))
        block.register_forward_hook(lambda _, args, y: self.follow("y", y))
        for names in BRANCHES:
            self._attach_branch(parts, *names)
        for name, parameter in block.named_parameters():
            with_gradient(parameter, partial(self.saw, f"{name}.grad"))

    def _normed(self, norm: str, branch: str, _: nn.Module, args: Any, y: Tensor) -> None:
        def whole(grad: Tensor) -> None:
            # f's all-reduce has been seen where it was made; a branch without f is seen only here.
            if f"{branch}.f.grad" not in self.seen:
                self.saw(f"{branch}.f.grad", grad)

        self.saw(norm, y)
        with_gradient(y, whole)

    def _attach_branch(
        self, parts: dict[str, nn.Module], branch: str, first: str, between: str, last: str
    ) -> None:
        def entered(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            self._branch = branch
            self.saw(f"{branch}.f", args[0])

        def computed(_: nn.Module, args: Any, y: Tensor) -> None:
            with_gradient(y, lambda _: setattr(self, "_branch", branch))
            self.follow(f"{branch}.{first}", y)

        def reached(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            self.follow(f"{branch}.{between}", args[0])

        parts[f"{branch}.{first}"].register_forward_pre_hook(entered)
        parts[f"{branch}.{first}"].register_forward_hook(computed)
        parts[f"{branch}.{last}"].register_forward_pre_hook(reached)
        parts[f"{branch}.{last}"].register_forward_hook(
            lambda _, args, y: self.saw(f"{branch}.bias", y)
        )

    def around_g(self, g_: Any) -> Any:
        """g_, with the partial product in front of it, the sum behind, and its backward seen."""
        last = {branch: last for branch, _, _, last in BRANCHES}

        def watched(x: Tensor, group: Group = None) -> Tensor:
            branch = self._branch
            self.saw(f"{branch}.{last[branch]}", x)
            with_gradient(x, partial(self.saw, f"{branch}.g.grad"))
            y: Tensor = g_(x, group)
            self.saw(f"{branch}.g", y)
            return y

        return watched

    def around_f_backward(self, all_reduce_: Any) -> Any:
        """The all-reduce of f's backward, with this rank's part in front of it and the sum."""

        def watched(
            buffer: Tensor, group: Group, op: str = "sum", *, async_op: bool = False
        ) -> dist.Work | None:
            self.saw(f"{self._branch}.part.grad", buffer)
            work: dist.Work | None = all_reduce_(buffer, group, op, async_op=async_op)
            if work is not None:
                work.wait()  # to see the sum; alone, the layer would compute meanwhile
            self.saw(f"{self._branch}.f.grad", buffer)
            return work

        return watched


def with_gradient(tensor: Tensor, action: Callable[[Tensor], None]) -> None:
    """Call `action` with the gradient of `tensor` when that is there."""
    tensor.register_hook(action)  # type: ignore[no-untyped-call]


@contextmanager
def watching(block: nn.Module) -> Iterator[Watch]:
    """A Watch that fills while the `with` is open. For one forward and backward of `block`."""
    with record_collectives() as ledger:
        watch = Watch(ledger)
        watch.attach(block)
        g_, all_reduce_ = vars(linear)["g_"], vars(linear)["all_reduce_"]  # maybe a mistake's
        with (
            patch.object(linear, "g_", watch.around_g(g_)),
            patch.object(linear, "all_reduce_", watch.around_f_backward(all_reduce_)),
        ):
            yield watch
