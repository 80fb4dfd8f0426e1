"""The whole GPT-2 over the ranks: step 1's, with every large matrix cut (paper, section 3)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from step01_single_gpu.config import GPTConfig
from step01_single_gpu.generate import generate
from step01_single_gpu.model import check_tokens, in_eval_mode
from step01_single_gpu.weights import embedding
from step02_mlp_parallel.linear import column_parallel
from step02_mlp_parallel.sharding import ParallelModule
from step02_mlp_parallel.wire import Group
from step03_attention_parallel.block import ParallelBlock
from step03_attention_parallel.rng import RNGTracker, drop

from .draw import agreed_generator, draw_parallel
from .embedding import VocabParallelEmbedding
from .fused_loss import vocab_parallel_linear_cross_entropy


class ParallelGPT(ParallelModule):
    """GPT-2 over the ranks of `group`; names and whole shapes are those of step 1's `GPT`.

    The vocabulary is cut for the embedding and, since the output layer *is* the embedding (one
    parameter, so nothing can untie it), for logits and loss too. Positions, norms and dropout are
    replicated. Each rank has room for a multiple of `vocab_multiple` words; no result depends on
    it. `rng` is needed for dropout on several ranks; `recompute` keeps one tensor a block.
    Wire: the embedding's g; 4 all-reduces a block; 3 numbers a token for the loss; f's backward at
    the output layer.
    Raises ValueError if the ranks don't divide num_heads or 4 · hidden_size.
    """

    def __init__(
        self,
        config: GPTConfig,
        *,
        group: Group = None,
        rng: RNGTracker | None = None,
        recompute: bool = False,
        seed: int = 0,
        vocab_multiple: int = 128,
    ) -> None:
        super().__init__()
        self.config, self.group, self.rng = config, group, rng
        v, s, h = config.vocab_size, config.seq_length, config.hidden_size
        self.tokens = VocabParallelEmbedding(
            v, h, group=group, multiple=vocab_multiple, seed=seed, name="tokens"
        )
        self.positions = embedding(s, h, std=0.02, seed=seed, name="positions")
        self.blocks = nn.ModuleList(
            ParallelBlock(
                config, group=group, rng=rng, recompute=recompute, seed=seed, name=f"blocks.{i}"
            )
            for i in range(config.num_layers)
        )
        self.ln = nn.LayerNorm(h, eps=config.norm_eps)

    def forward(self, tokens: Tensor) -> Tensor:
        """This rank's logits [b, s, padded_v/n] for tokens [b, s]: those of `self.tokens.words`,
        then columns of padding, which mean nothing.

        Raises ValueError for more than `seq_length` tokens or an id outside the vocabulary.
        """
        return self.output(self.hidden(tokens))

    def hidden(self, tokens: Tensor) -> Tensor:
        """The last hidden states [b, s, h], the same on all ranks."""
        check_tokens(tokens, self.config)
        x = self.tokens(tokens) + self.positions.weight[: tokens.size(1)]
        p = self.config.dropout
        if self.training and p > 0.0:
            x = drop(x, p, "embedding", self.rng, self.group, sharded=False)
        for block in self.blocks:
            x = block(x)
        output: Tensor = self.ln(x)
        return output

    def output(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., h] to this rank's logits [..., padded_v/n]; f stands in front."""
        return column_parallel(hidden, self.tokens.weight, None, self.group)

    def loss(
        self,
        tokens: Tensor,
        targets: Tensor,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        divisor: float | Tensor | None = None,
    ) -> Tensor:
        """Cross-entropy of `targets` [b, s] given `tokens` [b, s], the same on all ranks; never
        holds all logits of the rank. "none" gives [b, s]."""
        if targets.shape != tokens.shape:
            raise ValueError(
                f"targets {list(targets.shape)} and tokens {list(tokens.shape)} differ in shape"
            )
        return vocab_parallel_linear_cross_entropy(
            self.hidden(tokens),
            self.tokens.weight,
            targets,
            self.group,
            vocab_size=self.config.vocab_size,
            ignore_index=ignore_index,
            reduction=reduction,
            divisor=divisor,
            allow_empty_ranks=True,  # a small vocabulary padded to 128 a rank
        )

    def generate(
        self,
        tokens: Tensor,
        max_new_tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """`tokens` [b, s] continued: [b, s + max_new_tokens], the same on all ranks, and what step
        1's GPT writes with the same generator. For each token a rank sends its `top_k` best logits
        and one candidate, not its vocabulary. Without a generator the ranks agree on one."""
        words, group = self.tokens.words, self.group
        generator = agreed_generator(generator, group, tokens.device)
        with in_eval_mode(self), torch.no_grad():
            return generate(
                lambda context: self.output(self.hidden(context)[:, -1]),
                tokens,
                max_new_tokens,
                seq_length=self.config.seq_length,
                temperature=temperature,
                top_k=top_k,
                generator=generator,
                draw=partial(draw_parallel, words=words, group=group),
            )
