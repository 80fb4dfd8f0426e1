"""The same parallel MLP and block out of other people's layers.

Installed by `make bench`; a peer that is missing is named in the table, not dropped. Each
peer brings column- and row-parallel linear layers; norm, GeLU, SDPA and sums are torch's for all.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from step01_single_gpu.config import GPTConfig
from step02_mlp_parallel import ParallelMLP, load_full_state_dict
from step02_mlp_parallel.sharding import cuts
from step03_attention_parallel import ParallelBlock

State = dict[str, Tensor]
Sizes = dict[str, tuple[str, int, int]]  # name -> ("column" or "row", in, out)
Maker = Callable[[Sizes], nn.ModuleDict]


def dtensor(sizes: Sizes) -> nn.ModuleDict:
    """torch's own: `parallelize_module` with Colwise and Rowwise."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        ParallelStyle,
        RowwiseParallel,
        parallelize_module,
    )

    layers = nn.ModuleDict({name: nn.Linear(i, o) for name, (_, i, o) in sizes.items()})
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan: dict[str, ParallelStyle] = {
        name: ColwiseParallel() if kind == "column" else RowwiseParallel()
        for name, (kind, _, _) in sizes.items()
    }
    parallelize_module(layers, mesh, plan)
    return layers


def fairscale(sizes: Sizes) -> nn.ModuleDict:
    """fairscale's model-parallel layers."""
    from fairscale.nn.model_parallel import initialize
    from fairscale.nn.model_parallel.layers import ColumnParallelLinear, RowParallelLinear

    if not initialize.model_parallel_is_initialized():
        initialize.initialize_model_parallel(dist.get_world_size())
    return nn.ModuleDict(
        {
            name: ColumnParallelLinear(i, o, gather_output=False)
            if kind == "column"
            else RowParallelLinear(i, o, input_is_parallel=True)
            for name, (kind, i, o) in sizes.items()
        }
    )


def megatron_core(sizes: Sizes) -> nn.ModuleDict:
    """NVIDIA's megatron-core."""
    from megatron.core import ModelParallelConfig, parallel_state
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear

    n = dist.get_world_size()
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=n)
    config = ModelParallelConfig(tensor_model_parallel_size=n, use_cpu_initialization=True)
    common = {
        "config": config,
        "init_method": nn.init.zeros_,
        "bias": True,
        "tp_group": parallel_state.get_tensor_model_parallel_group(),
    }
    return nn.ModuleDict(
        {
            name: ColumnParallelLinear(i, o, gather_output=False, **common)
            if kind == "column"
            else RowParallelLinear(i, o, input_is_parallel=True, skip_bias_add=False, **common)
            for name, (kind, i, o) in sizes.items()
        }
    )


def deepspeed(sizes: Sizes) -> nn.ModuleDict:
    """DeepSpeed's AutoTP layers, which cut a whole `nn.Linear`."""
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    import deepspeed as package
    from deepspeed.module_inject.layers import LinearAllreduce, LinearLayer, set_autotp_mode

    # Its shared-memory all-reduce needs a C++ compiler at run time; here all go over gloo.
    package.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    package.comm.init_distributed("gloo", verbose=False)
    set_autotp_mode(training=True)
    group = dist.group.WORLD
    return nn.ModuleDict(
        {
            name: (LinearLayer if kind == "column" else LinearAllreduce)(nn.Linear(i, o), group)
            for name, (kind, i, o) in sizes.items()
        }
    )


PEERS: dict[str, Maker] = {
    "DTensor": dtensor,
    "fairscale": fairscale,
    "megatron-core": megatron_core,
    "DeepSpeed": deepspeed,
}


class PeerMLP(nn.Module):
    """A peer's two layers around GeLU."""

    def __init__(self, config: GPTConfig, maker: Maker) -> None:
        super().__init__()
        h = config.hidden_size
        self.layers = maker({"up": ("column", h, 4 * h), "down": ("row", 4 * h, h)})

    def forward(self, x: Tensor) -> Tensor:
        return _call(self.layers["down"], F.gelu(_call(self.layers["up"], x), approximate="tanh"))


class PeerBlock(nn.Module):
    """Our block with a peer's four linear layers in it."""

    def __init__(self, config: GPTConfig, maker: Maker) -> None:
        super().__init__()
        h = config.hidden_size
        self.heads = config.num_heads // dist.get_world_size()
        self.ln1, self.ln2 = nn.LayerNorm(h), nn.LayerNorm(h)
        self.layers = maker(
            {
                "qkv": ("column", h, 3 * h),
                "out": ("row", h, h),
                "up": ("column", h, 4 * h),
                "down": ("row", 4 * h, h),
            }
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = rearrange(
            _call(self.layers["qkv"], self.ln1(x)),
            "b s (three heads d) -> three b heads s d",
            three=3,
            heads=self.heads,
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + _call(self.layers["out"], rearrange(mixed, "b heads s d -> b s (heads d)"))
        inner = F.gelu(_call(self.layers["up"], self.ln2(x)), approximate="tanh")
        output: Tensor = x + _call(self.layers["down"], inner)
        return output


def _call(layer: nn.Module, x: Tensor) -> Tensor:
    y = layer(x)
    output: Tensor = y[0] if isinstance(y, tuple) else y  # megatron-core gives (output, bias)
    return output


def copy_ours(peer: nn.Module, ours: nn.Module) -> None:
    """Our rank's weights into the peer's parameters of this rank."""
    source = dict(ours.named_parameters())
    with torch.no_grad():
        for name, parameter in peer.named_parameters():
            kept = name.replace("layers.", "")
            for part in ("qkv", "out"):
                kept = kept.replace(f"{part}.", f"attention.{part}.")
            if isinstance(ours, ParallelBlock):
                for part in ("up", "down"):
                    kept = kept.replace(f"{part}.", f"mlp.{part}.")
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            local.copy_(source[kept].reshape(local.shape))


def make_all(kind: str, config: GPTConfig) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """Ours and every peer that can be had here, with equal weights, and why others can't."""
    group = dist.group.WORLD
    ours: nn.Module = (ParallelMLP if kind == "MLP" else ParallelBlock)(config, group=group)
    full = {}
    generator = torch.Generator().manual_seed(0)
    for name, c in _whole_shapes(ours).items():
        offset = 1.0 if "ln" in name and name.endswith("weight") else 0.0
        full[name] = offset + 0.02 * torch.randn(c, generator=generator)
    load_full_state_dict(ours, full)
    modules, missing = {"ours": ours}, {}
    for name, maker in PEERS.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                peer = (PeerMLP if kind == "MLP" else PeerBlock)(config, maker)
        except ImportError as error:
            missing[name] = str(error)
            continue
        copy_ours(peer, ours)
        modules[name] = peer
    return modules, missing


def _whole_shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    state = module.state_dict()
    return {name: c.full_shape(state[name]) for name, c in cuts(module).items()}
