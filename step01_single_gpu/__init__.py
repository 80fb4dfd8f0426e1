"""Step 1: the unpartitioned GPT-2, and a program that trains it on one device."""

from .attention import attention_scores
from .batches import global_batch
from .config import PAPER_MODELS, GPTConfig
from .fused_loss import linear_cross_entropy
from .loss import cross_entropy
from .model import GPT
from .optimizer import lr_at
from .scoring import token_losses
from .weights import draw_weight

__all__ = [
    "GPT",
    "PAPER_MODELS",
    "GPTConfig",
    "attention_scores",
    "cross_entropy",
    "draw_weight",
    "global_batch",
    "linear_cross_entropy",
    "lr_at",
    "token_losses",
]
