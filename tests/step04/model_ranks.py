"""The whole model inside ranks."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from step01_single_gpu import GPT
from step01_single_gpu.config import PAPER_MODELS, GPTConfig
from step01_single_gpu.optimizer import make_optimizer
from step01_single_gpu.scoring import token_losses
from step02_mlp_parallel import (
    gather_full_gradients,
    gather_full_state_dict,
    load_full_state_dict,
)
from step02_mlp_parallel.sharding import cuts
from step02_mlp_parallel.wire import Group, group_rank, group_size
from step03_attention_parallel import RNGTracker
from step04_embeddings_loss import (
    ParallelGPT,
    vocab_parallel_linear_cross_entropy,
)
from tests.step04.ranks import world

SEED = 11


def tracker(config: GPTConfig, group: Group) -> RNGTracker | None:
    if not config.dropout:
        return None
    rank, size = group_rank(group), group_size(group)
    return RNGTracker(SEED, tp_rank=rank, tp_size=size, mode="invariant")


def optimizer_of(model: torch.nn.Module, name: str) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return make_optimizer(model, weight_decay=0.1)


def train_steps(
    model: Any, rng: RNGTracker | None, batches: list[tuple[Tensor, Tensor]], name: str
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Losses of each step, and the gradients of the first."""
    optimizer, seen, first = optimizer_of(model, name), [], {}
    for group in optimizer.param_groups:
        group["lr"] = 0.1 if name == "sgd" else 1e-3
    for step, (tokens, targets) in enumerate(batches):
        if rng is not None:
            rng.at(step, 0)
        optimizer.zero_grad()
        loss = model.loss(tokens, targets)
        loss.backward()
        if step == 0:
            whole = isinstance(model, GPT)
            named = model.named_parameters()
            first = {n: p.grad.clone() for n, p in named} if whole else gather_full_gradients(model)
        optimizer.step()
        seen.append(loss.detach())
    return seen, first


def trained(
    cases: list[tuple[GPTConfig, dict[str, Tensor], list[tuple[Tensor, Tensor]], str, int, bool]],
) -> list[tuple[list[Tensor], dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]]:
    """Losses, first gradients, final whole weights, and this rank's own replicated weights."""
    results = []
    for config, full, batches, name, multiple, recompute in cases:
        group = world()
        rng = tracker(config, group)
        model = ParallelGPT(
            config, group=group, rng=rng, vocab_multiple=multiple, recompute=recompute
        ).double()
        load_full_state_dict(model, full)
        seen, gradients = train_steps(model, rng, batches, name)
        own = dict(model.named_parameters())
        replicated = {n: own[n].detach() for n, c in cuts(model).items() if c.shard_dim is None}
        results.append((seen, gradients, gather_full_state_dict(model), replicated))
    return results


def second_head(config: GPTConfig, full: dict[str, Tensor], tokens: Tensor) -> list[Tensor]:
    """A second head on the same matrix: it predicts the token itself, beside the next one."""
    model = ParallelGPT(config, group=world(), vocab_multiple=1).double()
    load_full_state_dict(model, full)
    hidden = model.hidden(tokens[:, :-1])
    total = sum(
        vocab_parallel_linear_cross_entropy(
            hidden, model.tokens.weight, t, world(), vocab_size=config.vocab_size
        )
        for t in (tokens[:, 1:], tokens[:, :-1])
    )
    assert isinstance(total, Tensor)
    total.backward()
    return [total.detach(), *gather_full_gradients(model).values()]


def written(
    config: GPTConfig, full: dict[str, Tensor], prompt: Tensor, options: list[dict[str, Any]]
) -> list[Tensor]:
    model = ParallelGPT(config, group=world(), vocab_multiple=1).double()
    load_full_state_dict(model, full)
    torch.rand(dist.get_rank())  # the global generators have parted long ago
    rows = []
    for option in options:
        seed = option.pop("seed", None)
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        rows.append(model.generate(prompt, 9, generator=generator, **option))
    return rows


def whole_states(config: GPTConfig, multiple: int, full: dict[str, Tensor]) -> dict[str, Any]:
    """A model's start, a loaded state gathered again, and what became of its tie."""
    group = world()
    model = ParallelGPT(config, group=group, seed=3, vocab_multiple=multiple)
    start = gather_full_state_dict(model)
    with torch.device("meta"):
        empty = ParallelGPT(config, group=group, vocab_multiple=multiple)
    empty = empty.to_empty(device="cpu")
    load_full_state_dict(empty, full)
    copied = copy.deepcopy(empty).half().float()
    copied.load_state_dict(empty.state_dict(), assign=True)
    tied = [
        n for n, p in copied.named_parameters() if p.size(-1) == config.hidden_size and "tok" in n
    ]
    padding = empty.tokens.weight[empty.tokens.words.count :]
    tokens = torch.tensor([[1, 2]])
    copied(tokens).sum().backward()
    head = copied.tokens.weight.grad
    assert head is not None
    return {
        "start": start,
        "again": gather_full_state_dict(empty),
        "copied": gather_full_state_dict(copied),
        "tied": tied,
        "both ends": bool((head[: copied.tokens.words.count] != 0).any(1).all()),
        "padding": bool((padding == 0).all()),
        "fresh padding": bool((model.tokens.weight[model.tokens.words.count :] == 0).all()),
    }


def on_meta(name: str) -> dict[str, tuple[int, ...]]:
    """Shapes of a paper's model on this rank, without weights."""
    with torch.device("meta"):
        model = ParallelGPT(PAPER_MODELS[name], group=world())
    return {n: tuple(p.shape) for n, p in model.named_parameters()}


def scored(config: GPTConfig, full: dict[str, Tensor], tokens: Tensor) -> Tensor:
    model = ParallelGPT(config, group=world(), vocab_multiple=1).double()
    load_full_state_dict(model, full)
    return token_losses(model, tokens, stride=3)


def logits_of(config: GPTConfig, full: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """This rank's true logits."""
    model = ParallelGPT(config, group=world(), vocab_multiple=1).double().eval()
    load_full_state_dict(model, full)
    return model(tokens)[..., : model.tokens.words.count].detach()


def whole_gpt(config: GPTConfig, full: dict[str, Tensor]) -> tuple[GPT, RNGTracker | None]:
    """Step 1's model, with the invariant masks if there is dropout."""
    rng = tracker(config, None)
    model = GPT(config, dropout=rng.dropout if rng else None).double()
    model.load_state_dict(full)
    return model, rng


def bare_all_reduce() -> None:
    """A collective straight under autograd: torch warns, and goes on as if it were the identity."""
    warnings.simplefilter("error")
    x = torch.ones(2, requires_grad=True)
    y = x * 1.0
    dist.all_reduce(y)
    y.sum().backward()
