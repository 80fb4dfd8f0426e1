"""Step 4: the vocabulary over the ranks, its loss, the whole parallel GPT-2, weights in and out."""

from .cross_entropy import vocab_parallel_cross_entropy
from .embedding import VocabParallelEmbedding
from .fused_loss import vocab_parallel_linear_cross_entropy
from .gpt import ParallelGPT
from .huggingface import from_huggingface_gpt2, to_huggingface_gpt2
from .vocab import padded_vocab_size

__all__ = [
    "ParallelGPT",
    "VocabParallelEmbedding",
    "from_huggingface_gpt2",
    "padded_vocab_size",
    "to_huggingface_gpt2",
    "vocab_parallel_cross_entropy",
    "vocab_parallel_linear_cross_entropy",
]
