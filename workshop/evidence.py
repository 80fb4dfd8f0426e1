"""For each step one short run of all that it builds: cut over a group, or whole with real code.

`evidence(step, group)` gives named tensors; those of the whole run (group None) are what the cut
one must give on every rank, in float64. `together` runs the cut one with the learner's functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from step01_single_gpu import GPT, GPTConfig
from step01_single_gpu import loss as plain
from step01_single_gpu.batches import global_batch
from step01_single_gpu.block import MLP, Block
from step01_single_gpu.optimizer import lr_at
from step01_single_gpu.scoring import token_losses

from .light import light

Group = ProcessGroup | None
Evidence = dict[str, Tensor]
CONFIG = GPTConfig(37, 6, hidden_size=8, num_layers=1, num_heads=4, dropout=0.0)
TEXT = np.arange(400, dtype=np.uint16) ** 2 % 37


def single(group: Group) -> Evidence:
    """Step 1: the whole GPT-2 through its plain loss, scoring and a step with its rate."""
    model = GPT(CONFIG, seed=3, dropout=_keep).double()
    tokens, targets = global_batch(TEXT, 2, batch_size=3, seq_length=6, seed=5)
    targets = targets.clone()
    targets[0, :2] = -100
    loss = plain.cross_entropy(model(tokens), targets)
    loss.backward()  # type: ignore[no-untyped-call]
    found = {"loss": loss.detach(), **_gradients(model)}
    rates = [lr_at(k, peak=1.0, minimum=0.1, warmup=3, total=9) for k in range(9)]
    found["learning rates"] = torch.tensor(rates, dtype=torch.float64)
    found["losses of the tokens"] = token_losses(model, TEXT[:40], stride=4)
    return found


def mlp(group: Group) -> Evidence:
    """Step 2: the MLP, there and back."""
    from step02_mlp_parallel import ParallelMLP

    module = MLP(CONFIG) if group is None else ParallelMLP(CONFIG, group=group)
    return _there_and_back(module.double(), MLP(CONFIG), group)


def block(group: Group) -> Evidence:
    """Step 3: a block with dropout on and recompute."""
    from dataclasses import replace

    from step02_mlp_parallel.wire import group_rank, group_size
    from step03_attention_parallel import ParallelBlock, RNGTracker

    config = replace(CONFIG, dropout=0.3)
    rng = RNGTracker(7, tp_rank=group_rank(group), tp_size=group_size(group), mode="invariant").at(
        2, 0
    )
    whole = Block(config, name="b", dropout=rng.dropout)
    module: nn.Module = whole
    if group is not None:
        module = ParallelBlock(config, group=group, rng=rng, recompute=True, name="b")
    return _there_and_back(module.double(), whole, group)


def gpt(group: Group) -> Evidence:
    """Step 4: the whole GPT-2 by its loss, and the loss on logits."""
    from step04_embeddings_loss import ParallelGPT, vocab_parallel_cross_entropy

    model: Any = GPT(CONFIG) if group is None else ParallelGPT(CONFIG, group=group)
    _load(model.double(), GPT(CONFIG), group)
    generator = torch.Generator().manual_seed(4)
    tokens, targets = (torch.randint(37, (2, 6), generator=generator) for _ in range(2))
    targets[0, 0] = -100
    loss = model.loss(tokens, targets)
    logits = model(tokens)
    if group is None:
        other = plain.cross_entropy(logits, targets)
    else:
        other = vocab_parallel_cross_entropy(
            logits, targets, group, vocab_size=37, allow_empty_ranks=True
        )
    (loss + 2 * other).backward()
    return {"loss": loss.detach(), "loss of logits": other.detach(), **_gradients(model, group)}


def replicas(group: Group) -> Evidence:
    """Step 5: the ranks as replicas of step 1's GPT-2, each with its rows; then clipped."""
    from step02_mlp_parallel.wire import group_rank, group_size
    from step05_hybrid_dp.data_parallel import backward_global_mean
    from step05_hybrid_dp.optimizer import clip_grad_norm_

    model = GPT(CONFIG, seed=3).double()
    tokens, targets = global_batch(TEXT, 0, batch_size=4, seq_length=6, seed=5)
    targets = targets.clone()
    targets[0, :4] = -100  # a rank with fewer tokens than the others
    n, rank = group_size(group), group_rank(group)
    mine = slice(rank * 4 // n, (rank + 1) * 4 // n)
    loss = backward_global_mean(model, [(tokens[mine], targets[mine])], group)
    # (Averaged gradients are whole on every rank: nothing is cut over a tensor-parallel group.)
    norm = clip_grad_norm_(model, 0.1)
    return {"loss": loss, "norm": norm, **_gradients(model)}


def bert(group: Group) -> Evidence:
    """Step 6: BERT with the norm inside the branch, by its loss."""
    from step06_bert_layernorm import BERT, BertConfig, ParallelBERT

    config = BertConfig(37, 6, hidden_size=8, num_layers=1, num_heads=4, dropout=0.0)
    model: Any = BERT(config) if group is None else ParallelBERT(config, group=group)
    _load(model.double(), BERT(config), group)
    generator = torch.Generator().manual_seed(4)
    tokens, targets = (torch.randint(37, (2, 6), generator=generator) for _ in range(2))
    targets[:, ::2] = -100
    real = torch.arange(6) < torch.tensor([[6], [4]])
    loss = model.loss(tokens, targets, padding_mask=real, order=torch.tensor([0, 1]))
    loss.backward()
    return {"loss": loss.detach(), **_gradients(model, group)}


# step -> what is run, what it is called, and the numbers of ranks
RUNS: dict[int, tuple[Callable[[Group], Evidence], str, tuple[int, ...]]] = {
    1: (single, "the GPT-2", (1,)),
    2: (mlp, "the MLP", (2, 4)),
    3: (block, "the block", (2, 4)),
    4: (gpt, "the GPT-2", (2, 4)),
    5: (replicas, "a step of training", (2, 4)),
    6: (bert, "BERT", (2, 4)),
}


def evidence(step: int, group: Group) -> Evidence:
    with light():
        return RUNS[step][0](group)


def _keep(x: Tensor, p: float, site: str) -> Tensor:
    """A dropout that drops nothing: attention then takes its explicit path."""
    return x


def _there_and_back(module: nn.Module, whole: nn.Module, group: Group) -> Evidence:
    _load(module, whole, group)
    generator = torch.Generator().manual_seed(1)
    x, up = (torch.randn(2, 3, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    x.requires_grad_()
    y = module(x)
    (y * up).sum().backward()  # (backward(up) would load torch's symbolic shapes first)
    gradient = torch.full_like(x, torch.nan) if x.grad is None else x.grad
    return {"output": y.detach(), "input's gradient": gradient, **_gradients(module, group)}


def _load(module: nn.Module, whole: nn.Module, group: Group) -> None:
    """Random weights that hide nothing, the same whole ones for both."""
    generator = torch.Generator().manual_seed(2)
    state = {
        name: 0.3 * torch.randn(t.shape, generator=generator, dtype=torch.float64)
        for name, t in whole.state_dict().items()
    }
    if group is None:
        module.load_state_dict(state)
    else:
        from step02_mlp_parallel import load_full_state_dict

        load_full_state_dict(module, state)


def _gradients(module: nn.Module, group: Group = None) -> Evidence:
    found: dict[str, Any] = {n: p.grad for n, p in module.named_parameters()}
    if group is not None:
        from step02_mlp_parallel import gather_full_gradients

        found = gather_full_gradients(module)
    return {f"gradient of {name}": grad for name, grad in found.items() if grad is not None}
