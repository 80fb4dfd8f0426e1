"""A whole training step over two tensor-parallel ranks, ours and others' (`make bench-endtoend`).

The same GPT-2 with the same weights and batch, float32, one thread a rank, a core each: forward,
loss over the cut vocabulary, backward, fused AdamW. Loss and gradients are compared before
anything is timed. Clipping is left out, since only some peers have one over ranks.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from step01_single_gpu.config import GPTConfig
from step01_single_gpu.machine import keep_freed_memory, training_flops
from step02_mlp_parallel import run_ranks
from step04_embeddings_loss import ParallelGPT

from .parallel import own_core
from .report import Table, beside, show, slower_rank
from .whole_peers import make_all

TP = 2
SIZES = (  # batch, model
    (8, GPTConfig(8192, 128, hidden_size=256, num_layers=4, num_heads=4, dropout=0.0)),
    (4, GPTConfig(8192, 256, hidden_size=768, num_layers=4, num_heads=12, dropout=0.0)),
)


@dataclass(frozen=True)
class Options:
    """Compare a whole training step with its peers at TP = 2."""

    rounds: int = 11
    save: str = ""
    """Also write the tables as JSON into this file."""


class Step:
    """A training step of one implementation; `seconds` repeats it."""

    def __init__(self, model: nn.Module, tokens: Tensor, targets: Tensor) -> None:
        self.model, self.tokens, self.targets = model, tokens, targets
        parameters = list(model.parameters())
        kinds = [  # fused AdamW takes one kind of tensor a group
            [p for p in parameters if isinstance(p, DTensor)],
            [p for p in parameters if not isinstance(p, DTensor)],
        ]
        groups = [{"params": kind} for kind in kinds if kind]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-5, fused=True)

    def backward(self) -> float:
        self.model.zero_grad(set_to_none=True)
        loss_of: Callable[..., Tensor] = self.model.loss  # type: ignore[assignment]
        with loss_parallel():  # acts on DTensors only; the backward must be inside too
            loss = loss_of(self.tokens, self.targets)
            loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.to_local() if isinstance(loss, DTensor) else loss)

    def seconds(self) -> float:
        dist.barrier()
        start = time.perf_counter()
        self.backward()
        self.optimizer.step()
        return time.perf_counter() - start

    def gradients(self) -> list[Tensor]:
        """This rank's, of layers that all have: the embedding, a qkv, a down."""
        found = dict(self.model.named_parameters())
        kept = []
        for ending in ("tokens.weight", "qkv.weight", "down.weight", "ln.bias"):
            grad = next(p.grad for name, p in found.items() if name.endswith(ending))
            assert grad is not None
            kept.append((grad.to_local() if isinstance(grad, DTensor) else grad).flatten())
        return kept


def versus(batch: int, config: GPTConfig, rounds: int) -> dict[str, Any]:
    """Seconds by implementation and round, on this rank."""
    warnings.simplefilter("ignore")
    own_core()
    keep_freed_memory()
    ours = ParallelGPT(config, group=dist.group.WORLD, vocab_multiple=1)
    peers, missing = make_all(ours)
    generator = torch.Generator().manual_seed(0)
    shape = (2, batch, config.seq_length)
    tokens, targets = torch.randint(config.vocab_size, shape, generator=generator)
    models: dict[str, nn.Module] = {"ours": ours, **peers}
    steps = {name: Step(model, tokens, targets) for name, model in models.items()}
    loss, expected = steps["ours"].backward(), steps["ours"].gradients()
    for name, step in steps.items():
        found = step.backward()
        assert abs(found - loss) < 1e-5 * loss, f"{name}: loss {found}, ours {loss}"
        for got, wanted in zip(step.gradients(), expected, strict=True):
            error = (got - wanted).norm() / wanted.norm()
            assert error < 1e-4, f"{name}: a gradient is off by {error:.1e}"
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for i in range(rounds + 2):
        for name, step in steps.items():
            taken = step.seconds()
            if i >= 2:
                seconds[name].append(taken)
    return {"seconds": seconds, "missing": missing}


def tables(options: Options) -> Iterator[Table]:
    for batch, config in SIZES:
        ranks = run_ranks(versus, TP, batch, config, options.rounds, timeout=1200)
        seconds = slower_rank([rank["seconds"] for rank in ranks])
        rows, figures = beside(seconds, ranks[0]["missing"])
        tokens = batch * config.seq_length
        figures["tokens/s"] = tokens / statistics.median(seconds["ours"])
        figures["GFLOP/s a rank"] = (
            training_flops(config, tokens) / TP / statistics.median(seconds["ours"]) / 1e9
        )
        yield Table(
            f"Whole training step, hidden {config.hidden_size}, {config.num_layers} layers, "
            f"vocabulary {config.vocab_size:,}, batch {batch} x {config.seq_length}, TP = {TP}",
            ["", "ms", "times ours"],
            rows,
            f"ours: {figures['tokens/s']:,.0f} tokens/s, "
            f"{figures['GFLOP/s a rank']:.0f} GFLOP/s a rank",
            figures,
        )


def main(options: Options) -> None:
    show(tables(options), options.save)


if __name__ == "__main__":
    import tyro

    main(tyro.cli(Options))
