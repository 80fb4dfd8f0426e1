"""Attention with its heads spread over the ranks (paper, section 3 and figure 3b).

Heads don't talk to one another until the output projection, so each rank computes some of them,
start to end. Q, K and V are column-parallel, the projection is row-parallel: f in front, g behind,
as in the MLP.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import ClassVar

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from step01_single_gpu.attention import residual_std
from step01_single_gpu.config import GPTConfig
from step01_single_gpu.weights import dotted, draw_weight
from step02_mlp_parallel.linear import RowParallelLinear, column_parallel
from step02_mlp_parallel.sharding import ParallelModule, check_divides, cut, marked
from step02_mlp_parallel.wire import Group, group_size

from .rng import RNGTracker, drop, fitting


class ParallelAttention(ParallelModule):
    """Multi-head self-attention over the ranks of `group`: [b, s, h] -> [b, s, h], all replicated.

    Each rank has heads/n heads, [b, heads/n, s, d]. Wire: forward one all-reduce of b·s·h numbers
    (g, in `out`), backward one (f, before `qkv`). Dropout on the attention weights draws from
    `rng`'s sharded stream, at site `name`. Without dropout, or on a GPU in paper mode, SDPA does
    the work; else the explicit path (see step 1's attention.py).
    Raises ValueError if the ranks don't divide num_heads.
    """

    def __init__(
        self,
        config: GPTConfig,
        *,
        group: Group = None,
        rng: RNGTracker | None = None,
        causal: bool = True,
        seed: int = 0,
        name: str = "attention",
    ) -> None:
        super().__init__()
        check_divides(config.num_heads, group, "num_heads")
        h, std = config.hidden_size, residual_std(config)
        self.heads = config.num_heads // group_size(group)
        self.group, self.rng, self.causal = group, rng, causal
        self.p, self.site = config.dropout, name
        self.qkv = ParallelQKV(h, group=group, seed=seed, name=dotted(name, "qkv"))
        self.out = RowParallelLinear(
            h, h, group=group, std=std, seed=seed, name=dotted(name, "out")
        )

    # exercise 3.1
    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """`padding_mask` [b, s] bool, True = a real token: no query looks at the others."""
        q, k, v = rearrange(
            self.qkv(x), "b s (three heads d) -> three b heads s d", three=3, heads=self.heads
        )
        mixed = self._attend(q, k, v, keep_mask(x, padding_mask, self.causal))
        output: Tensor = self.out(rearrange(mixed, "b heads s d -> b s (heads d)"))
        return output

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        """[b, heads/n, s, d] of this rank's heads. `keep` None: SDPA's own causal or full mask."""
        if not self.training or self.p == 0.0:
            causal = self.causal and keep is None
            return F.scaled_dot_product_attention(q, k, v, attn_mask=keep, is_causal=causal)
        if q.device.type == "cpu" or (self.rng is not None and self.rng.mode == "invariant"):
            keep = _causal(q) if keep is None and self.causal else keep
            weights = masked_softmax((q / math.sqrt(q.size(-1))) @ k.transpose(-2, -1), keep)
            weights = weights.to(q.dtype)
            return drop(weights, self.p, self.site, self.rng, self.group, sharded=True) @ v
        alone = self.rng is None and group_size(self.group) == 1
        with nullcontext() if alone else fitting(self.rng, self.group, self.p).sharded():
            causal = self.causal and keep is None
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=keep, dropout_p=self.p, is_causal=causal
            )


class ParallelQKV(ParallelModule):
    """Q, K and V of this rank's heads in one GEMM: [b, s, h] -> [b, s, 3h/n].

    weight [3, h/n, h] and bias [3, h/n] are cut along dim 1, inside each of the three, where heads
    are contiguous. Stacked to [3h, h] and cut in two, rank 0 would get all of Q and half of K.
    """

    shard_dims: ClassVar[dict[str, int | None]] = {"weight": 1, "bias": 1}

    def __init__(self, hidden: int, *, group: Group, seed: int, name: str) -> None:
        super().__init__()
        self.group, part = group, hidden // group_size(group)
        whole_shape = (3, hidden, hidden)
        self.weight = marked(nn.Parameter(torch.empty(3, part, hidden)), 1, whole_shape)
        self.bias = marked(nn.Parameter(torch.zeros(3, part)), 1, (3, hidden))
        if not self.weight.is_meta:
            whole = draw_weight(dotted(name, "weight"), whole_shape, 0.02, seed)
            with torch.no_grad():
                self.weight.copy_(cut_qkv(whole, group))

    def forward(self, x: Tensor) -> Tensor:
        return column_parallel(x, self.weight.flatten(0, 1), self.bias.flatten(), self.group)


# exercise 3.2
def cut_qkv(full: Tensor, group: Group) -> Tensor:
    """This rank's heads of a whole Q/K/V weight [3, h, h] or bias [3, h]: [3, h/n, …]."""
    return cut(full, 1, group)


def keep_mask(x: Tensor, padding_mask: Tensor | None, causal: bool) -> Tensor | None:
    """What each query may look at: bool, broadcast to [b, heads, s, s]; None without padding.

    SDPA takes a mask or `is_causal`, not both, so they are merged here. Raises ValueError for a
    mask that isn't bool [b, s].
    """
    if padding_mask is None:
        return None
    if padding_mask.dtype != torch.bool or padding_mask.shape != x.shape[:2]:
        raise ValueError(
            f"padding_mask is {padding_mask.dtype} {list(padding_mask.shape)}; it must be "
            f"torch.bool {list(x.shape[:2])}, [batch, sequence], True where a token is real"
        )
    keep = padding_mask[:, None, None, :]
    return keep & _causal(x) if causal else keep


def masked_softmax(scores: Tensor, keep: Tensor | None) -> Tensor:
    """Softmax over the last dim among the entries that `keep` marks True, in float32 or better.

    A row that keeps nothing is all zeros, forward and backward, as in SDPA: -inf would make it
    NaN, and a merely large negative number would average what is masked.
    """
    wide = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    if keep is None:
        return wide.softmax(-1)
    hidden, lowest = ~keep, torch.finfo(wide.dtype).min
    return wide.masked_fill(hidden, lowest).softmax(-1).masked_fill(hidden, 0.0)


def _causal(x: Tensor) -> Tensor:
    """[s, s] bool: a query keeps its own position and those before."""
    s = x.size(-2)
    return torch.ones(s, s, dtype=torch.bool, device=x.device).tril()
