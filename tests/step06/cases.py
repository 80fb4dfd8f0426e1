"""Small BERTs in both orders, and batches with padding of all lengths."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from step06_bert_layernorm import BERT, BertConfig
from tests.equivalence import random_state

CONFIG = BertConfig(37, 9, hidden_size=24, num_layers=2, num_heads=8, dropout=0.0)
ORIGINAL = dataclasses.replace(CONFIG, norm="original")
# A WordPiece vocabulary for tasks.
ENTRIES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "is", "it", *"abcde"]
ENTRIES += ["yes", "no", "who", *"xyz."]


def batches(steps: int, seed: int = 7) -> list[dict[str, Tensor]]:
    """Rows of 8, 5, 1 and no real tokens; one without a question; one without an order label."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(steps):
        tokens = torch.randint(37, (4, 8), generator=generator)
        lengths = torch.tensor([[8], [5], [1], [0]])
        real = torch.arange(8) < lengths
        asked = (torch.rand(4, 8, generator=generator) < 0.4) & real
        asked[0, 3] = True
        found.append(
            {
                "tokens": tokens,
                "targets": torch.where(asked, tokens.roll(1, 1), -100),
                "segments": (torch.arange(8) > 3).long().expand(4, 8) * real,
                "padding_mask": real,
                "order": torch.tensor([0, 1, 1, -100]),
            }
        )
    return found


def full_state(config: BertConfig, seed: int = 0) -> dict[str, Tensor]:
    return random_state(BERT(config), seed)
