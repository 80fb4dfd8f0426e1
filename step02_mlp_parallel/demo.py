"""`make demo-step2`, or `torchrun --nproc-per-node 2 -m step02_mlp_parallel.demo`.

The same function under `run_ranks` and under torchrun, on gloo or NCCL: a parallel MLP beside the
unpartitioned one, and what it sent.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from step01_single_gpu.block import MLP
from step01_single_gpu.config import GPTConfig

from .launch import join_torchrun, run_ranks
from .ledger import record_collectives
from .mlp import ParallelMLP
from .sharding import load_full_state_dict


def compare(device: str) -> str:
    """What this rank holds and sends, and how far its result is from the whole MLP's."""
    config = GPTConfig(9, 8, hidden_size=64, num_layers=2, num_heads=4)
    group = dist.group.WORLD
    whole = MLP(config).double().to(device)
    parallel = ParallelMLP(config, group=group).double().to(device)
    load_full_state_dict(parallel, whole.state_dict())
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 8, 64, dtype=torch.float64, generator=generator).to(device).requires_grad_()
    with record_collectives() as ledger:
        y = parallel(x)
        y.square().sum().backward()
    sent = " then ".join(f"{entry.op} of {list(entry.shape)}" for entry in ledger)
    expected = whole(x)
    error = ((y - expected).abs().max() / expected.abs().max()).item()
    verdict = "equal to" if error < 1e-12 else f"WRONG, off by {error:.1g} from"
    return (
        f"rank {dist.get_rank()} of {dist.get_world_size()}: A {list(parallel.up.weight.shape)}, "
        f"B {list(parallel.down.weight.shape)}; sent {sent}; {verdict} the unpartitioned MLP"
    )


if __name__ == "__main__":
    if "LOCAL_RANK" in os.environ:
        print(compare(str(join_torchrun())), flush=True)
        dist.destroy_process_group()
    else:
        print("\n".join(run_ranks(compare, 2, "cpu")))
