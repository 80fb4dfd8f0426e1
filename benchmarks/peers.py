"""The same parallel MLP out of other people's layers. Each maker returns a module on this rank.

Installed by `pip install .[bench]`; a peer that is missing is named in the table, not dropped.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from step01_single_gpu.block import MLP
from step01_single_gpu.config import GPTConfig
from step02_mlp_parallel import ParallelMLP, load_full_state_dict

State = dict[str, Tensor]
Maker = Callable[[GPTConfig, State], nn.Module]


def ours(config: GPTConfig, full: State) -> nn.Module:
    """This repository's."""
    mlp = ParallelMLP(config, group=dist.group.WORLD)
    load_full_state_dict(mlp, full)
    return mlp


def dtensor(config: GPTConfig, full: State) -> nn.Module:
    """torch's own: `parallelize_module` with Colwise and Rowwise."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mlp = MLP(config)
    mlp.load_state_dict(full)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    return parallelize_module(mlp, mesh, plan)


class _Pair(nn.Module):
    """Two layers of a peer around GeLU."""

    def __init__(self, up: nn.Module, down: nn.Module, full: State) -> None:
        super().__init__()
        self.up, self.down = up, down
        n, rank = dist.get_world_size(), dist.get_rank()
        with torch.no_grad():
            up.weight.copy_(full["up.weight"].chunk(n, 0)[rank])  # type: ignore[operator]
            up.bias.copy_(full["up.bias"].chunk(n, 0)[rank])  # type: ignore[operator]
            down.weight.copy_(full["down.weight"].chunk(n, 1)[rank])  # type: ignore[operator]
            down.bias.copy_(full["down.bias"])  # type: ignore[operator]

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x)
        y = self.down(F.gelu(y[0] if isinstance(y, tuple) else y, approximate="tanh"))
        return y[0] if isinstance(y, tuple) else y  # type: ignore[no-any-return]


def fairscale(config: GPTConfig, full: State) -> nn.Module:
    """fairscale's model-parallel layers."""
    from fairscale.nn.model_parallel import initialize
    from fairscale.nn.model_parallel.layers import ColumnParallelLinear, RowParallelLinear

    if not initialize.model_parallel_is_initialized():
        initialize.initialize_model_parallel(dist.get_world_size())
    h = config.hidden_size
    up = ColumnParallelLinear(h, 4 * h, gather_output=False)
    return _Pair(up, RowParallelLinear(4 * h, h, input_is_parallel=True), full)


def megatron_core(config: GPTConfig, full: State) -> nn.Module:
    """NVIDIA's megatron-core."""
    from megatron.core import ModelParallelConfig, parallel_state
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear

    n, h = dist.get_world_size(), config.hidden_size
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=n)
    options = ModelParallelConfig(tensor_model_parallel_size=n, use_cpu_initialization=True)
    common = {
        "config": options, "init_method": nn.init.zeros_, "bias": True,
        "tp_group": parallel_state.get_tensor_model_parallel_group(),
    }  # fmt: skip
    up = ColumnParallelLinear(h, 4 * h, gather_output=False, **common)
    down = RowParallelLinear(4 * h, h, input_is_parallel=True, skip_bias_add=False, **common)
    return _Pair(up, down, full)


MAKERS: dict[str, Maker] = {
    "ours": ours,
    "DTensor": dtensor,
    "fairscale": fairscale,
    "megatron-core": megatron_core,
}


def make_all(config: GPTConfig, full: State) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """Every peer that can be had here, and why the others can't."""
    modules, missing = {}, {}
    for name, maker in MAKERS.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                modules[name] = maker(config, full)
        except ImportError as error:
            missing[name] = str(error)
    return modules, missing
