"""Losses, lookups and draws inside ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from step01_single_gpu.config import GPTConfig
from step02_mlp_parallel import (
    f,
    gather_full_gradients,
    load_full_state_dict,
    record_collectives,
)
from step02_mlp_parallel.wire import group_size
from step04_embeddings_loss import (
    ParallelGPT,
    VocabParallelEmbedding,
    padded_vocab_size,
    vocab_parallel_cross_entropy,
    vocab_parallel_linear_cross_entropy,
)
from step04_embeddings_loss.draw import draw_parallel
from step04_embeddings_loss.vocab import words_of
from tests.step04.ranks import part, world


def losses(cases: list[dict[str, Any]]) -> list[tuple[Tensor, Tensor, bool]]:
    """For each case: loss, this rank's gradient of the logits, whether the logits are untouched."""
    results = []
    for case in cases:
        logits = part(case["logits"], -1, case.get("multiple", 1)).requires_grad_()
        before = logits.detach().clone()
        loss = vocab_parallel_cross_entropy(
            logits,
            case["targets"],
            world(),
            vocab_size=case["logits"].size(-1),
            allow_empty_ranks=True,
            **case["options"],
        )
        loss.backward(case["upstream"].to(loss.dtype).view(loss.shape))
        assert logits.grad is not None
        results.append((loss.detach(), logits.grad, bool(torch.equal(before, logits.detach()))))
    return results


def fused(cases: list[dict[str, Any]]) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """For each case: the fused loss, the unfused, and gradients of hidden and of this rank's rows,
    as (loss, plain loss, [hidden; hidden of plain], [rows; rows of plain])."""
    from step01_single_gpu import fused_loss

    results = []
    for case in cases:
        fused_loss.CHUNK_NUMBERS = case["chunk"] * part(case["weight"], 0).size(0)
        both = []
        for kind in ("fused", "plain"):
            hidden = case["hidden"].clone().requires_grad_()
            own = part(case["weight"], 0, padding=0.5).requires_grad_()
            options = case["options"] | {
                "vocab_size": case["weight"].size(0),
                "allow_empty_ranks": True,
            }
            if kind == "fused":
                loss = vocab_parallel_linear_cross_entropy(
                    hidden, own, case["targets"], world(), **options
                )
            else:
                logits = f(hidden, world()) @ own.T
                loss = vocab_parallel_cross_entropy(logits, case["targets"], world(), **options)
            loss.backward(case["upstream"].to(loss.dtype).view(loss.shape))
            both.append((loss.detach(), hidden.grad, own.grad))
        (a, b, c), (d, e, g) = both
        results.append((a, d, torch.stack([b, e]), torch.stack([c, g])))
    return results


def counted(t: int, v: int, smoothing: float, chunk: int) -> dict[str, list[tuple[Any, ...]]]:
    """Collectives of the plain and fused loss, forward and backward, gradients and none."""
    from step01_single_gpu import fused_loss

    torch.manual_seed(0)
    width = padded_vocab_size(v, group_size(world()), 1) // group_size(world())
    fused_loss.CHUNK_NUMBERS = chunk * width
    hidden, rows = torch.randn(t, 4, requires_grad=True), torch.randn(width, 4, requires_grad=True)
    targets = torch.arange(t) % v
    options = {"vocab_size": v, "label_smoothing": smoothing}
    result = {}
    for name in ("plain", "fused", "fused none"):
        with record_collectives() as ledger:
            if name == "plain":
                logits = (f(hidden, world()) @ rows.T).detach().requires_grad_()
                loss = vocab_parallel_cross_entropy(logits, targets, world(), **options)
            else:
                reduction = "none" if "none" in name else "mean"
                loss = vocab_parallel_linear_cross_entropy(
                    hidden, rows, targets, world(), reduction=reduction, **options
                )
        with record_collectives() as backward:
            loss.sum().backward()
        result[name] = [(e.op, e.numel) for e in ledger]
        result[name + " backward"] = [(e.op, e.numel) for e in backward]
    return result


def contrastive(queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each query's own key among all keys of the batch, which are spread over the ranks."""
    q, k = queries.clone().requires_grad_(), part(keys, 0, padding=0.0).requires_grad_()
    loss = vocab_parallel_linear_cross_entropy(
        q * 5.0, k, torch.arange(len(q)), world(), vocab_size=len(keys)
    )
    loss.backward()
    assert q.grad is not None
    assert k.grad is not None
    return loss.detach(), q.grad, k.grad


def looked_up(full: Tensor, ids: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor, list[Any]]:
    table = VocabParallelEmbedding(*full.shape, group=world()).double()
    load_full_state_dict(table, {"weight": full})
    with record_collectives() as ledger:
        rows = table(ids)
        rows.backward(upstream)
    gradient = gather_full_gradients(table)["weight"]
    return rows.detach(), gradient, [(e.op, e.shape) for e in ledger]


def drawn(
    logits: Tensor, options: list[tuple[float, int | None]]
) -> tuple[list[Tensor], list[Any]]:
    """Tokens drawn from given logits, and what went over the wire."""
    group, v = world(), logits.size(-1)
    mine = part(logits, -1, padding=1e9)
    words = words_of(mine.size(-1), v, group, True)
    tokens, wire = [], []
    for temperature, top_k in options:
        with record_collectives() as ledger:
            generator = torch.Generator().manual_seed(5)
            tokens.append(draw_parallel(mine, temperature, top_k, generator, words, group))
        wire.append([(e.op, e.numel) for e in ledger])
    return tokens, wire


def missing_f(hidden: Tensor, weight: Tensor, targets: Tensor) -> list[Tensor]:
    """Gradients of the hidden state without f (what a head "is only a loss" gives) and with."""
    found = []
    for prepare in (lambda h: h, lambda h: f(h, world())):
        h = hidden.clone().requires_grad_()
        logits = prepare(h) @ part(weight, 0, padding=0.0).T
        vocab_parallel_cross_entropy(logits, targets, world(), vocab_size=weight.size(0)).backward()
        assert h.grad is not None
        found.append(h.grad)
    return found


def messages() -> dict[str, str]:
    group = world()
    logits, targets = torch.zeros(4, 8), torch.arange(4)
    table = VocabParallelEmbedding(15, 3, group=group)
    config = GPTConfig(15, 8, hidden_size=24, num_layers=1, num_heads=8, dropout=0.0)
    model = ParallelGPT(config, group=group)

    def loss(*args: Any, **options: Any) -> Any:
        return vocab_parallel_cross_entropy(*args, **({"vocab_size": 15} | options))

    calls = {
        "target too large": lambda: loss(logits, targets + 12, group),
        "target negative": lambda: loss(logits, targets - 1, group),
        "whole logits": lambda: loss(torch.zeros(4, 15), targets, group),
        "whole padded logits": lambda: loss(torch.zeros(4, 16), targets, group),
        "narrow": lambda: loss(torch.zeros(4, 7), targets, group),
        "empty rank": lambda: loss(torch.zeros(4, 8), targets, group, vocab_size=8),
        "no size": lambda: loss(logits, targets, group, vocab_size=None),
        "reduction": lambda: loss(logits, targets, group, reduction="avg"),
        "smoothing": lambda: loss(logits, targets, group, label_smoothing=1.5),
        "divisor": lambda: loss(logits, targets, group, divisor=3),
        "rows": lambda: loss(logits, targets[:3], group),
        "float targets": lambda: loss(logits, targets.float(), group),
        "group": lambda: loss(logits, targets, "tp"),
        "id": lambda: table(torch.tensor([3, 15])),
        "negative id": lambda: table(torch.tensor([-1])),
        "model id": lambda: model(torch.tensor([[15]])),
        "too long": lambda: model(torch.zeros(1, 9, dtype=torch.long)),
        "fused width": lambda: vocab_parallel_linear_cross_entropy(
            torch.zeros(4, 3), torch.zeros(15, 3), targets, group, vocab_size=15
        ),
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
