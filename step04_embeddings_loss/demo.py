"""`make demo-step4`: the loss of logits that are spread over ranks, what it sends, its gradient.

Eight ranks hold the logits of 8,192 tokens over 1,024 words. The gradient of one token is shown on
the rank that has its target and on one that doesn't.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from step02_mlp_parallel import record_collectives, run_ranks

from .cross_entropy import vocab_parallel_cross_entropy

RANKS, TOKENS, VOCABULARY = 8, 8192, 1024


def loss_and_gradient() -> tuple[float, int, float, float]:
    """(loss, bytes sent, this rank's sum of the first token's gradient, its smallest entry)."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(TOKENS, VOCABULARY, generator=generator)
    targets = torch.randint(VOCABULARY, (TOKENS,), generator=generator)
    own = logits.chunk(RANKS, dim=1)[dist.get_rank()].clone().requires_grad_()
    with record_collectives() as ledger:
        loss = vocab_parallel_cross_entropy(own, targets, dist.group.WORLD, vocab_size=VOCABULARY)
        loss.backward()  # type: ignore[no-untyped-call]
    assert own.grad is not None
    first = own.grad[0] * TOKENS  # of that token's own loss
    sent = sum(entry.nbytes for entry in ledger)
    return loss.item(), sent, float(first.sum()), float(first.min())


if __name__ == "__main__":
    rows = run_ranks(loss_and_gradient, RANKS)
    gathered = TOKENS * VOCABULARY * 4
    same = len({row[0] for row in rows}) == 1
    print(f"loss {rows[0][0]:.4f}, the same to the bit on all ranks: {same}")
    print(f"a rank puts {rows[0][1]:,} bytes into all-reduces; the logits are {gathered:,} bytes")
    print("gradient of the first token's logits, on each rank:")
    for rank, (_, _, total, smallest) in enumerate(rows):
        has = "   <- its target is here" if smallest < 0 else ""
        print(f"  rank {rank}: sum {total:+.4f}, smallest entry {smallest:+.4f}{has}")
