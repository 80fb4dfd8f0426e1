"""The sizes of a BERT, checked when they are written down, and the paper's models."""

from __future__ import annotations

from dataclasses import dataclass

from step01_single_gpu.config import GPTConfig

NORMS = ("rearranged", "original")


@dataclass(frozen=True)
class BertConfig(GPTConfig):
    """The sizes of a BERT. Raises ValueError for sizes that cannot work, when it is made.

    Those of a GPT-2, and where the layer norm stands (paper, section 5.3 and figure 7): `norm` is
    "rearranged" (before each branch) or "original" (behind each sum). `num_segments`: how many
    kinds of text a row may have, first and second sentence. GeLU and epsilon are BERT's own.
    """

    gelu: str = "erf"
    norm_eps: float = 1e-12
    norm: str = "rearranged"
    num_segments: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm not in NORMS:
            raise ValueError(f'norm is {self.norm!r}; it must be "rearranged" or "original"')
        n = self.num_segments
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ValueError(f"num_segments is {n!r}; it must be a whole number of at least 1")

    @property
    def num_parameters(self) -> int:
        """Weights in the whole model, both heads and the pooler included.

        Both orders have as many: the norm of the embeddings in one is the last norm in the other.
        """
        h = self.hidden_size
        encoder = super().num_parameters + self.num_segments * h
        pooler, order = h * h + h, 2 * h + 2
        mlm = h * h + h + 2 * h + self.vocab_size  # dense, norm, bias; the decoder is tied
        return encoder + pooler + order + mlm


def _paper(num_layers: int, hidden_size: int, num_heads: int) -> BertConfig:
    return BertConfig(30522, 512, hidden_size, num_layers, num_heads)


PAPER_MODELS: dict[str, BertConfig] = {
    # Made for a laptop; four fifths of its weights are the vocabulary's.
    "bert-mini": BertConfig(30522, 128, hidden_size=128, num_layers=4, num_heads=4),
    # Table 4; heads of 64.
    "bert-336m": _paper(24, 1024, 16),
    "bert-1.3b": _paper(24, 2048, 32),
    "bert-3.9b": _paper(48, 2560, 40),
}
