"""The unpartitioned layer of a BERT: attention both ways, with padding, and either norm order.

Written apart from step 3's parallel layer, which is proved against it; what they share is the
order of the parts, `block`.
"""

from __future__ import annotations

import math

import torch
from einops import rearrange
from torch import Tensor, nn

from step01_single_gpu.attention import FusedQKV, residual_std
from step01_single_gpu.block import MLP
from step01_single_gpu.dropout import Dropout, DropoutFunction
from step01_single_gpu.weights import dotted, linear
from step03_attention_parallel.block import block

from .config import BertConfig


class Block(nn.Module):
    """One layer in the order that `config.norm` says: [b, s, h] -> [b, s, h].

    Names, sites of dropout and start of the weights are those of step 1's block.
    """

    def __init__(
        self,
        config: BertConfig,
        *,
        seed: int = 0,
        name: str = "",
        dropout: DropoutFunction | None = None,
    ) -> None:
        super().__init__()
        self.norm = config.norm
        self.ln1 = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.attention = Attention(
            config, seed=seed, name=dotted(name, "attention"), dropout=dropout
        )
        self.dropout1 = Dropout(config.dropout, dotted(name, "attention_residual"), dropout)
        self.ln2 = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.mlp = MLP(config, seed=seed, name=dotted(name, "mlp"))
        self.dropout2 = Dropout(config.dropout, dotted(name, "mlp_residual"), dropout)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """`padding_mask` [b, s] bool, True = a real token."""
        return block(
            x,
            self.ln1,
            lambda y: self.dropout1(self.attention(y, padding_mask)),
            self.ln2,
            lambda y: self.dropout2(self.mlp(y)),
            self.norm,
        )


class Attention(nn.Module):
    """Multi-head attention to all real tokens, before and behind: [b, s, h] -> [b, s, h]."""

    def __init__(
        self,
        config: BertConfig,
        *,
        seed: int = 0,
        name: str = "attention",
        dropout: DropoutFunction | None = None,
    ) -> None:
        super().__init__()
        h, std = config.hidden_size, residual_std(config)
        self.num_heads = config.num_heads
        self.qkv = FusedQKV(h, seed=seed, name=dotted(name, "qkv"))
        self.out = linear(h, h, std=std, seed=seed, name=dotted(name, "out"))
        self.dropout = Dropout(config.dropout, name, dropout)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        q, k, v = rearrange(
            self.qkv(x), "b s (three heads d) -> three b heads s d", three=3, heads=self.num_heads
        )
        mixed = self.dropout(attention_weights(q, k, padding_mask)) @ v
        output: Tensor = self.out(rearrange(mixed, "b heads s d -> b s (heads d)"))
        return output


def attention_weights(q: Tensor, k: Tensor, padding_mask: Tensor | None) -> Tensor:
    """softmax(q kᵀ / √d) over the real tokens: q, k [b, heads, s, d] -> [b, heads, s, s].

    Only keys are masked. A mask of queries too (the outer product of the padding mask with itself)
    leaves rows of padding without any key: NaN. In a row that is padding alone there is no key
    either; its weights are zero.
    """
    scores = (q / math.sqrt(q.size(-1))) @ k.transpose(-2, -1)
    scores = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    if padding_mask is not None:
        scores = scores.masked_fill(~padding_mask[:, None, None, :], -math.inf)
    limits = torch.finfo(scores.dtype)
    largest = scores.detach().amax(-1, keepdim=True).clamp(min=limits.min)  # -inf - -inf is NaN
    exponentials = (scores - largest).exp()
    return (exponentials / exponentials.sum(-1, keepdim=True).clamp(min=limits.tiny)).to(q.dtype)
