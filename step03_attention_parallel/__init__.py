"""Step 3: attention over the ranks, dropout streams, recompute, the whole parallel block."""

from .attention import ParallelAttention
from .block import ParallelBlock, block
from .recompute import recompute
from .rng import RNGTracker

__all__ = ["ParallelAttention", "ParallelBlock", "RNGTracker", "block", "recompute"]
