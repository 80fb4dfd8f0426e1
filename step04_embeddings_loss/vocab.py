"""How a vocabulary is spread over the ranks (paper, section 3 and the end of section 5.1).

50,257 words divide by nothing useful. So every rank gets room for the same number of rows, a
multiple of 128 for the sake of GEMM speed, and the last ranks have rows that stand for no word.
Those are padding: no id points at them, the loss never counts them, and no full state has them, so
a model doesn't depend on how much of it there is.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from step02_mlp_parallel.sharding import own_range
from step02_mlp_parallel.wire import Group, group_size


# exercise 4.1
def padded_vocab_size(vocab_size: int, tp_size: int, multiple: int = 128) -> int:
    """The smallest size from `vocab_size` up that gives each rank a multiple of `multiple` rows.

    50,257 words on 8 ranks: 51,200, the paper's figure. Raises ValueError for numbers below 1.
    """
    for name, value in (("vocab_size", vocab_size), ("tp_size", tp_size), ("multiple", multiple)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value!r}; it must be a whole number of at least 1")
    step = multiple * tp_size
    return -(-vocab_size // step) * step


@dataclass(frozen=True)
class Words:
    """This rank's columns: words first … first + count - 1 of vocab_size, then padding."""

    vocab_size: int
    first: int
    count: int

    def has(self, ids: Tensor) -> Tensor:
        """Bool, True where an id is one of this rank's words."""
        return (ids >= self.first) & (ids < self.first + self.count)

    def column(self, ids: Tensor) -> Tensor:
        """The column of each id; 0, which stands for nothing, where it isn't this rank's."""
        return (ids - self.first).masked_fill(~self.has(ids), 0)


def words_of(width: int, vocab_size: int | None, group: Group, allow_empty_ranks: bool) -> Words:
    """The words of this rank, whose logits are `width` wide, as on all ranks.

    Raises ValueError unless a vocabulary of that size fits just these ranks:
    (n - 1) · width < vocab_size ≤ n · width. So whole logits, passed by mistake, are seen: on two
    ranks they would count every word twice, and every loss would be log 2 too large.
    """
    n = group_size(group)
    if vocab_size is None and n > 1:
        raise ValueError(
            f"vocab_size is needed on {n} ranks: it says where the {n} x {width} columns of logits "
            "end and padding begins"
        )
    vocab_size = width if vocab_size is None else vocab_size
    least = 1 if allow_empty_ranks else (n - 1) * width + 1
    if not least <= vocab_size <= n * width:
        cause = "pass this rank's part of the logits, and not all of them"
        if vocab_size > n * width:
            cause = "some words would have no logits"
        elif width < vocab_size:
            cause = "some rank would have padding only; allow_empty_ranks=True admits that"
        raise ValueError(
            f"logits {width} wide on each of {n} ranks fit a vocabulary of {least} to {n * width}; "
            f"vocab_size is {vocab_size}: {cause}"
        )
    return Words(vocab_size, *own_range(vocab_size, width, group))
