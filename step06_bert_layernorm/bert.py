"""The unpartitioned BERT that the parallel one is proved against."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from step01_single_gpu.dropout import Dropout, DropoutFunction
from step01_single_gpu.loss import cross_entropy
from step01_single_gpu.weights import embedding, linear

from .block import Block
from .config import BertConfig
from .inputs import check_inputs, check_loss, no_segments


class BERT(nn.Module):
    """BERT (paper, section 5.3): three embeddings, a stack of blocks, and two heads.

    `mlm` guesses masked words: dense, GeLU, norm, then a decoder that *is* the token embedding,
    with a bias of its own. `order` tells from the pooled first token whether two pieces of text
    were swapped. In the original norm order the embeddings have a norm, `ln_embedding`, and in the
    rearranged one the last hidden states have, `ln`. Weights start as GPT-2's do.
    `dropout(x, p, site)` replaces torch's dropout. With `heads=False` there are neither `mlm` nor
    `order`, as fine-tuning wants it: weights without a gradient would only be in the way.
    """

    def __init__(
        self,
        config: BertConfig,
        *,
        seed: int = 0,
        dropout: DropoutFunction | None = None,
        heads: bool = True,
    ) -> None:
        super().__init__()
        self.config = config
        v, s, h, eps = config.vocab_size, config.seq_length, config.hidden_size, config.norm_eps
        self.tokens = embedding(v, h, std=0.02, seed=seed, name="tokens")
        self.positions = embedding(s, h, std=0.02, seed=seed, name="positions")
        self.segments = embedding(config.num_segments, h, std=0.02, seed=seed, name="segments")
        if config.norm == "original":
            self.ln_embedding = nn.LayerNorm(h, eps=eps)
        self.dropout = Dropout(config.dropout, "embedding", dropout)
        self.blocks = nn.ModuleList(
            Block(config, seed=seed, name=f"blocks.{i}", dropout=dropout)
            for i in range(config.num_layers)
        )
        if config.norm == "rearranged":
            self.ln = nn.LayerNorm(h, eps=eps)
        self.pooler = linear(h, h, std=0.02, seed=seed, name="pooler")
        if heads:
            self.order = linear(h, 2, std=0.02, seed=seed, name="order")
            self.mlm_dense = linear(h, h, std=0.02, seed=seed, name="mlm_dense")
            self.ln_mlm = nn.LayerNorm(h, eps=eps)
            self.mlm_bias = nn.Parameter(torch.zeros(v))

    def forward(
        self, tokens: Tensor, segments: Tensor | None = None, padding_mask: Tensor | None = None
    ) -> Tensor:
        """Logits [b, s, v] of the word at each place. Arguments and errors as in `hidden`."""
        return self.mlm(self.hidden(tokens, segments, padding_mask))

    def hidden(
        self, tokens: Tensor, segments: Tensor | None = None, padding_mask: Tensor | None = None
    ) -> Tensor:
        """The last hidden states [b, s, h].

        tokens [b, s] ids; segments [b, s], 0 or 1 (None: all 0); padding_mask [b, s] bool, True =
        a real token (None: all are). What comes out where a token is padding means nothing.
        Raises ValueError for more than `seq_length` tokens, ids outside the vocabulary or the
        segments, and shapes that don't fit.
        """
        check_inputs(tokens, segments, padding_mask, self.config)
        x = self.tokens(tokens) + self.positions.weight[: tokens.size(1)]
        x = x + self.segments(no_segments(tokens) if segments is None else segments)
        if self.config.norm == "original":
            x = self.ln_embedding(x)
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, padding_mask)
        output: Tensor = self.ln(x) if self.config.norm == "rearranged" else x
        return output

    def pooled(self, hidden: Tensor) -> Tensor:
        """tanh of a dense layer over the first token: [b, s, h] -> [b, h]."""
        return torch.tanh(self.pooler(hidden[:, 0]))

    def mlm(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., h] to logits [..., v]."""
        approximate = "tanh" if self.config.gelu == "tanh" else "none"
        x = self.ln_mlm(F.gelu(self.mlm_dense(hidden), approximate=approximate))
        return F.linear(x, self.tokens.weight, self.mlm_bias)

    def loss(
        self,
        tokens: Tensor,
        targets: Tensor,
        *,
        segments: Tensor | None = None,
        padding_mask: Tensor | None = None,
        order: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        divisor: float | Tensor | None = None,
        order_divisor: float | Tensor | None = None,
    ) -> Tensor:
        """Cross-entropy of the masked words plus that of the sentence order.

        targets [b, s]: the word that stood there, `ignore_index` where none is asked for. order
        [b]: 0 as written, 1 swapped, or `ignore_index`; None leaves this part out. Each part is
        reduced by itself, "mean" over its own labels, or "sum" over its own divisor. "none" gives
        the words' losses [b, s]; `order` can't go with it. Raises ValueError for a label that
        doesn't exist.
        """
        check_loss(
            tokens,
            targets,
            order,
            vocab_size=self.config.vocab_size,
            ignore_index=ignore_index,
            reduction=reduction,
            divisor=divisor,
            order_divisor=order_divisor,
        )
        hidden = self.hidden(tokens, segments, padding_mask)
        words = cross_entropy(
            self.mlm(hidden),
            targets,
            ignore_index=ignore_index,
            reduction=reduction,
            divisor=divisor,
        )
        if order is None:
            return words
        swapped = cross_entropy(
            self.order(self.pooled(hidden)),
            order,
            ignore_index=ignore_index,
            reduction=reduction,
            divisor=order_divisor,
        )
        return words + swapped
