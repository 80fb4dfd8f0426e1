"""Who must draw the same random numbers, and who must not.

Dropout on replicated activations (embedding, residual branches) must drop the *same* values on all
ranks of a tensor-parallel group, or their copies part. Dropout on attention weights acts on heads
that each rank has for itself, and must drop *different* ones, or heads on different ranks would
share one mask. Data-parallel ranks see other samples and must differ in both (paper, appendix B).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from step01_single_gpu.dropout import dropout
from step01_single_gpu.weights import generator_for
from step02_mlp_parallel.wire import Group, group_rank, group_size

MODES = ("paper", "invariant")


class RNGTracker:
    """Two streams of random numbers beside torch's global one, on the CPU and on this rank's GPU.

    mode "paper": `replicated()` and `sharded()` swap a stream in for the global generator; what
    else draws from that one can't make ranks drift. mode "invariant": a mask depends only on
    (seed, step, site, sample), so dropout is the same at every layout; slower, made for proofs.
    Raises ValueError for an unknown mode or ranks that don't exist.
    """

    # exercise 3.3
    def __init__(
        self,
        seed: int,
        *,
        tp_rank: int = 0,
        tp_size: int = 1,
        dp_rank: int = 0,
        mode: str = "paper",
    ) -> None:
        if mode not in MODES:
            raise ValueError(f'mode is {mode!r}; it must be "paper" or "invariant"')
        if not 0 <= tp_rank < tp_size or dp_rank < 0:
            raise ValueError(f"there is no tp_rank {tp_rank} of {tp_size}, dp_rank {dp_rank}")
        self.seed, self.mode = int(seed), mode
        self.tp_rank, self.tp_size, self.dp_rank = tp_rank, tp_size, dp_rank
        self.stateless = mode == "invariant"  # a mask depends on the arguments alone
        self.step, self.first_sample = 0, 0
        self._replicated = _Stream(self.seed, "replicated", dp_rank)
        self._sharded = _Stream(self.seed, "sharded", dp_rank, tp_rank)

    @contextmanager
    def replicated(self) -> Iterator[None]:
        """`with tracker.replicated():` draws what all TP ranks of this DP rank draw."""
        with self._replicated.swapped_in():
            yield

    @contextmanager
    def sharded(self) -> Iterator[None]:
        """`with tracker.sharded():` draws what no other rank draws."""
        with self._sharded.swapped_in():
            yield

    def at(self, step: int, first_sample: int) -> RNGTracker:
        """Say which optimizer step this is, and which global sample stands in row 0 of the batch.

        Only the invariant mode needs it; call it before each micro-batch. Returns the tracker.
        """
        self.step, self.first_sample = int(step), int(first_sample)
        return self

    def dropout(self, x: Tensor, p: float, site: str, *, sharded: bool = False) -> Tensor:
        """x with dropout. `sharded`: x is [b, heads/n, …], this rank's heads; else replicated.

        With tp_size = 1 it fits the reference's `dropout(x, p, site)` argument.
        """
        if self.mode == "invariant":
            return x * self._invariant_mask(x, p, site, sharded)
        with self.sharded() if sharded else self.replicated():
            return dropout(x, p)

    def _invariant_mask(self, x: Tensor, p: float, site: str, sharded: bool) -> Tensor:
        """One generator a sample; it draws the masks of all heads, and this rank takes its own."""
        if x.size(0) == 0:
            return torch.empty_like(x)
        whole = list(x.shape[1:])
        whole[0] *= self.tp_size if sharded else 1
        part = slice(self.tp_rank * x.size(1), (self.tp_rank + 1) * x.size(1))
        rows = []
        for row in range(x.size(0)):
            generator = generator_for(
                "dropout", self.seed, self.step, site, self.first_sample + row
            )
            kept = torch.rand(whole, generator=generator, device="cpu") >= p
            rows.append(kept[part] if sharded else kept)
        return (torch.stack(rows) / (1.0 - p)).to(x)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next draws depend on; tensors and plain values only."""
        return {
            "layout": [self.seed, self.mode, self.tp_rank, self.tp_size, self.dp_rank],
            "position": [self.step, self.first_sample],
            "replicated": dict(self._replicated.states),
            "sharded": dict(self._sharded.states),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken. Raises ValueError for another rank's state:
        streams of another layout would repeat or share numbers."""
        own = self.state_dict()["layout"]
        if list(state["layout"]) != own:
            raise ValueError(
                "this state is of another tracker: [seed, mode, tp_rank, tp_size, dp_rank] is "
                f"{list(state['layout'])} there and {own} here; after a change of layout start a "
                'new tracker (mode "invariant" draws the same at every layout)'
            )
        self.step, self.first_sample = state["position"]
        # A state is never written into, only replaced, so the tensors may be shared.
        self._replicated.states = dict(state["replicated"])
        self._sharded.states = dict(state["sharded"])


def drop(
    x: Tensor, p: float, site: str, rng: RNGTracker | None, group: Group, *, sharded: bool
) -> Tensor:
    """x with dropout from the tracker's right stream; from torch's global one in a world of one
    without a tracker. Raises ValueError where several ranks have no tracker, or another's."""
    if rng is None and group_size(group) == 1:
        return dropout(x, p)
    return fitting(rng, group, p).dropout(x, p, site, sharded=sharded)


def fitting(rng: RNGTracker | None, group: Group, p: float) -> RNGTracker:
    """The tracker, if it is there and made for this group."""
    n = group_size(group)
    if rng is None:
        raise ValueError(
            f"dropout {p} in training on {n} ranks needs rng=RNGTracker(seed, tp_rank=…, "
            f"tp_size={n}): without one nobody says which ranks drop the same values"
        )
    if rng.tp_size != n or (group is not None and rng.tp_rank != group_rank(group)):
        raise ValueError(
            f"the RNGTracker is for tp_rank {rng.tp_rank} of {rng.tp_size}, this is rank "
            f"{group_rank(group)} of a group of {n}"
        )
    return rng


class _Stream:
    """One stream of random numbers: generator states of the CPU and of this rank's GPU."""

    def __init__(self, *key: object) -> None:
        self.start = generator_for("stream", *key).initial_seed()
        self.active = False
        self.states = {"cpu": torch.Generator().manual_seed(self.start).get_state()}

    # exercise 3.4
    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """The stream in the place of torch's global generators; inside itself it just goes on."""
        if self.active:
            yield
            return
        if torch.cuda.is_initialized() and "cuda" not in self.states:  # type: ignore[no-untyped-call]
            self.states["cuda"] = torch.Generator("cuda").manual_seed(self.start).get_state()
        before = {device: _get(device) for device in self.states}
        for device, state in self.states.items():
            _set(device, state)
        self.active = True
        try:
            yield
        finally:  # also when recompute leaves a block early, by an exception
            self.active = False
            self.states = {device: _get(device) for device in self.states}
            for device, state in before.items():
                _set(device, state)


def _get(device: str) -> Tensor:
    return torch.get_rng_state() if device == "cpu" else torch.cuda.get_rng_state()


def _set(device: str, state: Tensor) -> None:
    if device == "cpu":
        torch.set_rng_state(state)
    else:
        torch.cuda.set_rng_state(state)
