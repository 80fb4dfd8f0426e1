"""Step 4: the vocabulary over the ranks, its loss, the whole parallel GPT-2, weights in and out."""

from .embedding import VocabParallelEmbedding
from .vocab import padded_vocab_size

__all__ = ["VocabParallelEmbedding", "padded_vocab_size"]
