"""A whole GPT-2 over tensor-parallel ranks out of other people's layers, for `endtoend.py`.

Each peer brings its vocabulary-parallel embedding, its linear layers, its way from hidden states to
the loss; positions, norms, SDPA and GeLU are torch's for all. DeepSpeed has no such embedding.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.nn import functional as F

from step04_embeddings_loss import ParallelGPT

from .peers import PEERS, PeerBlock, copy_ours

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]  # hidden, embedding's weight, targets
Parts = tuple[nn.Module, Loss]


def dtensor(vocab: int, hidden: int, *, cut_loss: bool) -> Parts:
    """torch's own, with `loss_parallel` or with logits gathered on every rank."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    embedding = nn.Embedding(vocab, hidden)
    parallelize_module(embedding, mesh, RowwiseParallel(input_layouts=Replicate()))

    def loss(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        logits = DTensor.from_local(x, mesh, [Replicate()]) @ weight.T
        if cut_loss:
            return F.cross_entropy(logits, DTensor.from_local(targets, mesh, [Replicate()]))
        assert isinstance(logits, DTensor)
        return F.cross_entropy(logits.redistribute(mesh, [Replicate()]).to_local(), targets)

    return embedding, loss


def fairscale(vocab: int, hidden: int) -> Parts:
    """fairscale's embedding and loss; the loss overwrites the logits."""
    from fairscale.nn.model_parallel.cross_entropy import vocab_parallel_cross_entropy
    from fairscale.nn.model_parallel.layers import VocabParallelEmbedding
    from fairscale.nn.model_parallel.mappings import copy_to_model_parallel_region

    def loss(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        logits = copy_to_model_parallel_region(x) @ weight.T
        found: Tensor = vocab_parallel_cross_entropy(logits, targets)
        return found.mean()

    return VocabParallelEmbedding(vocab, hidden), loss


def megatron_core(vocab: int, hidden: int) -> Parts:
    """NVIDIA's megatron-core; the loss overwrites the logits."""
    from megatron.core import ModelParallelConfig, parallel_state, tensor_parallel

    config = ModelParallelConfig(
        tensor_model_parallel_size=dist.get_world_size(), use_cpu_initialization=True
    )
    embedding = tensor_parallel.VocabParallelEmbedding(
        vocab,
        hidden,
        init_method=nn.init.zeros_,
        config=config,
        tp_group=parallel_state.get_tensor_model_parallel_group(),
    )

    def loss(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        logits = tensor_parallel.copy_to_tensor_model_parallel_region(x) @ weight.T
        found: Tensor = tensor_parallel.vocab_parallel_cross_entropy(logits, targets)
        return found.mean()

    return embedding, loss


class PeerGPT(nn.Module):
    """Our model's arithmetic in a peer's layers, with our weights."""

    def __init__(self, ours: ParallelGPT, linears: str, parts: Callable[[int, int], Parts]) -> None:
        super().__init__()
        c = ours.config
        self.blocks = nn.ModuleList(PeerBlock(c, PEERS[linears]) for _ in range(c.num_layers))
        self.tokens, self.loss_of = parts(c.vocab_size, c.hidden_size)
        self.positions, self.ln = copy.deepcopy(ours.positions), copy.deepcopy(ours.ln)
        for block, source in zip(self.blocks, ours.blocks, strict=True):
            copy_ours(block, source)
        with torch.no_grad():
            weight = self.weight()
            local = weight.to_local() if isinstance(weight, DTensor) else weight
            local.copy_(ours.tokens.weight)

    def weight(self) -> Tensor:
        weight = self.tokens.weight
        assert isinstance(weight, Tensor)
        return weight

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy, the same on all ranks."""
        x = self.tokens(tokens) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        return self.loss_of(self.ln(x).flatten(0, 1), self.weight(), targets.flatten())


def make_all(ours: ParallelGPT) -> tuple[dict[str, PeerGPT], dict[str, str]]:
    """Every peer that can be had here, and why others can't."""

    def with_loss(vocab: int, hidden: int) -> Parts:
        return dtensor(vocab, hidden, cut_loss=True)

    def gathering(vocab: int, hidden: int) -> Parts:
        return dtensor(vocab, hidden, cut_loss=False)

    kinds: dict[str, tuple[str, Callable[[int, int], Parts]]] = {
        "DTensor, loss_parallel": ("DTensor", with_loss),
        "DTensor, logits gathered": ("DTensor", gathering),
        "fairscale": ("fairscale", fairscale),
        "megatron-core": ("megatron-core", megatron_core),
    }
    made, missing = {}, {}
    for name, (linears, parts) in kinds.items():
        with contextlib.redirect_stdout(None):  # fairscale tells of its groups
            try:
                made[name] = PeerGPT(ours, linears, parts)
            except ImportError as error:
                missing[name] = str(error)
    return made, missing
