"""How a vocabulary is spread over the ranks (paper, section 3 and the end of section 5.1).

50,257 words divide by nothing useful. So every rank gets room for the same number of rows, a
multiple of 128 for the sake of GEMM speed, and the last ranks have rows that stand for no word.
Those are padding: no id points at them, the loss never counts them, and no full state has them, so
a model doesn't depend on how much of it there is.
"""

from __future__ import annotations

from step02_mlp_parallel.sharding import own_range
from step02_mlp_parallel.wire import Group, group_size


def padded_vocab_size(vocab_size: int, tp_size: int, multiple: int = 128) -> int:
    """The smallest size from `vocab_size` up that gives each rank a multiple of `multiple` rows.

    50,257 words on 8 ranks: 51,200, the paper's figure. Raises ValueError for numbers below 1.
    """
    for name, value in (("vocab_size", vocab_size), ("tp_size", tp_size), ("multiple", multiple)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value!r}; it must be a whole number of at least 1")
    step = multiple * tp_size
    return -(-vocab_size // step) * step


def own_words(vocab_size: int, group: Group, multiple: int = 128) -> tuple[int, int, int]:
    """(first, count, width): this rank has words first … first + count - 1, and room for `width`."""
    n = group_size(group)
    width = padded_vocab_size(vocab_size, n, multiple) // n
    return *own_range(vocab_size, width, group), width
