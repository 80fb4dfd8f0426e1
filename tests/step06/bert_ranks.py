"""The whole BERT inside ranks, and the training steps that both it and the reference take."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from step01_single_gpu import GPTConfig
from step01_single_gpu.optimizer import make_optimizer
from step02_mlp_parallel import (
    gather_full_gradients,
    gather_full_state_dict,
    load_full_state_dict,
    record_collectives,
)
from step02_mlp_parallel.sharding import cuts
from step02_mlp_parallel.wire import Group, group_rank, group_size
from step03_attention_parallel import RNGTracker
from step04_embeddings_loss import ParallelGPT
from step06_bert_layernorm import BERT, BertConfig, ParallelBERT, mlm_logits
from step06_bert_layernorm.pretrained import read_bert

SEED = 11


def world() -> Group:
    return dist.group.WORLD if dist.get_world_size() > 1 else None


def tracker(config: BertConfig, group: Group) -> RNGTracker | None:
    if not config.dropout:
        return None
    rank, size = group_rank(group), group_size(group)
    return RNGTracker(SEED, tp_rank=rank, tp_size=size, mode="invariant")


def whole_bert(config: BertConfig, full: dict[str, Tensor]) -> tuple[BERT, RNGTracker | None]:
    rng = tracker(config, None)
    model = BERT(config, dropout=rng.dropout if rng else None).double()
    model.load_state_dict(full)
    return model, rng


def train_steps(
    model: Any, rng: RNGTracker | None, batches: list[dict[str, Tensor]], name: str
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Losses of each step, and the gradients of the first."""
    if name == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            model.parameters(), lr=0.05, momentum=0.9
        )
    else:
        optimizer = make_optimizer(model, weight_decay=0.1, lr=1e-3)
    seen, first = [], {}
    for step, batch in enumerate(batches):
        if rng is not None:
            rng.at(step, 0)
        optimizer.zero_grad()
        loss = model.loss(**batch)
        loss.backward()
        if step == 0:
            named = model.named_parameters()
            whole = isinstance(model, BERT)
            first = {n: p.grad.clone() for n, p in named} if whole else gather_full_gradients(model)
        optimizer.step()
        seen.append(loss.detach())
    return seen, first


def trained(cases: list[Any]) -> list[tuple[Any, ...]]:
    """Losses, first gradients, final whole weights, and this rank's own replicated weights."""
    results = []
    for config, full, batches, name, multiple, recompute in cases:
        group = world()
        rng = tracker(config, group)
        model = ParallelBERT(
            config, group=group, rng=rng, vocab_multiple=multiple, recompute=recompute
        ).double()
        load_full_state_dict(model, full)
        seen, gradients = train_steps(model, rng, batches, name)
        own = dict(model.named_parameters())
        replicated = {n: own[n].detach() for n, c in cuts(model).items() if c.shard_dim is None}
        results.append((seen, gradients, gather_full_state_dict(model), replicated))
    return results


def outputs(
    cases: list[tuple[BertConfig, dict[str, Tensor], dict[str, Tensor]]],
) -> list[tuple[Tensor, ...]]:
    """This rank's true logits, hidden states, pooled, order logits, losses of each token, and the
    start that seed 3 gives, for each case."""
    results = []
    for config, full, batch in cases:
        model = ParallelBERT(config, group=world(), seed=3, vocab_multiple=1).double().eval()
        start = gather_full_state_dict(model)
        load_full_state_dict(model, full)
        with torch.no_grad():
            inputs = {k: batch[k] for k in ("tokens", "segments", "padding_mask")}
            hidden = model.hidden(**inputs)
            pooled = model.pooled(hidden)
            losses = model.loss(**inputs, targets=batch["targets"], reduction="none")
            logits = model(**inputs)[..., : model.tokens.words.count]
            results.append((logits, hidden, pooled, model.order(pooled), losses, start))
    return results


def head(x: Tensor, weight: Tensor, bias: Tensor, upstream: Tensor) -> tuple[Tensor, ...]:
    """`mlm_logits` of this rank's words and the gradients; words divide by the ranks here."""
    group = world()
    rank, n = group_rank(group), group_size(group)
    own, b = (t.chunk(n)[rank].clone().requires_grad_() for t in (weight, bias))
    x = x.clone().requires_grad_()
    y = mlm_logits(x, own, b, group)
    y.backward(upstream.chunk(n, -1)[rank])
    assert x.grad is not None
    assert own.grad is not None
    assert b.grad is not None
    return y.detach(), x.grad, own.grad, b.grad


def counted(config: BertConfig, batch: dict[str, Tensor], recompute: bool) -> dict[str, Any]:
    """Collectives of a whole loss and its backward: a BERT's, and a GPT-2's of the same sizes."""
    group, found = world(), {}
    sizes = {f.name: getattr(config, f.name) for f in dataclasses.fields(GPTConfig)}
    models: dict[str, nn.Module] = {
        "bert": ParallelBERT(config, group=group, recompute=recompute),
        "gpt": ParallelGPT(GPTConfig(**sizes), group=group, recompute=recompute),
    }
    for name, model in models.items():
        given = batch if name == "bert" else {k: batch[k] for k in ("tokens", "targets")}
        with record_collectives() as forward:
            loss = model.loss(**given)
        with record_collectives() as backward:
            loss.backward()
        found[name] = [[(e.op, e.shape) for e in ledger] for ledger in (forward, backward)]
    return found


def pretrained(
    folder: Path, inputs: dict[str, Tensor], sizes: list[tuple[int, torch.dtype]]
) -> list[tuple[Tensor, Tensor] | None]:
    """Hidden states and pooled output of the BERT in `folder` on the first n ranks, for each (n,
    dtype); None on the others. (So that each rank reads the file once.)"""
    config, state = read_bert(folder, heads=False)
    found: list[tuple[Tensor, Tensor] | None] = []
    for n, dtype in sizes:
        group = dist.new_group(list(range(n)))
        if dist.get_rank() >= n:
            found.append(None)
            continue
        with torch.device("meta"):
            model = ParallelBERT(config, group=group if n > 1 else None, heads=False)
        model = model.to(dtype).to_empty(device="cpu").eval()
        load_full_state_dict(model, state)
        with torch.no_grad():
            hidden = model.hidden(**inputs)
            found.append((hidden, model.pooled(hidden)))
    return found


def messages(config: BertConfig, batch: dict[str, Tensor]) -> dict[str, str]:
    """What is said of bad input, and how many collectives ran until it was."""
    model = ParallelBERT(config, group=world())
    tokens, targets = batch["tokens"], batch["targets"]
    order = batch["order"]
    inputs = {k: batch[k] for k in ("tokens", "segments", "padding_mask")}
    wide = torch.zeros(1, config.seq_length + 1, dtype=torch.int64)
    calls = {
        "too long": lambda: model(wide),
        "id": lambda: model(tokens + config.vocab_size),
        "segment": lambda: model(tokens, batch["segments"] + 2),
        "segments": lambda: model(tokens, batch["segments"][:1]),
        "float mask": lambda: model(tokens, None, batch["padding_mask"].float()),
        "mask": lambda: model(tokens, None, batch["padding_mask"][:, :1]),
        "target": lambda: model.loss(tokens, targets + config.vocab_size + 100),
        "targets": lambda: model.loss(tokens, targets[:1]),
        "order": lambda: model.loss(**inputs, targets=targets, order=order + 2),
        "bool order": lambda: model.loss(**inputs, targets=targets, order=order.bool()),
        "orders": lambda: model.loss(**inputs, targets=targets, order=order[:1]),
        "none": lambda: model.loss(tokens, targets, order=order, reduction="none"),
        "reduction": lambda: model.loss(tokens, targets, reduction="avg"),
        "divisor": lambda: model.loss(tokens, targets, divisor=3),
        "order divisor": lambda: model.loss(tokens, targets, order_divisor=3),
    }
    said = {}
    with record_collectives() as ledger:
        for name, call in calls.items():
            try:
                call()
                said[name] = "no error"
            except ValueError as error:
                said[name] = str(error)
    said["collectives"] = str(len(ledger))
    return said
