"""The unpartitioned GPT-2 that every later step is proved against."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from .block import Block
from .config import GPTConfig
from .dropout import Dropout, DropoutFunction
from .fused_loss import linear_cross_entropy
from .generate import generate
from .loss import check_ids
from .weights import embedding


class GPT(nn.Module):
    """GPT-2 (paper, section 2): embeddings, a stack of blocks, a last norm, tied output layer.

    The output layer *is* the token embedding: one parameter, used at both ends, so no load,
    cast or move can untie it. `dropout(x, p, site)` replaces torch's dropout (see dropout.py).
    `recompute` keeps only each block's input and runs the block again in backward (paper,
    section 4.2): less memory, one more forward, the same numbers bit for bit; a `dropout` callable
    is then called twice and must give the same mask both times.
    Built under `torch.device("meta")` it has shapes and no weights.
    """

    def __init__(
        self,
        config: GPTConfig,
        *,
        seed: int = 0,
        dropout: DropoutFunction | None = None,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        # A stream of random numbers says `stateless = False` of itself (step 3's tracker does).
        owner = getattr(dropout, "__self__", None)
        if recompute and config.dropout > 0.0 and not getattr(owner, "stateless", True):
            raise ValueError(
                "recompute calls dropout twice; this one draws from a stream that moves on, so its "
                "second mask would differ. Use one that depends on its arguments alone, such as "
                'RNGTracker(mode="invariant").dropout'
            )
        self.config, self.recompute = config, recompute
        v, s, h = config.vocab_size, config.seq_length, config.hidden_size
        self.tokens = embedding(v, h, std=0.02, seed=seed, name="tokens")
        self.positions = embedding(s, h, std=0.02, seed=seed, name="positions")
        self.dropout = Dropout(config.dropout, "embedding", dropout)
        self.blocks = nn.ModuleList(
            Block(config, seed=seed, name=f"blocks.{i}", dropout=dropout)
            for i in range(config.num_layers)
        )
        self.ln = nn.LayerNorm(h, eps=config.norm_eps)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [b, s, v] for tokens [b, s].

        Raises ValueError for more than `seq_length` tokens or an id outside the vocabulary.
        """
        return F.linear(self.hidden(tokens), self.tokens.weight)

    def hidden(self, tokens: Tensor) -> Tensor:
        """The last hidden states [b, s, h], which the output layer turns into logits."""
        check_tokens(tokens, self.config)
        x = self.tokens(tokens.long()) + self.positions.weight[: tokens.size(1)]
        x = self.dropout(x)
        for block in self.blocks:
            if self.recompute and torch.is_grad_enabled():
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        output: Tensor = self.ln(x)
        return output

    def loss(
        self,
        tokens: Tensor,
        targets: Tensor,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        divisor: float | Tensor | None = None,
    ) -> Tensor:
        """Cross-entropy of `targets` [b, s] given `tokens` [b, s]; never holds all logits.

        `reduction` and `divisor` as in `loss.reduce_losses`; "none" gives [b, s].
        """
        if targets.shape != tokens.shape:
            raise ValueError(
                f"targets {list(targets.shape)} and tokens {list(tokens.shape)} differ in shape"
            )
        return linear_cross_entropy(
            self.hidden(tokens),
            self.tokens.weight,
            targets,
            ignore_index=ignore_index,
            reduction=reduction,
            divisor=divisor,
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
        """`tokens` [b, s] continued: [b, s + max_new_tokens]. See generate.py."""
        with in_eval_mode(self), torch.no_grad():
            return generate(
                lambda context: F.linear(self.hidden(context)[:, -1], self.tokens.weight),
                tokens,
                max_new_tokens,
                seq_length=self.config.seq_length,
                temperature=temperature,
                top_k=top_k,
                generator=generator,
            )


def check_tokens(tokens: Tensor, config: GPTConfig) -> None:
    """Raise ValueError unless tokens are [b, ≤ seq_length] ids of the vocabulary."""
    if tokens.dim() != 2:
        raise ValueError(f"tokens have shape {list(tokens.shape)}; they must be [b, s]")
    if tokens.size(1) > config.seq_length:
        raise ValueError(
            f"{tokens.size(1)} tokens are more than seq_length {config.seq_length}; "
            "crop the input or build the model with a larger seq_length"
        )
    check_ids(tokens, config.vocab_size, "token")


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """The model without dropout inside the `with`, and afterwards as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
