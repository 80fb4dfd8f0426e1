"""Wrong answers and right ones, each step's in a file: what the diagnosis is proved on."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from textwrap import dedent

HEAD = """
from typing import Any
import torch
import torch.distributed as dist
from torch.nn import functional as F
from step02_mlp_parallel import f, g, gather_last_dim, split_last_dim
from step02_mlp_parallel.operators import g_
from step02_mlp_parallel.sharding import check_divides
from step02_mlp_parallel.wire import all_gather, all_reduce_, group_rank, group_size
"""


@dataclass(frozen=True)
class Answer:
    """`keys`: the entries of the catalogue that it must get; () for "right, and no diagnosis"."""

    id: str
    name: str
    keys: tuple[str, ...]
    code: str

    @property
    def source(self) -> str:
        return HEAD + dedent(self.code)


def answers(step: int) -> list[Answer]:
    """All of a step's, wrong ones first."""
    module = importlib.import_module(f"{__name__}.step{step:02d}")
    found: list[Answer] = module.ANSWERS
    return found
