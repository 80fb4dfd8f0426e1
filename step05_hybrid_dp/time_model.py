"""How long an iteration takes: its work is counted, then divided by a machine's rates.

Letters as in cost_model.py. Everything is for one GPU; all of them do the same.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

from .cost_model import (
    WIDTH,
    Layout,
    check,
    explicit_attention,
    own_words,
    parameters_per_gpu,
)
from .machines import Machine

if TYPE_CHECKING:
    from step01_single_gpu.config import GPTConfig

# Numbers that the kernels between a block's GEMMs read and write: (forward, backward).
# On every rank in full, in b·s·h; each half of a block has a norm (2, 5), the bias behind g
# (2, 1), dropout with its mask (2.5, 2.5) and a residual sum (3, 3).
REPLICATED = (19.0, 23.0)
# Divided by n, in b·s·h/n: copies of heads (8, 8), GeLU on 4h (8, 12), sums for biases (0, 7).
DIVIDED = (16.0, 27.0)
# Explicit attention, in b·heads·s²/n: scale (2, 2), mask by product and sum (4, 2), softmax
# (2, 3), dropout (2.5, 2.5).
SCORES = (10.5, 9.5)
LOGIT_BYTES = 40  # of each logit in the fused loss, forward and gradient
# Bytes the optimizer moves for a parameter: norm, clip, Adam; with masters also the overflow
# check and the copies there and back.
OPTIMIZER_BYTES = {"fp32": 40, "bf16": 40, "fp16": 70}


@dataclass(frozen=True)
class Work:
    """What one GPU does in an iteration: operations, bytes, all-reduces."""

    flops: float
    """In GEMMs; what the hardware does, so recomputation counts."""
    narrow_flops: float
    """attention's operations divided by the width of a head; part of `flops`."""
    gemm_bytes: float
    memory_bytes: float
    optimizer_bytes: float
    all_reduces: int
    """Over the tensor-parallel group, in all micro-batches."""
    wire_bytes: float
    """Of one of these on the ring, 2 (n-1)/n of what is reduced; all of them together."""
    gradient_bytes: float
    """Over the data-parallel group, once, on the ring."""
    last_bucket_bytes: float
    """Part of it that is only ready when backward ends: the token embedding, tied to the output."""
    backward: float
    """Share of the work of the last micro-batch's backward, which hides the sums of gradients."""


@dataclass(frozen=True)
class Times:
    """Seconds of one iteration, by what they go to."""

    gemm: float
    memory_bound: float
    tp_comm: float
    dp_comm: float
    """What backward doesn't hide."""
    waiting: float
    """For the slowest rank."""
    optimizer: float

    @property
    def total(self) -> float:
        """Seconds of the whole iteration."""
        return float(sum(astuple(self)))


def iteration(config: GPTConfig, layout: Layout, machine: Machine) -> Times:
    """Seconds of one iteration on a GPU. Raises ValueError as `cost_model.check` does."""
    return times(work(config, layout, machine), layout, machine)


def work(config: GPTConfig, layout: Layout, machine: Machine) -> Work:
    """What one GPU does in an iteration."""
    check(config, layout, machine)
    n, d, b, m = layout.tp_size, layout.dp_size, layout.micro_batch_size, layout.micro_batches
    s, h, layers, heads = config.seq_length, config.hidden_size, config.num_layers, config.num_heads
    size, again = WIDTH[layout.precision], 1 if layout.recompute else 0
    tokens, v, count = b * s, own_words(config, n), parameters_per_gpu(config, n)
    matrices = [  # (how many, rows, columns, inner) of the forward's GEMMs
        (1, tokens, 3 * h // n, h), (1, tokens, h, h // n),
        (1, tokens, 4 * h // n, h), (1, tokens, h, 4 * h // n),
    ]  # fmt: skip
    attention = [
        (b * heads // n, s, s, config.head_dim),
        (b * heads // n, s, config.head_dim, s),
    ]
    explicit = explicit_attention(config, machine)
    passes = layers * (3 + again)
    narrow = passes * _flops(attention)
    logits = [(1, tokens, v, h)]
    flops = passes * _flops(matrices) + narrow + 3 * _flops(logits)
    moved = passes * _numbers(matrices + attention * explicit) + 3 * _numbers(logits)

    def both_ways(numbers: tuple[float, float]) -> float:
        return numbers[0] * (1 + again) + numbers[1]

    between = tokens * h * (both_ways(REPLICATED) + both_ways(DIVIDED) / n)
    if explicit:
        between += b * heads * s * s / n * both_ways(SCORES)
    bytes_between = layers * between * size + tokens * v * LOGIT_BYTES
    if layout.precision == "bf16":  # autocast reads float32 weights and writes bfloat16
        bytes_between += 6 * count * (1 + again)
    gradient = count * (2 if layout.precision == "fp16" else 4)
    # With p = 0 the last g of a block is not run again: nobody needs its result.
    repeated = again * (2 if config.dropout else 1)
    sums = layers * (4 + repeated) + 2  # beside the blocks': embedding forward, output backward
    return Work(
        flops=m * flops,
        narrow_flops=m * narrow / config.head_dim,
        gemm_bytes=m * moved * size,
        memory_bytes=m * bytes_between + (m - 1) * 3 * gradient,
        optimizer_bytes=count * OPTIMIZER_BYTES[layout.precision],
        all_reduces=m * sums if n > 1 else 0,
        wire_bytes=m * sums * _ring(n) * tokens * h * size,
        gradient_bytes=_ring(d) * gradient,
        last_bucket_bytes=_ring(d) * v * h * (gradient // count),
        backward=(2 + again) / (3 + again) / m,
    )


def times(done: Work, layout: Layout, machine: Machine) -> Times:
    """The seconds of counted work, part by part; what is not hidden behind something else adds up.

    A GEMM takes its operations at the GEMM rate and its bytes at the memory's, one after the
    other; so small ones come out slower than large ones. Attention's also pay for narrow heads.
    """
    n, d, rates = layout.tp_size, layout.dp_size, machine.rates
    bandwidth = machine.memory_bandwidth * rates.memory
    operations = done.flops + done.narrow_flops * rates.half_width
    gemm = operations / (machine.peak[layout.precision] * rates.gemm) + done.gemm_bytes / bandwidth
    memory_bound = done.memory_bytes / bandwidth
    tp_link, dp_link = _links(layout, machine)
    tp_comm = done.all_reduces * rates.start + done.wire_bytes / tp_link
    behind = done.backward * (gemm + memory_bound + tp_comm)
    exposed = max(done.last_bucket_bytes / dp_link, done.gradient_bytes / dp_link - behind)
    return Times(
        gemm=gemm,
        memory_bound=memory_bound,
        tp_comm=tp_comm,
        dp_comm=exposed + rates.start if d > 1 else 0.0,
        waiting=rates.wait * (gemm + memory_bound) if n * d > 1 else 0.0,
        optimizer=done.optimizer_bytes / bandwidth,
    )


def _links(layout: Layout, machine: Machine) -> tuple[float, float]:
    """Bytes a second of a ring through a tensor- and through a data-parallel group.

    Tensor-parallel ranks are neighbours. Through a server pass as many data-parallel rings as
    it has tensor-parallel ranks, and these share its way out.
    """
    server, inside = machine.gpus_per_server, machine.link * machine.rates.link
    out = machine.server_link * machine.rates.server_link
    tp = inside if layout.tp_size <= server else min(inside, out)
    if layout.tp_size * layout.dp_size <= server:
        return tp, inside
    return tp, min(inside, out / min(layout.tp_size, server))


def _ring(ranks: int) -> float:
    """What each rank of a ring all-reduce sends, for each byte that is reduced."""
    return 2 * (ranks - 1) / ranks


def _flops(gemms: list[tuple[int, int, int, int]]) -> float:
    return float(sum(2 * many * rows * columns * k for many, rows, columns, k in gemms))


def _numbers(gemms: list[tuple[int, int, int, int]]) -> float:
    """Numbers that GEMMs read and write. (A backward's two have the same three matrices each.)"""
    return float(sum(many * (r * c + c * k + r * k) for many, r, c, k in gemms))
