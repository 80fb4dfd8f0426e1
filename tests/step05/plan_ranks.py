"""What real ranks hold, keep and send, for the planner to be held against."""

from __future__ import annotations

import torch
import torch.distributed as dist

from step01_single_gpu import GPTConfig
from step02_mlp_parallel.ledger import record_collectives
from step03_attention_parallel.block import ParallelBlock
from step03_attention_parallel.memory import saved_bytes
from step03_attention_parallel.rng import RNGTracker
from step04_embeddings_loss.embedding import VocabParallelEmbedding


def parameters(config: GPTConfig) -> int:
    """Parameters of a block and of the token embedding on this rank."""
    modules = [
        ParallelBlock(config, group=dist.group.WORLD),
        VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, group=dist.group.WORLD, multiple=128
        ),
    ]
    return sum(p.numel() for module in modules for p in module.parameters())


def kept_and_sent(config: GPTConfig, batch: int, kinds: list[str]) -> list[tuple[int, int, int]]:
    """For each kind of step, of one block: bytes kept, all-reduces, and bytes reduced."""
    found = []
    for kind in kinds:
        precision, recompute = kind.split()[0], "recompute" in kind
        dtype = torch.bfloat16 if precision == "half" else torch.float32
        rng = RNGTracker(0, tp_rank=dist.get_rank(), tp_size=dist.get_world_size())
        block = ParallelBlock(config, group=dist.group.WORLD, rng=rng, recompute=recompute)
        block = block.to(dtype)
        x = torch.randn(batch, config.seq_length, config.hidden_size).to(dtype).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            kept = saved_bytes(block, x)
            with record_collectives() as ledger:
                y = block(x)
                y.backward(torch.randn_like(y))
        size = 4 if precision == "fp32" else 2
        found.append((kept, len(ledger), sum(size * torch.Size(e.shape).numel() for e in ledger)))
    return found
