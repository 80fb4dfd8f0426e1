"""Exercise id -> its probe. A step's probes are imported when they are asked for."""

from __future__ import annotations

import importlib

from .common import Probe

# id -> module and name in it
PLACES = {
    "1.1": ("step01", "SCORES"),
    "1.2": ("step01_loss", "LOSS"),
    "1.3": ("step01_data", "WEIGHT"),
    "1.4": ("step01_batch", "BATCH"),
    "1.5": ("step01_scoring", "SCORING"),
    "1.6": ("step01", "SCHEDULE"),
    "2.1": ("step02", "F"),
    "2.2": ("step02", "G"),
    "2.3": ("step02_layers", "COLUMN"),
    "2.4": ("step02_layers", "ROW"),
    "2.5": ("step02_mlp", "MLP_FORWARD"),
    "2.6": ("step02", "CUT"),
    "3.1": ("step03_attention", "ATTENTION"),
    "3.2": ("step03", "CUT_QKV"),
    "3.3": ("step03_rng", "STREAMS"),
    "3.4": ("step03_swap", "SWAP"),
    "3.5": ("step03_recompute", "RECOMPUTE"),
    "4.1": ("step04", "PADDED"),
    "4.2": ("step04", "EMBEDDING"),
    "4.3": ("step04_loss", "STATISTICS"),
    "4.4": ("step04_gradient", "GRADIENT"),
    "5.1": ("step05", "COORDINATES"),
    "5.2": ("step05", "AVERAGE"),
    "5.3": ("step05_mean", "MEAN"),
    "5.4": ("step05_clip", "CLIP"),
    "5.5": ("step05_step", "STEP"),
    "6.1": ("step06_masking", "MASKING"),
    "6.2": ("step06", "BLOCK"),
    "6.3": ("step06_order", "ORDER"),
    "6.4": ("step06", "DECODER"),
}


def probe(id: str) -> Probe:
    module, name = PLACES[id]
    found = getattr(importlib.import_module(f"{__package__}.{module}"), name)
    assert isinstance(found, Probe)
    return found
