"""Machines that the planner knows: what a GPU can do, and how GPUs are joined."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

GB, GIB, TERA = 1e9, 2**30, 1e12


@dataclass(frozen=True)
class Rates:
    """What programs get of a data sheet's figures.

    gemm: share of the peak that large GEMMs reach. half_width: attention's small GEMMs reach half
    of that when heads are so wide. wait: with several ranks everybody's computation takes this
    share longer, since each waits for the slowest. start: seconds an all-reduce takes beside the
    bytes it moves. memory, link, server_link: shares of the bandwidths.
    """

    gemm: float
    half_width: float
    wait: float
    start: float
    memory: float = 0.9
    link: float = 0.85
    server_link: float = 0.8


@dataclass(frozen=True)
class Machine:
    """A cluster of equal servers: `peak` in FLOP/s by precision, memory in bytes, rest in bytes/s.

    link: what a GPU sends to others in its server, one way. server_link: what a whole server
    sends to the others, one way. fused_attention: attention runs in SDPA's kernels, which never
    write the [s, s] weights, dropout or not. outside: bytes that no tensor accounts for (CUDA's
    context, NCCL's buffers, Python). note: where the rates come from.
    """

    name: str
    memory: float
    peak: dict[str, float]
    memory_bandwidth: float
    link: float
    server_link: float
    gpus_per_server: int
    fused_attention: bool
    outside: float
    rates: Rates
    note: str


# What `paper_tables.fit` finds; a test holds these to it. The other three rates are not fitted.
FITTED = Rates(gemm=0.5575, half_width=123.7, wait=0.03125, start=0.0009)
# Later GPUs and NCCL start an all-reduce in microseconds. Typical values, fitted to nothing.
TYPICAL = Rates(gemm=0.6, half_width=64.0, wait=0.03, start=30e-6)


def _later(
    name: str, gib: int, tflops: float, bandwidth: float, link: float, server_link: float
) -> Machine:
    """A server of 8 later GPUs; TFLOP/s without sparsity, float32 GEMMs in TF32."""
    peak = {"bf16": tflops * TERA, "fp16": tflops * TERA, "fp32": tflops * TERA / 2}
    return Machine(
        name, gib * GIB, peak, bandwidth * GB, link * GB, server_link * GB, 8, True, 1.5 * GIB,
        TYPICAL, "rates are typical values: not measured, not fitted",
    )  # fmt: skip


_KNOWN = (
    # DGX-2H (paper, section 5): 16 GPUs on NVSwitch, 300 GB/s counting both ways; eight
    # InfiniBand cards, 100 GB/s a server. The paper's 39 TFLOP/s are 30 % of peak: 130.
    Machine(
        "v100-32gb", 32 * GIB, {"fp16": 130 * TERA, "fp32": 16.4 * TERA}, 900 * GB, 150 * GB,
        100 * GB, 16, False, 1.5 * GIB, FITTED, "rates fitted to the paper's figure 5 and Table 8",
    ),
    _later("a100-80gb", 80, 312, 2039, 300, 200),
    _later("h100", 80, 989, 3350, 450, 400),
    _later("h200", 141, 989, 4800, 450, 400),
    # A core a rank, two of them, float32, gloo over the loopback device.
    Machine(
        "cpu-2core", 4 * GIB, {"fp32": 57 * 1e9}, 6 * GB, 1.2 * GB, 1.2 * GB, 2, False, 0.3 * GIB,
        Rates(0.8, 16.0, 0.03, 0.3e-3, 1.0, 1.0, 1.0),
        "rough: peak and copy rate of one shared 2-core server, the rest guessed",
    ),
)  # fmt: skip
MACHINES = {machine.name: machine for machine in _KNOWN}


def named(kind: str, name: str, known: Iterable[str]) -> str:
    """`name`, if it is known; else a ValueError that names those near it."""
    known = sorted(known)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.0)
        raise ValueError(f"there is no {kind} {name!r}; near it: {', '.join(near)}")
    return name
