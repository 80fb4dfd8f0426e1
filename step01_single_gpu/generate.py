"""Writing text with a language model: one token at a time, drawn from what the model expects."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def generate(
    next_logits: Callable[[Tensor], Tensor],
    tokens: Tensor,
    max_new_tokens: int,
    *,
    seq_length: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Append `max_new_tokens` drawn tokens to `tokens` [b, s]; returns [b, s + new].

    `next_logits` maps the context [b, ≤ seq_length] to logits [b, v]. Past `seq_length` the
    context is the *last* seq_length tokens: the window slides, and the positions start at zero
    again. Temperature 0 takes the most likely token. Raises ValueError for an empty prompt, a
    negative temperature or a top_k below 1; a top_k above the vocabulary means all of it.
    """
    if tokens.dim() != 2 or tokens.size(1) == 0:
        raise ValueError(f"the prompt has shape {list(tokens.shape)}; give [b, s] with s ≥ 1")
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens is {max_new_tokens}; it must be at least 0")
    if temperature < 0:
        raise ValueError(f"temperature is {temperature}; it must be at least 0")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k is {top_k}; it must be at least 1, or None for all tokens")
    for _ in range(max_new_tokens):
        logits = next_logits(tokens[:, -seq_length:])
        chosen = draw_token(logits, temperature, top_k, generator)
        tokens = torch.cat([tokens, chosen.to(tokens.dtype)], dim=1)
    return tokens


def draw_token(
    logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None
) -> Tensor:
    """One token id a row, [b, 1], among the `top_k` most likely of logits [b, v].

    The candidates are sorted before the draw, so that the same generator gives the same token
    however they were collected (in step 4 each rank brings its own).
    """
    k = 1 if temperature == 0 else min(top_k or logits.size(-1), logits.size(-1))
    values, ids = logits.double().topk(k, dim=-1)
    if k == 1:
        return ids
    # The best logit is taken off first: dividing by a tiny temperature must not reach infinity.
    probabilities = ((values - values[:, :1]) / temperature).softmax(-1)
    return ids.gather(1, torch.multinomial(probabilities, 1, generator=generator))
