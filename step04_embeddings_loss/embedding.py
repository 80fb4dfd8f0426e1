"""The embedding table with its rows, the vocabulary, spread over the ranks (paper, section 3)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from step01_single_gpu.loss import check_ids
from step01_single_gpu.weights import dotted, draw_weight
from step02_mlp_parallel.operators import g_
from step02_mlp_parallel.sharding import ParallelModule, marked
from step02_mlp_parallel.wire import Group, group_size

from .vocab import padded_vocab_size, words_of


class VocabParallelEmbedding(ParallelModule):
    """Rows of a table by id: [...] -> [..., embedding_dim], the same on all ranks of `group`.

    weight [padded_v/n, embedding_dim], of which this rank's words are `first … first + count - 1`;
    the rows behind them are padding (zero, and no id points there). `num_embeddings` is the true
    vocabulary and need not divide: each rank's part is rounded up to `multiple` rows. Each rank
    looks up the ids it owns and has zeros for the others; g adds the ranks' results, of which one
    is not zero, so the sum is exact. Wire: forward an all-reduce of [..., embedding_dim] numbers,
    backward nothing. Raises ValueError for an id outside the vocabulary: it would come out as a
    zero vector.
    """

    shard_dims: ClassVar[dict[str, int | None]] = {"weight": 0}

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        group: Group = None,
        multiple: int = 1,
        std: float = 0.02,
        seed: int = 0,
        name: str = "",
    ) -> None:
        super().__init__()
        n = group_size(group)
        width = padded_vocab_size(num_embeddings, n, multiple) // n
        self.words = words_of(width, num_embeddings, group, allow_empty_ranks=True)
        self.group, self.true_sizes = group, {"weight": num_embeddings}
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        shape = (num_embeddings, embedding_dim)
        self.weight = marked(nn.Parameter(torch.zeros(width, embedding_dim)), 0, shape)
        if not self.weight.is_meta:
            whole = draw_weight(dotted(name, "weight"), shape, std, seed)
            with torch.no_grad():
                first, count = self.words.first, self.words.count
                self.weight[:count] = whole[first : first + count]

    # exercise 4.2
    def forward(self, ids: Tensor) -> Tensor:
        check_ids(ids, self.num_embeddings, "token")
        ids = ids.long()
        rows = F.embedding(self.words.column(ids), self.weight)
        # Masked, not multiplied by zero: row 0 stands in for the others' ids, and might be inf.
        others = ~self.words.has(ids).unsqueeze(-1)
        return g_(rows.masked_fill(others, 0.0), self.group)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}/{group_size(self.group)}, {self.embedding_dim}"
