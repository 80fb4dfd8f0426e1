"""The loss of a vocabulary over two ranks: ours and other people's, for `benchmarks/loss.py`.

Installed by `make bench`; a peer that is missing is named in the table, not dropped. Only
ours knows of padding; for the others, and for gathering, its columns hold -inf.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from step02_mlp_parallel.operators import f, gather_last_dim
from step04_embeddings_loss import (
    vocab_parallel_cross_entropy,
    vocab_parallel_linear_cross_entropy,
)

Loss = Callable[..., Tensor]
Step = Callable[..., tuple[Tensor, ...]]  # (inputs, targets) -> loss, gradients of the inputs


def of_logits(vocab_size: int) -> tuple[dict[str, Step], dict[str, str]]:
    """Mean loss and gradient of this rank's logits [t, padded_v/n], by whoever can be had here;
    and why others can't."""

    def gathered(logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(gather_last_dim(logits, dist.group.WORLD), targets)

    def ours(logits: Tensor, targets: Tensor) -> Tensor:
        return vocab_parallel_cross_entropy(
            logits, targets, dist.group.WORLD, vocab_size=vocab_size
        )

    steps, missing = {"gather, then loss": forward_backward(gathered)}, {}
    for name, maker in PEERS.items():
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # fairscale tells of its groups
                steps[name] = maker()
        except ImportError as error:
            missing[name] = str(error)
    steps["ours"] = forward_backward(ours)
    return steps, missing


def of_hidden(vocab_size: int, width: int) -> dict[str, Step]:
    """Mean loss and gradients of hidden [t, h] and this rank's weight [padded_v/n, h]."""
    group = dist.group.WORLD
    count = min(width, vocab_size - dist.get_rank() * width)

    def gathered(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        logits = f(hidden, group) @ weight.T
        with torch.no_grad():
            logits[:, count:] = -torch.inf
        return F.cross_entropy(gather_last_dim(logits, group), targets)

    def plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        logits = f(hidden, group) @ weight.T
        return vocab_parallel_cross_entropy(logits, targets, group, vocab_size=vocab_size)

    def fused(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        return vocab_parallel_linear_cross_entropy(
            hidden, weight, targets, group, vocab_size=vocab_size
        )

    losses = {"gather, then loss": gathered, "ours": plain, "ours, fused": fused}
    return {name: forward_backward(loss) for name, loss in losses.items()}


def forward_backward(loss_of: Loss) -> Step:
    """The last argument of `loss_of` are the targets; gradients are taken of the others."""

    def step(*arguments: Tensor) -> tuple[Tensor, ...]:
        loss = loss_of(*arguments)
        return loss.detach(), *torch.autograd.grad(loss, arguments[:-1])

    return step


def dtensor() -> Step:
    """torch's own `loss_parallel`."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.parallel import loss_parallel

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def step(logits: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        with loss_parallel():  # the backward must be inside too
            whole = DTensor.from_local(logits, mesh, [Shard(1)])
            loss = F.cross_entropy(whole, targets)
            (grad,) = torch.autograd.grad(loss, logits)
        assert isinstance(loss, DTensor)
        return loss.to_local().detach(), grad

    return step


def fairscale() -> Step:
    """fairscale's; it changes the logits."""
    from fairscale.nn.model_parallel import initialize
    from fairscale.nn.model_parallel.cross_entropy import vocab_parallel_cross_entropy as theirs

    if not initialize.model_parallel_is_initialized():
        initialize.initialize_model_parallel(dist.get_world_size())
    return forward_backward(lambda logits, targets: theirs(logits, targets).mean())


def megatron_core() -> Step:
    """NVIDIA's megatron-core; it works in the memory of float32 logits, which are lost."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import vocab_parallel_cross_entropy as theirs

    if not parallel_state.model_parallel_is_initialized():
        n = dist.get_world_size()
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=n)
    return forward_backward(lambda logits, targets: theirs(logits, targets).mean())


PEERS: dict[str, Callable[[], Step]] = {
    "DTensor": dtensor,
    "fairscale": fairscale,
    "megatron-core": megatron_core,
}
