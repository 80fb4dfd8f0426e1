"""The four precisions, and the optimizer step that goes with each."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from step02_mlp_parallel.wire import Group, group_size

from .masters import Masters
from .optimizer import clip_grad_norm_

PRECISIONS = ("fp32", "bf16", "bf16-params", "fp16")


class MixedPrecision:
    """How `model` computes, and how a step is taken from its gradients.

        fp32          float32 throughout
        bf16          float32 weights, GEMMs in bfloat16 (autocast): the default
        bf16-params   bfloat16 weights too, with float32 masters: half the memory for gradients
        fp16          float32 weights, GEMMs in float16 (autocast), dynamic loss scaling

    "bf16-params" turns the model's own weights into bfloat16, so make this after the model is on
    its device and before the optimizer, which is to be made for `trained`: the masters if there
    are any, else the model. `trained` is also what to save and to clip.
    `init_scale` and `growth_interval` are fp16's. Raises ValueError for an unknown precision; warns
    of fp16 on a CPU.
    """

    def __init__(
        self,
        model: nn.Module,
        precision: str = "bf16",
        *,
        tp_group: Group = None,
        init_scale: float = 2.0**16,
        growth_interval: int = 2000,
    ) -> None:
        if precision not in PRECISIONS:
            raise ValueError(f"precision is {precision!r}; it must be one of {PRECISIONS}")
        self.precision, self.tp_group = precision, tp_group
        self.device_type = next(model.parameters()).device.type
        if precision == "fp16" and self.device_type == "cpu":
            warnings.warn(
                "fp16 on a CPU is only good for trying it out: its matrix products are 5 to 30 "
                "times slower than float32's",
                stacklevel=2,
            )
        self.masters: Masters | None = None
        if precision == "bf16-params":
            self.masters = Masters(model)  # first: the masters keep the bits that the model loses
            model.bfloat16()
        self.trained = model if self.masters is None else self.masters.float32
        self.scaler = _scaler(
            self.device_type, precision == "fp16", tp_group, init_scale, growth_interval
        )

    def forward_context(self) -> AbstractContextManager[Any]:
        """To be entered around each forward, not around backward: autocast or nothing."""
        dtype = torch.float16 if self.precision == "fp16" else torch.bfloat16
        return torch.autocast(self.device_type, dtype, enabled=self.precision in ("bf16", "fp16"))

    @property
    def scale(self) -> float:
        """What to multiply the loss by before backward; 1 but for fp16."""
        return float(self.scaler.get_scale())

    def step(self, optimizer: torch.optim.Optimizer, max_norm: float) -> tuple[bool, Tensor]:
        """Unscale, clip, step; returns (whether it stepped, the norm from before clipping).

        No step is taken, on any rank, if a gradient isn't finite on some rank: in fp16 that halves
        the scale and is normal now and then; else it's for the caller to stop. Count only steps
        that were taken: the learning rate is a function of their number. Gradients are the
        averaged ones. Wire: for fp16 one number for the overflow; one for the norm.
        """
        if self.masters is not None:
            self.masters.pull()
        scaled = self.scaler.is_enabled()
        if scaled:
            self.scaler.scale(torch.ones((), device=self.device_type))  # makes its tensors
            self.scaler.unscale_(optimizer)
        norm = clip_grad_norm_(self.trained, max_norm, self.tp_group)
        # Decided here, not by scaler.step: that hands the *number* of ranks with an overflow to
        # fused AdamW, which skips the step if it is exactly 1.
        stepped = bool(norm.isfinite())
        if stepped:
            optimizer.step()
        if scaled:
            self.scaler.update()
        if self.masters is not None:
            self.masters.push_weights()
        return stepped, norm

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers: the scale and how long it has held; empty but for fp16."""
        return self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the scale that `state_dict` gave."""
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(state)


def _scaler(
    device_type: str, enabled: bool, tp_group: Group, init_scale: float, growth_interval: int
) -> torch.amp.GradScaler:
    """torch's scaler: the one that agrees on overflow over tp_group, where there is one."""
    options: dict[str, Any] = {
        "init_scale": init_scale, "growth_interval": growth_interval, "enabled": enabled
    }  # fmt: skip
    if tp_group is None or group_size(tp_group) == 1:
        return torch.amp.GradScaler(device_type, **options)
    return ShardedGradScaler(device_type, process_group=tp_group, **options)
