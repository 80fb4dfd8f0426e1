"""Step 5: tensor × data parallel training, from a laptop to 8 × 64 ranks.

The names are loaded when they are asked for: the planner answers without torch.
"""

from importlib import import_module
from typing import Any

_WHERE = {
    "Grid": "grid",
    "grid_coordinates": "grid",
    "average_gradients": "data_parallel",
    "backward_global_mean": "data_parallel",
    "DataParallel": "ddp",
    "Objective": "objective",
    "clip_grad_norm_": "optimizer",
    "scaled_step": "loss_scale",
    "MixedPrecision": "precision",
    "save_checkpoint": "checkpoint",
    "load_checkpoint": "checkpoint",
    "newest_checkpoint": "checkpoint",
    "compare_replicas": "replicas",
}
__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_WHERE[name]}", __name__), name)
