"""Functions that run inside ranks: data parallelism."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from step01_single_gpu.config import GPTConfig
from step02_mlp_parallel import (
    gather_full_gradients,
    gather_full_state_dict,
    load_full_state_dict,
    record_collectives,
)
from step02_mlp_parallel.wire import Group
from step03_attention_parallel import RNGTracker
from step04_embeddings_loss import ParallelGPT
from step05_hybrid_dp.batches import own_rows
from step05_hybrid_dp.data_parallel import average_gradients, backward_global_mean
from step05_hybrid_dp.ddp import DataParallel
from step05_hybrid_dp.grid import Grid
from step05_hybrid_dp.optimizer import clip_grad_norm_

CONFIG = GPTConfig(51, 8, hidden_size=16, num_layers=2, num_heads=4, dropout=0.0)
DROPPING = GPTConfig(51, 8, hidden_size=16, num_layers=2, num_heads=4, dropout=0.2)
Batch = tuple[Tensor, Tensor]


def batch(seed: int, rows: int, ignored: str, dp_size: int) -> Batch:
    """A global batch; "some": row i has i % 7 ignored targets; "last": and the last rank has only
    such; "all": nothing counts."""
    generator = torch.Generator().manual_seed(seed)
    tokens, targets = torch.randint(51, (2, rows, 7), generator=generator)
    for row in range(rows):
        targets[row, : row % 7] = -100
    if ignored == "last" and dp_size > 1:
        targets[-(rows // dp_size) :] = -100
    if ignored == "all":
        targets[:] = -100
    return tokens, targets


def micro_batches(whole: Batch, grid: Grid, accumulation: int) -> list[Batch]:
    own = [own_rows(part, grid.dp_rank, grid.dp_size) for part in whole]
    return list(zip(*(part.chunk(accumulation) for part in own), strict=True))


def model(grid: Grid, full: dict[str, Tensor], rng: RNGTracker | None = None) -> ParallelGPT:
    config = CONFIG if rng is None else DROPPING
    gpt = ParallelGPT(config, group=grid.tp_group, rng=rng, vocab_multiple=1).double()
    load_full_state_dict(gpt, full)
    return gpt


def gradients(
    tp_size: int, full: dict[str, Tensor], cases: list[tuple[int, str]]
) -> list[dict[str, tuple[float, dict[str, Tensor]]]]:
    """Loss and whole gradients of each (accumulation, ignored), by the page and by the engine."""
    grid = Grid(tp_size, dist.get_world_size() // tp_size, device_type="cpu")
    results = []
    for accumulation, ignored in cases:
        parts = micro_batches(batch(3, 12, ignored, grid.dp_size), grid, accumulation)
        found = {}
        for how in ("page", "engine"):
            gpt = model(grid, full)
            if how == "page":
                loss = backward_global_mean(gpt, parts, grid.dp_group)
            else:
                engine = DataParallel(gpt, grid.dp_group)
                engine.settle(parts[0])
                loss = engine.backward_global_mean(parts)
            found[how] = loss.item(), gather_full_gradients(gpt)
        results.append(found)
    return results


def trained(tp_size: int, full: dict[str, Tensor], steps: int) -> dict[str, Tensor]:
    """Steps with dropout, accumulation and clipping; the weights at the end."""
    grid = Grid(tp_size, dist.get_world_size() // tp_size, device_type="cpu")
    place = {"tp_rank": grid.tp_rank, "tp_size": tp_size, "dp_rank": grid.dp_rank}
    rng = RNGTracker(5, **place, mode="invariant")
    gpt = model(grid, full, rng)
    engine = DataParallel(gpt, grid.dp_group)
    optimizer = torch.optim.SGD(gpt.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        parts = micro_batches(batch(step, 8, "some", 1), grid, 2)
        engine.backward_global_mean(parts, before=partial(sample, rng, step, grid))
        clip_grad_norm_(gpt, 0.5, grid.tp_group)
        optimizer.step()
    return gather_full_state_dict(gpt)


def sample(rng: RNGTracker, step: int, grid: Grid, rows: int) -> None:
    """Tell the tracker where in the global batch of 8 the next micro-batch begins."""
    rng.at(step, grid.dp_rank * 8 // grid.dp_size + rows)


def resumed(full: dict[str, Tensor], settled: bool) -> tuple[list[Tensor], list[Tensor]]:
    """dp = 4, float32, dropout on: 3 steps, and the last 2 of them by an engine made anew."""
    grid, results = Grid(1, 4, device_type="cpu"), []
    saved: Any = None
    for start in (0, 1):
        rng = RNGTracker(5, dp_rank=grid.dp_rank)
        gpt = ParallelGPT(DROPPING, group=grid.tp_group, rng=rng, vocab_multiple=1)
        load_full_state_dict(gpt, full if saved is None else saved[0])
        if saved is not None:
            rng.load_state_dict(saved[1])
        engine = DataParallel(gpt, grid.dp_group)
        if settled:
            engine.settle(micro_batches(batch(9, 8, "some", 1), grid, 1)[0], rng)
        for step in range(start, 3):
            gpt.zero_grad()
            engine.backward_global_mean(micro_batches(batch(step, 8, "some", 1), grid, 2))
            with torch.no_grad():
                for parameter in gpt.parameters():
                    assert parameter.grad is not None
                    parameter -= 0.1 * parameter.grad
            if start == step == 0:
                saved = gather_full_state_dict(gpt), rng.state_dict()
        results.append([p.detach().clone() for p in gpt.parameters()])
    return results[0], results[1]


def draw(*_: object) -> None:
    """A forward hook of somebody who uses the global generator."""
    torch.rand(1)


def settle_leaves_no_trace(full: dict[str, Tensor]) -> dict[str, bool]:
    grid = Grid(2, 2, device_type="cpu")
    rng = RNGTracker(5, tp_rank=grid.tp_rank, tp_size=2, dp_rank=grid.dp_rank)
    gpt = model(grid, full, rng)
    gpt.ln.register_forward_hook(draw)
    engine = DataParallel(gpt, grid.dp_group)
    before = torch.get_rng_state(), rng.state_dict(), gather_full_state_dict(gpt)
    engine.settle(micro_batches(batch(9, 8, "some", 1), grid, 1)[0])  # finds the model's tracker
    after = torch.get_rng_state(), rng.state_dict(), gather_full_state_dict(gpt)
    streams = [
        torch.equal(before[1][name]["cpu"], after[1][name]["cpu"])
        for name in ("replicated", "sharded")
    ]
    return {
        "global random numbers": torch.equal(before[0], after[0]),
        "tracker": all(streams),
        "weights": all(torch.equal(before[2][k], after[2][k]) for k in before[2]),
        "gradients": all(p.grad is None for p in gpt.parameters()),
    }


def wrapped_by(full: dict[str, Tensor], group: str) -> tuple[dict[str, Tensor], list[str]]:
    """Pitfall 68: the weights after the engine is made over the world, or over the DP group."""
    grid = Grid(2, 2, device_type="cpu")
    gpt = model(grid, full)
    names = [name for name, _ in gpt.named_parameters()]
    DataParallel(gpt, grid.dp_group if group == "dp" else grid.world_group)
    assert names == [name for name, _ in gpt.named_parameters()]
    return gather_full_state_dict(gpt), names


def traffic(dtype: torch.dtype, accumulation: int, megabytes: float) -> dict[str, Any]:
    """What goes over the data-parallel group in one step, at tp = 2, dp = 2."""
    grid = Grid(2, 2, device_type="cpu")
    gpt = ParallelGPT(CONFIG, group=grid.tp_group, vocab_multiple=1).to(dtype)
    engine = DataParallel(gpt, grid.dp_group, bucket_megabytes=megabytes)
    parts = micro_batches(batch(0, 12, "some", 1), grid, accumulation)
    engine.settle(parts[0])
    with record_collectives() as ledger:
        engine.backward_global_mean(parts)
    assert grid.dp_group is not None
    members = tuple(dist.get_process_group_ranks(grid.dp_group))
    sent = [entry for entry in ledger if entry.ranks == members]
    return {
        "kinds": {entry.op for entry in sent},
        "counts": [entry.numel for entry in sent],
        "dtypes": [entry.dtype for entry in sent],
        "parameters": sum(p.numel() for p in gpt.parameters()),
    }


def halves(dtype: torch.dtype, large: float) -> dict[str, list[float]]:
    """Number i is `large` on rank i and 1 on the others; averaged by the page and by DDP's hook."""
    group: Group = dist.group.WORLD
    values = torch.ones(4, dtype=dtype)
    values[dist.get_rank()] = large

    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, dtype=dtype))

        def loss(self, tokens: Tensor, targets: Tensor, **options: Any) -> Tensor:
            return (self.weight * values).sum()

    found = {}
    for how in ("page", "engine"):
        module, row = Weighted(), torch.zeros(1, 1, dtype=torch.int64)
        if how == "page":
            module.loss(row, row).backward()
            average_gradients(module.parameters(), group)
        else:
            DataParallel(module, group).backward_global_mean([(row, row)])
        assert module.weight.grad is not None
        assert module.weight.grad.dtype == dtype
        found[how] = module.weight.grad.tolist()
    return found


def missing_and_frozen() -> list[Any]:
    """Rank 1 has no gradient of b; c is frozen; d is transposed in memory."""
    a, b, c, d = (nn.Parameter(torch.zeros(2, 3)) for _ in range(4))
    c.requires_grad_(False)
    a.grad, d.grad = torch.full((2, 3), 1.0 + dist.get_rank()), torch.arange(6.0).view(3, 2).T
    if dist.get_rank() == 0:
        b.grad = torch.full((2, 3), 4.0)
    kept = a.grad
    average_gradients([a, b, c, d], dist.group.WORLD)
    return [None if p.grad is None else p.grad.tolist() for p in (a, b, c, d)] + [kept.tolist()]


def empty_and_uneven(full: dict[str, Tensor]) -> tuple[str, float, dict[str, Tensor]]:
    """No micro-batch: said by the engine, fine for the page; rank 0 has two, rank 1 one."""
    grid = Grid(1, 2, device_type="cpu")
    try:
        DataParallel(model(grid, full), grid.dp_group).backward_global_mean([])
        said = "no error"
    except ValueError as error:
        said = str(error)
    tokens, targets = batch(3, 12, "some", 1)
    parts = [[(tokens[:4], targets[:4]), (tokens[4:9], targets[4:9])], [(tokens[9:], targets[9:])]]
    gpt = model(grid, full)
    loss = DataParallel(gpt, grid.dp_group).backward_global_mean(parts[grid.dp_rank])
    only = model(grid, full)  # all rows on rank 1, none on rank 0
    backward_global_mean(only, [(tokens, targets)] if grid.dp_rank else [], grid.dp_group)
    for one, other in zip(gpt.parameters(), only.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-12, atol=1e-14)
    return said, loss.item(), gather_full_gradients(gpt)


def engine_hides_a_difference_at_start(full: dict[str, Tensor]) -> bool:
    """DDP sends rank 0's weights to all: whoever starts with others gets them silently."""
    grid = Grid(1, 2, device_type="cpu")
    gpt = model(grid, full)
    with torch.no_grad():
        gpt.ln.bias += grid.dp_rank
    DataParallel(gpt, grid.dp_group)
    return torch.equal(gpt.ln.bias, full["ln.bias"])
