"""Causal self-attention on one device: fused Q/K/V, then SDPA, then the output projection."""

from __future__ import annotations

import math

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from .config import GPTConfig
from .dropout import Dropout, DropoutFunction
from .weights import dotted, fill, linear


class Attention(nn.Module):
    """Multi-head causal self-attention: [b, s, h] -> [b, s, h] (paper, section 2.2).

    Without dropout, or on a GPU, `scaled_dot_product_attention` does the work. The explicit path
    is the same function term by term. It is taken when a callable `dropout` must see the weights
    (SDPA never shows them), and for dropout on a CPU, where SDPA has no fused kernel and draws
    its masks slowly.
    """

    def __init__(
        self,
        config: GPTConfig,
        *,
        seed: int = 0,
        name: str = "attention",
        dropout: DropoutFunction | None = None,
    ) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.num_heads = config.num_heads
        self.qkv = FusedQKV(hidden, seed=seed, name=dotted(name, "qkv"))
        self.out = linear(
            hidden, hidden, std=residual_std(config), seed=seed, name=dotted(name, "out")
        )
        self.dropout = Dropout(config.dropout, name, dropout)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = rearrange(
            self.qkv(x), "b s (three heads d) -> three b heads s d", three=3, heads=self.num_heads
        )
        if self.dropout.active and (self.dropout.function or x.device.type == "cpu"):
            mixed = self.dropout(attention_scores(q, k)) @ v
        else:
            p = self.dropout.p if self.dropout.active else 0.0
            mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        output: Tensor = self.out(rearrange(mixed, "b heads s d -> b s (heads d)"))
        return output


class FusedQKV(nn.Module):
    """Q, K and V in one GEMM: [b, s, h] -> [b, s, 3h]; weight [3, h, h], bias [3, h].

    The leading 3 keeps the three matrices apart. Step 3 gives each rank some heads by cutting
    dim 1; had they been stacked to [3h, h], the same cut would hand rank 0 all of Q.
    """

    def __init__(self, hidden: int, *, seed: int, name: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3, hidden, hidden))
        self.bias = nn.Parameter(torch.zeros(3, hidden))
        fill(self.weight, dotted(name, "weight"), 0.02, seed)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.flatten(0, 1), self.bias.flatten())


# exercise 1.1
def attention_scores(q: Tensor, k: Tensor) -> Tensor:
    """Causal attention weights of each query: softmax(q kᵀ / √d) over the keys up to its own.

    q, k: [b, heads, s, d]. Returns [b, heads, s, s] in q's dtype; a row sums to one and is zero
    right of the diagonal.

    The future is masked with -inf, in float32 or better: -1e10 overflows float16 and -1e4 can be
    larger than a real score. A row never masks its own key, so none is all -inf (NaN).
    """
    s = q.size(-2)
    # q is scaled before the product, which float16 could not always hold unscaled.
    scores = (q / math.sqrt(q.size(-1))) @ k.transpose(-2, -1)
    scores = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    future = torch.full((s, s), -math.inf, dtype=scores.dtype, device=q.device).triu(1)
    return (scores + future).softmax(dim=-1).to(q.dtype)


def residual_std(config: GPTConfig) -> float:
    """Std of a projection that ends in the residual stream: 0.02 / √(2 · layers).

    The stream is a sum of 2 · layers such terms; scaled so, its variance does not grow with depth.
    """
    return 0.02 / math.sqrt(2 * config.num_layers)
