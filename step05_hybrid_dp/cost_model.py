"""What a GPU must hold in one training step, by reckoning. Its time is in time_model.py.

Letters as in the chapters: b micro-batch, s sequence, h hidden, v vocabulary, n tensor-parallel
ranks, d data-parallel ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .machines import Machine

if TYPE_CHECKING:  # the planner answers before torch would be loaded
    from step01_single_gpu.config import GPTConfig

WIDTH = {"fp32": 4, "bf16": 2, "fp16": 2}  # bytes of a number that a GEMM reads
USABLE = 0.95  # share of a GPU's memory that tensors can have; fragments take the rest
LOGITS_CHUNK = 16 * 2**20  # bytes of logits that the fused loss holds (step 1's fused_loss.py)


@dataclass(frozen=True)
class Layout:
    """How an iteration is spread over tp_size · dp_size GPUs.

    precision: "fp32"; "bf16": float32 parameters, GEMMs in bfloat16 (autocast); "fp16": fp16
    parameters with float32 masters, as in the paper. recompute: after every block.
    """

    tp_size: int
    dp_size: int
    micro_batch_size: int
    global_batch_size: int
    precision: str = "fp16"
    recompute: bool = True

    @property
    def micro_batches(self) -> int:
        """Forward and backward passes of a GPU in one iteration."""
        return self.global_batch_size // (self.micro_batch_size * self.dp_size)


def check(config: GPTConfig, layout: Layout, machine: Machine) -> None:
    """Raises ValueError, naming the value and what would work, for what can't be laid out so."""
    n, d, b, batch = (
        layout.tp_size, layout.dp_size, layout.micro_batch_size, layout.global_batch_size,
    )  # fmt: skip
    for name, value in (("tp", n), ("dp", d), ("micro-batch", b), ("global batch", batch)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value!r}; it must be a whole number of at least 1")
    if batch % (b * d):
        raise ValueError(
            f"global batch {batch} does not divide by micro-batch {b} x dp {d} = {b * d}; "
            f"{-(-batch // (b * d)) * b * d} would"
        )
    if config.num_heads % n:  # heads divide h, so n then divides h and 4h too
        works = [k for k in range(1, config.num_heads + 1) if config.num_heads % k == 0]
        raise ValueError(
            f"tp {n} does not divide {config.num_heads} heads; these do: "
            f"{', '.join(map(str, works))}"
        )
    server = machine.gpus_per_server
    if max(n, server) % min(n, server):
        raise ValueError(
            f"tp {n} does not fit servers of {server} GPUs; a divisor or a multiple of it would"
        )
    if layout.precision not in machine.peak:
        raise ValueError(
            f"{machine.name} has no {layout.precision!r}; it has {', '.join(machine.peak)}"
        )


def own_words(config: GPTConfig, n: int) -> int:
    """Rows of the embedding on one of n ranks, padding included (step 4's vocab.py)."""
    return math.ceil(config.vocab_size / (128 * n)) * 128


def parameters_per_gpu(config: GPTConfig, n: int) -> int:
    """Parameters that one of n tensor-parallel ranks holds, its padding included.

    Cut: every matrix, the biases of Q/K/V and of the MLP's first half, the token embedding.
    Whole on each rank: the other biases, norms, positions.
    """
    h = config.hidden_size
    block = (12 * h * h + 7 * h) // n + 6 * h
    return config.num_layers * block + (own_words(config, n) + config.seq_length + 2) * h


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU, by what they are for."""

    parameters: float
    gradients: float
    optimizer: float
    """Adam's moments; for fp16 also the float32 masters and their gradients."""
    activations: float
    """What all blocks keep for backward; with recompute, their inputs alone."""
    block: float
    """What exists while a block's backward runs: gradients of the MLP's inner activations, before
    and behind GeLU, and of the residual stream; with recompute the whole block before them."""
    logits: float
    """A chunk of them. It is gone when backward begins, and so never meets `block`."""
    loss: float
    """The loss's gradients (made in forward), the last norm."""
    outside: float
    gradients_stay: bool
    """Buckets of data parallelism or accumulation keep them from step to step."""

    @property
    def peak(self) -> float:
        """The most that is held at once.

        Backward takes activations away while it adds gradients, so gradients that don't stay and
        activations never stand there in full together.
        """
        always = self.parameters + self.optimizer + self.outside
        start = self.activations + self.loss
        passing = max(self.logits, self.block)
        if self.gradients_stay:
            return always + self.gradients + start + passing
        return always + max(start + passing, self.gradients + self.block)


def fits(held: Memory, machine: Machine) -> bool:
    """Whether a GPU holds it."""
    return held.peak <= USABLE * machine.memory


def memory(config: GPTConfig, layout: Layout, machine: Machine) -> Memory:
    """Bytes on one GPU for a step of this repository: fused loss, fused AdamW, clipping in place.

    It counts tensors, not the allocator's fragments. Raises ValueError as `check` does.
    """
    check(config, layout, machine)
    n, h, layers = layout.tp_size, config.hidden_size, config.num_layers
    numbers = layout.micro_batch_size * config.seq_length * h
    block, copies = _block(config, layout, machine)
    working = numbers * WIDTH[layout.precision] * (2 * 4 / n + 2)
    half = layout.precision == "fp16"
    width, moments = (2, 16) if half else (4, 8)
    # Autocast leaves what no GEMM makes, and so the residual stream, in float32.
    stream = numbers * width
    count, words = parameters_per_gpu(config, n), own_words(config, n) * h
    embedding = 2 * stream if config.dropout else stream  # its sum, or its mask and what is left
    return Memory(
        parameters=count * width,
        gradients=count * width,
        optimizer=count * moments,
        activations=embedding + layers * (stream if layout.recompute else block + copies),
        block=working + (block + copies if layout.recompute else 0.0),
        logits=LOGITS_CHUNK,
        loss=2 * words * width + 4 * stream,
        outside=machine.outside,
        gradients_stay=layout.dp_size > 1 or layout.micro_batches > 1,
    )


def explicit_attention(config: GPTConfig, machine: Machine) -> bool:
    """Whether the [s, s] weights are written to memory: where SDPA has no kernel for dropout."""
    return config.dropout > 0.0 and not machine.fused_attention


def _block(config: GPTConfig, layout: Layout, machine: Machine) -> tuple[float, float]:
    """Bytes that a block keeps for its backward, and its GEMMs' copies of weights (autocast).

    Step 3's memory.py in any precision. Softmax and, under autocast, the norms' inputs are float32.
    """
    n, b, s, h = layout.tp_size, layout.micro_batch_size, config.seq_length, config.hidden_size
    size, autocast = WIDTH[layout.precision], layout.precision == "bf16"
    replicated = 4 * size + (2 * size if config.dropout else 0) + (4 if autocast else 0)
    kept = b * s * h * (replicated + 12 * size / n) + 16 * b * s
    if explicit_attention(config, machine):
        kept += b * config.num_heads * s * s * (2 * size + 4) / n + s * s
    else:
        kept += b * config.num_heads * s * 4 / n
    return kept, (12 * h * h / n * size if autocast else 0.0)
