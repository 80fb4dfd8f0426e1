"""The whole BERT over the ranks: GPT-2's cuts, with two small heads that every rank has whole."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from step01_single_gpu.loss import cross_entropy, reduce_losses, valid_targets
from step01_single_gpu.weights import embedding, linear
from step02_mlp_parallel.linear import column_parallel
from step02_mlp_parallel.sharding import ParallelModule, marked
from step02_mlp_parallel.wire import Group
from step03_attention_parallel.block import ParallelBlock
from step03_attention_parallel.rng import RNGTracker, drop
from step04_embeddings_loss.cross_entropy import vocab_parallel_cross_entropy
from step04_embeddings_loss.embedding import VocabParallelEmbedding

from .config import BertConfig
from .inputs import check_inputs, check_loss, no_segments


class ParallelBERT(ParallelModule):
    """BERT over the ranks of `group`; names and whole shapes are those of `BERT`.

    Cut: the blocks as GPT-2's, the vocabulary of the embedding and, since it is the same matrix,
    of the decoder, with the decoder's bias. Replicated: positions, segments, norms, the dense layer
    of the word head, pooler and order head; they see whole hidden states, so their gradients are
    whole on every rank without a word to the others.
    Each rank has room for a multiple of `vocab_multiple` words; no result depends on it. `rng` is
    needed for dropout on several ranks; `recompute` keeps one tensor a block.
    Wire: the embedding's g; 4 all-reduces a block, as in GPT-2; 3 numbers for each *predicted*
    word, and f's backward in front of the decoder, h numbers for each.
    Raises ValueError if the ranks don't divide num_heads or 4 · hidden_size.
    """

    shard_dims: ClassVar[dict[str, int | None]] = {"mlm_bias": 0}

    def __init__(
        self,
        config: BertConfig,
        *,
        group: Group = None,
        rng: RNGTracker | None = None,
        recompute: bool = False,
        seed: int = 0,
        vocab_multiple: int = 128,
        heads: bool = True,
    ) -> None:
        super().__init__()
        self.config, self.group, self.rng = config, group, rng
        v, s, h, eps = config.vocab_size, config.seq_length, config.hidden_size, config.norm_eps
        self.tokens = VocabParallelEmbedding(
            v, h, group=group, multiple=vocab_multiple, seed=seed, name="tokens"
        )
        self.positions = embedding(s, h, std=0.02, seed=seed, name="positions")
        self.segments = embedding(config.num_segments, h, std=0.02, seed=seed, name="segments")
        if config.norm == "original":
            self.ln_embedding = nn.LayerNorm(h, eps=eps)
        self.blocks = nn.ModuleList(
            ParallelBlock(
                config,
                group=group,
                rng=rng,
                recompute=recompute,
                causal=False,
                norm=config.norm,
                seed=seed,
                name=f"blocks.{i}",
            )
            for i in range(config.num_layers)
        )
        if config.norm == "rearranged":
            self.ln = nn.LayerNorm(h, eps=eps)
        self.pooler = linear(h, h, std=0.02, seed=seed, name="pooler")
        if heads:
            self.order = linear(h, 2, std=0.02, seed=seed, name="order")
            self.mlm_dense = linear(h, h, std=0.02, seed=seed, name="mlm_dense")
            self.ln_mlm = nn.LayerNorm(h, eps=eps)
            bias = nn.Parameter(torch.zeros(self.tokens.weight.size(0)))
            self.mlm_bias, self.true_sizes = marked(bias, 0, (v,)), {"mlm_bias": v}

    def forward(
        self, tokens: Tensor, segments: Tensor | None = None, padding_mask: Tensor | None = None
    ) -> Tensor:
        """This rank's logits [b, s, padded_v/n]: those of `self.tokens.words`, then columns of
        padding, which mean nothing. Arguments and errors as in `hidden`."""
        return self.mlm(self.hidden(tokens, segments, padding_mask))

    def hidden(
        self, tokens: Tensor, segments: Tensor | None = None, padding_mask: Tensor | None = None
    ) -> Tensor:
        """The last hidden states [b, s, h], the same on all ranks. Arguments and errors as in
        `BERT.hidden`; they are checked before anything is sent."""
        check_inputs(tokens, segments, padding_mask, self.config)
        x = self.tokens(tokens) + self.positions.weight[: tokens.size(1)]
        x = x + self.segments(no_segments(tokens) if segments is None else segments)
        if self.config.norm == "original":
            x = self.ln_embedding(x)
        p = self.config.dropout
        if self.training and p > 0.0:
            x = drop(x, p, "embedding", self.rng, self.group, sharded=False)
        for block in self.blocks:
            x = block(x, padding_mask)
        output: Tensor = self.ln(x) if self.config.norm == "rearranged" else x
        return output

    def pooled(self, hidden: Tensor) -> Tensor:
        """tanh of a dense layer over the first token: [b, s, h] -> [b, h], the same on all."""
        return torch.tanh(self.pooler(hidden[:, 0]))

    def mlm(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., h] to this rank's logits [..., padded_v/n]."""
        approximate = "tanh" if self.config.gelu == "tanh" else "none"
        x = self.ln_mlm(F.gelu(self.mlm_dense(hidden), approximate=approximate))
        return mlm_logits(x, self.tokens.weight, self.mlm_bias, self.group)

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
        """`BERT.loss`, the same on all ranks. The word head sees the predicted places alone: one
        token in seven, so its logits, the largest tensor of all, are a seventh too."""
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
        words = self.word_loss(
            hidden, targets, ignore_index=ignore_index, reduction=reduction, divisor=divisor
        )
        if order is None:
            return words
        return words + self.order_loss(
            hidden, order, ignore_index=ignore_index, reduction=reduction, divisor=order_divisor
        )

    def word_loss(
        self,
        hidden: Tensor,
        targets: Tensor,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        divisor: float | Tensor | None = None,
    ) -> Tensor:
        """The part of `loss` that is about masked words, from the last hidden states."""
        asked = valid_targets(targets, self.config.vocab_size, ignore_index)
        words = vocab_parallel_cross_entropy(
            self.mlm(hidden[asked]),  # [t, padded_v/n]; t is the same on all ranks
            targets[asked],
            self.group,
            vocab_size=self.config.vocab_size,
            ignore_index=ignore_index,
            reduction="none",
            allow_empty_ranks=True,  # a small vocabulary padded to 128 a rank
        )
        if reduction == "none":
            return words.new_zeros(targets.shape).masked_scatter(asked, words)
        return reduce_losses(words, asked, reduction, divisor)

    def order_loss(
        self,
        hidden: Tensor,
        order: Tensor,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        divisor: float | Tensor | None = None,
    ) -> Tensor:
        """The part of `loss` that is about sentence order; nothing is sent."""
        return cross_entropy(
            self.order(self.pooled(hidden)),
            order,
            ignore_index=ignore_index,
            reduction=reduction,
            divisor=divisor,
        )


# exercise 6.4
def mlm_logits(hidden: Tensor, weight: Tensor, bias: Tensor, group: Group = None) -> Tensor:
    """Logits of this rank's words: hidden [..., h], the same on all ranks -> [..., padded_v/n].

    weight [padded_v/n, h], the token embedding's rows, and bias [padded_v/n] with them: each rank
    adds the bias of its own words, so nothing is added twice. The gradient of hidden is a sum over
    all words, hence over all ranks: f stands in front. Wire: forward nothing, backward an
    all-reduce of [..., h].
    """
    return column_parallel(hidden, weight, bias, group)
