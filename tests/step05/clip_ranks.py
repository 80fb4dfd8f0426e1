"""Functions that run inside ranks: clipping, loss scale, precisions."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from step01_single_gpu.optimizer import decays, make_optimizer
from step02_mlp_parallel import (
    ParallelMLP,
    gather_full_gradients,
    gather_full_state_dict,
    load_full_state_dict,
)
from step02_mlp_parallel.sharding import cuts
from step02_mlp_parallel.wire import Group
from step04_embeddings_loss import ParallelGPT
from step05_hybrid_dp.data_parallel import average_gradients
from step05_hybrid_dp.ddp import DataParallel
from step05_hybrid_dp.grid import Grid
from step05_hybrid_dp.loss_scale import next_scale, scaled_step
from step05_hybrid_dp.masters import Masters
from step05_hybrid_dp.optimizer import clip_grad_norm_
from step05_hybrid_dp.precision import MixedPrecision

from .dp_ranks import CONFIG, batch, micro_batches, model


def world() -> Group:
    return dist.group.WORLD if dist.get_world_size() > 1 else None


def alone() -> Group:
    """A group of this rank only; all ranks make all of them."""
    return [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]


def gpt_with(gradients: dict[str, Tensor]) -> ParallelGPT:
    """A model over all ranks whose gradients are this rank's parts of the given ones."""
    gpt = ParallelGPT(CONFIG, group=world(), vocab_multiple=1).double()
    for name, parameter in gpt.named_parameters():
        cut = cuts(gpt)[name]
        width = parameter.size(cut.shard_dim) if cut.shard_dim is not None else 0
        parameter.grad = cut.part_of(gradients[name], width)
    return gpt


def clipped(
    gradients: dict[str, Tensor], cases: list[tuple[float, float]]
) -> list[tuple[float, dict[str, Tensor], list[Tensor]]]:
    """For each (norm_type, max_norm): norm, whole gradients, this rank's replicated ones."""
    results = []
    for norm_type, max_norm in cases:
        gpt = gpt_with(gradients)
        norm = clip_grad_norm_(gpt, max_norm, world(), norm_type=norm_type)
        replicated = [
            p.grad.clone()
            for n, p in gpt.named_parameters()
            if cuts(gpt)[n].shard_dim is None and p.grad is not None
        ]
        results.append((norm.item(), gather_full_gradients(gpt), replicated))
    return results


def local_norms(gradients: dict[str, Tensor]) -> tuple[float, Tensor]:
    """Pitfall 53: torch's clipping on each rank, and the replicated gradient that it leaves."""
    gpt = gpt_with(gradients)
    norm = torch.nn.utils.clip_grad_norm_(gpt.parameters(), 0.5)
    assert gpt.ln.weight.grad is not None
    return norm.item(), gpt.ln.weight.grad


def four_and_four() -> list[float]:
    return [four_and_four_with(dims) for dims in ((None, 0), (0, 0), (None, None))]


def four_and_four_with(shard_dims: tuple[int | None, int | None]) -> float:
    """Pitfall 51: 4 replicated and 4 cut gradients of 1 on each rank."""
    parameters = [nn.Parameter(torch.zeros(4)) for _ in range(2)]
    for parameter, dim in zip(parameters, shard_dims, strict=True):
        parameter.grad = torch.ones(4)
        parameter.shard_dim = dim  # type: ignore[attr-defined]
    return clip_grad_norm_([*parameters, parameters[0]], 100.0, world()).item()


def not_finite(cases: list[tuple[float, float]]) -> list[tuple[float, list[Any]]]:
    return [not_finite_with(*case) for case in cases]


def not_finite_with(bad: float, norm_type: float) -> tuple[float, list[Any]]:
    """Rank 1's part of a cut weight has it; what is left in this rank's gradients."""
    layer = ParallelMLP(CONFIG, group=world())
    for parameter in layer.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    if dist.get_rank() == 1:
        layer.up.weight.grad[0, 0] = bad  # type: ignore[index]
    norm = clip_grad_norm_(layer, 1.0, world(), norm_type=norm_type)
    assert layer.down.bias.grad is not None
    return norm.item(), layer.down.bias.grad.unique().tolist()


def odd_models(gradients: dict[str, Tensor]) -> dict[str, float]:
    """Norms of one model in several disguises."""
    gpt, found = gpt_with(gradients), {}
    found["plain"] = clip_grad_norm_(gpt, math.inf, world()).item()
    twin = copy.deepcopy(gpt)  # has lost its marks
    assert not hasattr(twin.tokens.weight, "shard_dim")
    for one, other in zip(twin.parameters(), gpt.parameters(), strict=True):
        one.grad = other.grad
    found["copied"] = clip_grad_norm_(twin, math.inf, world()).item()
    both = nn.ModuleDict({"a": gpt, "b": gpt})
    found["registered twice"] = clip_grad_norm_(both, math.inf, world()).item()
    found["inside the engine"] = clip_grad_norm_(DataParallel(gpt).run, math.inf, world()).item()
    ddp = nn.parallel.DistributedDataParallel(gpt, process_group=alone())
    found["DDP"] = clip_grad_norm_(ddp, math.inf, world()).item()
    return found


def without_gradients() -> list[float]:
    """Rank 1 has no cut gradient, then nobody has any: as many collectives on both."""
    layer, norms = ParallelMLP(CONFIG, group=world()), []
    layer.down.bias.grad = torch.full((16,), 1.0)
    if dist.get_rank() == 0:
        layer.up.bias.grad = torch.full((32,), 1.0)
    norms.append(clip_grad_norm_(layer, 100.0, world()).item())
    layer.zero_grad()
    norms += [clip_grad_norm_(layer, 100.0, world(), norm_type=t).item() for t in (2.0, math.inf)]
    return norms


def messages(gradients: dict[str, Tensor]) -> dict[str, str]:
    gpt = gpt_with(gradients)
    calls = {
        "bare": lambda: clip_grad_norm_(gpt.parameters(), 1.0, world()),
        "no group": lambda: clip_grad_norm_(gpt, 1.0),
        "another group": lambda: clip_grad_norm_(gpt, 1.0, alone()),
        "max_norm": lambda: clip_grad_norm_(gpt, 0.0, world()),
        "nan": lambda: clip_grad_norm_(gpt, math.nan, world()),
        "norm_type": lambda: clip_grad_norm_(gpt, 1.0, world(), norm_type=0.0),
        "scale": lambda: scaled_step(torch.optim.SGD(gpt.parameters()), gpt, 0.0, 1.0, world()),
    }
    said = {}
    for name, call in calls.items():
        try:
            call()
            said[name] = "no error"
        except ValueError as error:
            said[name] = str(error)
    return said


def decayed_names() -> list[str]:
    gpt = ParallelGPT(CONFIG, group=world(), vocab_multiple=1)
    optimizer = make_optimizer(gpt, weight_decay=0.01)
    names = {id(p): n for n, p in gpt.named_parameters()}
    decayed, rest = optimizer.param_groups
    assert (decayed["weight_decay"], rest["weight_decay"]) == (0.01, 0.0)
    assert not any(decays(names[id(p)]) for p in rest["params"])
    return [names[id(p)] for p in decayed["params"]]


# ---- loss scale


def two_parts() -> nn.Module:
    """A cut weight and a replicated bias."""
    torch.manual_seed(0)
    return ParallelMLP(CONFIG, group=world())


def scaled_runs(bad: list[tuple[int, ...]], fused: bool) -> dict[str, Any]:
    """Steps by the page and by the engine, from the same gradients; in step k the ranks in bad[k]
    have an inf. For each: scales, whether it stepped, the weights."""
    found: dict[str, Any] = {}
    for how in ("page", "engine"):
        layer = two_parts()
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=fused)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            engine = MixedPrecision(
                layer, "fp16", tp_group=world(), init_scale=8.0, growth_interval=2
            )
        generator = torch.Generator().manual_seed(dist.get_rank())
        scale, good, scales, stepped = 8.0, 0, [], []
        for ranks_ in bad:
            scale = engine.scale if how == "engine" else scale
            for parameter in layer.parameters():
                parameter.grad = scale * torch.randn(parameter.shape, generator=generator)
            layer.down.bias.grad.fill_(scale)  # type: ignore[union-attr]
            if dist.get_rank() in ranks_:
                layer.up.weight.grad[0, 0] = math.inf  # type: ignore[index]
            if how == "page":
                stepped.append(scaled_step(optimizer, layer, scale, 0.5, world()))
                scale, good = next_scale(scale, good, stepped[-1], growth_interval=2)
            else:
                stepped.append(engine.step(optimizer, 0.5)[0])
                scale = engine.scale
            scales.append(scale)
        weights = [p.detach().clone() for p in layer.parameters()]
        found[how] = scales, stepped, weights
    return found


def torchs_own_steps() -> list[str]:
    """ShardedGradScaler.step, which we don't use: plain and fused; no overflow, on rank 1, both."""
    return [torchs_own_step(fused, bad) for fused in (False, True) for bad in ((), (1,), (0, 1))]


def torchs_own_step(fused: bool, bad: tuple[int, ...]) -> str:
    parameter = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([parameter], lr=0.1, fused=fused)
    scaler = ShardedGradScaler("cpu", init_scale=8.0, process_group=dist.group.WORLD)
    scaler.scale(torch.ones(()))
    parameter.grad = torch.full((3,), math.inf if dist.get_rank() in bad else 1.0)
    try:
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        return "stepped" if parameter[0] != 1.0 else "skipped"
    except RuntimeError as error:
        return str(error)


def overflow_on_one_of_four() -> list[tuple[bool, float]]:
    """tp = 2, dp = 2, an inf on rank 0, 1, 2, 3 in turn, before the gradients are averaged."""
    grid = Grid(2, 2, device_type="cpu")
    return [overflow_on(place, grid) for place in range(4)]


def overflow_on(place: int, grid: Grid) -> tuple[bool, float]:
    layer = ParallelMLP(CONFIG, group=grid.tp_group)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = MixedPrecision(layer, "fp16", tp_group=grid.tp_group, init_scale=8.0)
    for parameter in layer.parameters():
        parameter.grad = torch.ones_like(parameter)
    if dist.get_rank() == place:
        layer.up.weight.grad[0, 0] = math.inf  # type: ignore[index]
    average_gradients(layer.parameters(), grid.dp_group)
    stepped, _ = engine.step(torch.optim.SGD(layer.parameters(), lr=0.1), 1.0)
    return stepped, engine.scale


# ---- precisions, the whole model


def losses(precision: str, tp_size: int, full: dict[str, Tensor], steps: int) -> dict[str, Any]:
    """Training in a precision, as the program does it."""
    grid = Grid(tp_size, dist.get_world_size() // tp_size, device_type="cpu")
    gpt = model(grid, full).float()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        how = MixedPrecision(gpt, precision, tp_group=grid.tp_group)
    optimizer = make_optimizer(how.trained, lr=0.003)
    engine = DataParallel(gpt, grid.dp_group, forward_context=how.forward_context)
    parts = micro_batches(batch(0, 8, "some", 1), grid, 2)
    engine.settle(parts[0])
    seen = []
    for _ in range(steps):
        gpt.zero_grad()
        seen.append(engine.backward_global_mean(parts, scale=how.scale).item())
        stepped, _ = how.step(optimizer, 1.0)
        assert stepped
    state = gather_full_state_dict(how.trained)
    return {
        "losses": seen,
        "dtypes": {p.dtype for p in gpt.parameters()},
        "trained": {p.dtype for p in how.trained.parameters()},
        "replicated": [state[n] for n in ("ln.weight", "blocks.0.mlp.down.bias")],
        "names": [n for n, _ in how.trained.named_parameters()],
    }


def masters_after_a_load(dtype: torch.dtype, full: dict[str, Tensor]) -> dict[str, bool]:
    """Pitfall 59, over ranks: the optimizer exists, then weights are loaded into the model."""
    gpt = ParallelGPT(CONFIG, group=world(), vocab_multiple=1).to(dtype)
    masters = Masters(gpt)
    optimizer = make_optimizer(masters.float32, lr=0.0, weight_decay=0.0)
    load_full_state_dict(gpt, full)
    loaded = [p.detach().clone() for p in gpt.parameters()]
    tokens, targets = batch(0, 2, "some", 1)
    gpt.loss(tokens, targets).backward()
    masters.pull()
    optimizer.step()
    masters.push_weights()
    return {
        "weights": all(torch.equal(p, q) for p, q in zip(gpt.parameters(), loaded, strict=True)),
        "gradients moved": all(p.grad is None for p in gpt.parameters()),
        "in float32": all(
            p.grad is not None and p.grad.dtype == torch.float32
            for p in masters.float32.parameters()
        ),
    }
