"""Drawing a token from logits that are spread over the ranks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from step01_single_gpu.generate import gumbel_noise, perturbed
from step02_mlp_parallel.wire import Group, all_gather, all_reduce_, group_size

from .vocab import Words


def draw_parallel(
    logits: Tensor,
    temperature: float,
    top_k: int | None,
    generator: torch.Generator | None,
    words: Words,
    group: Group,
) -> Tensor:
    """Step 1's `draw_token` on this rank's logits [b, padded_v/n]; ids [b, 1], the same on all.

    All ranks draw the noise of the whole vocabulary, which costs little, and use their words'. The
    best of each rank's best is the best of all. Wire, for each row: with `top_k` an all-gather of
    k logits, at most one rank's share of the vocabulary; then one of two numbers.
    """
    values = logits[:, : words.count].double()
    scores = values
    if temperature > 0:
        noise = gumbel_noise(values, words.vocab_size, generator)
        own_noise = noise[:, words.first : words.first + words.count]
        scores = perturbed(values, temperature, own_noise)
    if top_k is not None and top_k < words.vocab_size:
        least = _kth_largest(values, top_k, logits.size(-1), group)
        scores = scores.masked_fill(values < least, -torch.inf)
    # One column more, so that a rank without words has something to lose with.
    best, column = F.pad(scores, (0, 1), value=-torch.inf).max(-1)
    offers = all_gather(torch.stack([best, (column + words.first).double()]), group)  # [n, 2, b]
    winner = offers[:, 0].argmax(0, keepdim=True)
    return offers[:, 1].gather(0, winner).long().T


def agreed_generator(
    generator: torch.Generator | None, group: Group, device: torch.device
) -> torch.Generator | None:
    """The caller's generator; without one, on several ranks, one that they all have: their global
    generators may stand anywhere, and a word's noise shall not depend on the rank that has it."""
    if generator is not None or group_size(group) == 1:
        return generator
    seed = torch.randint(2**62, (1,), device=device)  # where the group can send it from
    all_reduce_(seed, group, "max")
    return torch.Generator().manual_seed(int(seed))


def _kth_largest(values: Tensor, k: int, width: int, group: Group) -> Tensor:
    """[b, 1]: the k-th largest of all ranks' values [b, ≤ width]."""
    mine = min(k, width)  # what a rank sends; the same on all
    top = values.topk(min(mine, values.size(-1))).values
    top = F.pad(top, (0, mine - top.size(-1)), value=-torch.inf)
    together = all_gather(top, group).transpose(0, 1).flatten(1)  # [b, n·mine]
    return together.topk(k).values[:, -1:]
