"""What this machine can do, and one setting that lets it."""

from __future__ import annotations

import ctypes
import sys
import time

import torch

from .config import GPTConfig

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4  # from glibc's malloc.h


def keep_freed_memory() -> bool:
    """Tell glibc's malloc to keep big freed buffers for the next step; True if it listened.

    By default it hands them back to Linux at once, which then clears fresh pages for the same
    buffers at every step. No effect elsewhere. The process stays as big as it once was.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is None:
        return False
    never_trim, no_mmap, grow_by = 2**31 - 1, 0, 64 * 2**20
    settings = {_M_TRIM_THRESHOLD: never_trim, _M_MMAP_MAX: no_mmap, _M_TOP_PAD: grow_by}
    return all(mallopt(name, value) == 1 for name, value in settings.items())


def gemm_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations a second of a square GEMM here, best of a few; about 0.3 s."""
    n = 1024 if device.type == "cpu" else 8192
    # A generator of its own: a resumed run's random numbers must not depend on a measurement.
    own = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(n, n, device=device, generator=own).to(dtype) for _ in range(2))
    best, deadline = float("inf"), time.perf_counter() + 0.3
    while time.perf_counter() < deadline:
        _wait(device)
        start = time.perf_counter()
        a @ b
        _wait(device)
        best = min(best, time.perf_counter() - start)
    return 2 * n**3 / best


def training_flops(
    config: GPTConfig, tokens: int, *, recompute: bool = False, predicted: float = 1.0
) -> float:
    """Floating-point operations of the GEMMs in one training step on `tokens` tokens.

    Forward: 24 h² a layer and token in the weights, 4 s h in attention, 2 h v in the output
    layer. Backward is twice that; recompute adds the layers' forward once more. (The formula of
    Megatron's second paper, arXiv 2104.04473; the first gives none.) `predicted`: the share of the
    tokens that the output layer is run for.
    """
    h, s, v = config.hidden_size, config.seq_length, config.vocab_size
    layers, output = config.num_layers * (24 * h * h + 4 * s * h), 2 * h * v
    return float(tokens * (layers * (4 if recompute else 3) + predicted * output * 3))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
