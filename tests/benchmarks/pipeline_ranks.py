"""Pipelines inside ranks."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.schedules import Pipeline, PipelinedGPT
from benchmarks.stages import GPTStage, StageGrid
from step01_single_gpu.config import GPTConfig
from step02_mlp_parallel import gather_full_gradients, gather_full_state_dict, load_full_state_dict


@dataclass
class Trained:
    """What a rank saw; tensors are whole over the tensor-parallel ranks."""

    stage: int
    losses: list[Tensor | None]
    gradients: dict[str, Tensor]  # of the first step
    weights: dict[str, Tensor]  # after the last
    most_kept: int
    sent: int


def stage_with(config: GPTConfig, grid: StageGrid, full: dict[str, Tensor]) -> GPTStage:
    """This rank's stage in float64 with its part of the whole weights."""
    module = GPTStage(config, grid, vocab_multiple=1).double()
    load_full_state_dict(module, {name: full[name] for name in module.state_dict()})
    return module


def trained(
    config: GPTConfig,
    full: dict[str, Tensor],
    batches: list[tuple[Tensor, Tensor]],
    layout: tuple[int, int],
    schedule: str,
    micro_batches: int,
) -> Trained:
    """SGD with momentum, a step for each batch."""
    grid = StageGrid(*layout)
    module = stage_with(config, grid, full)
    rows, length = batches[0][0].shape
    model = PipelinedGPT(module, schedule, micro_batches, (rows // micro_batches, length))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    losses, first = [], {}
    for tokens, targets in batches:
        optimizer.zero_grad()
        losses.append(model.backward_global_mean(tokens, targets))
        first = first or gather_full_gradients(module)
        optimizer.step()
    watched = model.pipeline.stage
    weights = gather_full_state_dict(module)
    return Trained(grid.stage, losses, first, weights, watched.most_kept, watched.sent)


def refusals(config: GPTConfig) -> list[str]:
    """What two ranks say to what can't work, before either waits for the other."""
    grid = StageGrid(2, 1)
    module = GPTStage(config, grid)
    model = PipelinedGPT(module, "GPipe", 2, (2, 3))
    short, good = torch.zeros(3, 3, dtype=torch.int64), torch.zeros(4, 3, dtype=torch.int64)
    messages = []
    for run in (
        lambda: StageGrid(2, 2),
        lambda: GPTStage(dataclasses.replace(config, dropout=0.1), grid),
        lambda: GPTStage(dataclasses.replace(config, num_layers=3), grid),
        lambda: PipelinedGPT(module, "ZB", 2, (2, 3)),
        lambda: PipelinedGPT(module, "1F1B", 1, (2, 3)),
        lambda: model.backward_global_mean(short, good),
        lambda: model.backward_global_mean(good, short),
    ):
        try:
            run()
        except ValueError as error:
            messages.append(str(error))
    return messages


class _Turned(nn.Module):
    """Gives the right shape with the wrong strides."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.weight).t()


def strided_send() -> None:
    x = torch.zeros(3, 3)
    grid = StageGrid(2, 1)
    pipeline = Pipeline(_Turned(), grid, "GPipe", 1, x, x.clone(), lambda y, _: y.sum())
    pipeline.run(x, x)
