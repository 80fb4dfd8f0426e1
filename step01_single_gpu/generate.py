"""Writing text with a language model: one token at a time, drawn from what the model expects."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

# (logits [b, v], temperature, top_k, generator) -> ids [b, 1]
Draw = Callable[[Tensor, float, int | None, torch.Generator | None], Tensor]


def generate(
    next_logits: Callable[[Tensor], Tensor],
    tokens: Tensor,
    max_new_tokens: int,
    *,
    seq_length: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
    draw: Draw | None = None,
) -> Tensor:
    """Append `max_new_tokens` drawn tokens to `tokens` [b, s]; returns [b, s + new].

    `next_logits` maps the context [b, ≤ seq_length] to logits [b, v], and `draw` those to tokens
    [b, 1] (None: `draw_token`; step 4 brings one for logits that are spread over ranks). Past
    `seq_length` the context is the *last* seq_length tokens: the window slides, and the positions
    start at zero again. Temperature 0 takes the most likely token. Raises ValueError for an empty
    prompt, a negative temperature or a top_k below 1; a top_k above the vocabulary means all of it.
    """
    if tokens.dim() != 2 or tokens.size(1) == 0:
        raise ValueError(f"the prompt has shape {list(tokens.shape)}; give [b, s] with s ≥ 1")
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens is {max_new_tokens}; it must be at least 0")
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature is {temperature}; it must be at least 0, and finite")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k is {top_k}; it must be at least 1, or None for all tokens")
    tokens = tokens.long()  # a narrow type may not hold the ids that are drawn
    for _ in range(max_new_tokens):
        logits = next_logits(tokens[:, -seq_length:])
        chosen = (draw or draw_token)(logits, temperature, top_k, generator)
        tokens = torch.cat([tokens, chosen], dim=1)
    return tokens


def draw_token(
    logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None
) -> Tensor:
    """One token id a row, [b, 1], among the `top_k` most likely of logits [b, v] (ties with the
    last of them count in).

    The largest of logit / temperature + noise, with Gumbel's noise, is a draw from
    softmax(logit / temperature). Each token's noise depends on its id alone, so step 4's ranks,
    which hold a part of the vocabulary each, draw the same token; and no temperature overflows.
    """
    values = logits.double()
    scores = values
    if temperature > 0:
        scores = perturbed(values, temperature, gumbel_noise(values, values.size(-1), generator))
    if top_k is not None and top_k < values.size(-1):
        least = values.topk(top_k).values[:, -1:]
        scores = scores.masked_fill(values < least, -torch.inf)
    return scores.argmax(-1, keepdim=True)


def perturbed(values: Tensor, temperature: float, noise: Tensor) -> Tensor:
    """logit / temperature + noise, or that times the temperature, which has the same order:
    whichever can't overflow."""
    return values + temperature * noise if temperature < 1 else values / temperature + noise


def gumbel_noise(like: Tensor, vocab_size: int, generator: torch.Generator | None) -> Tensor:
    """[b, vocab_size] float64 for the rows of `like`, drawn where the generator lives."""
    device = like.device if generator is None else generator.device
    noise = torch.empty(like.size(0), vocab_size, dtype=torch.float64, device=device)
    return -noise.exponential_(generator=generator).log_().to(like.device)
