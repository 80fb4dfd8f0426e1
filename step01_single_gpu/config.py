"""The sizes of a GPT-2, checked when they are written down, and the paper's models."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GPTConfig:
    """The sizes of a GPT-2. Raises ValueError for sizes that cannot work, when it is made.

    `dropout` is one probability for the paper's three places (embedding, attention weights,
    both residual branches). `gelu` is "tanh" (GPT-2's approximation) or "erf" (the exact one).
    """

    vocab_size: int
    seq_length: int
    hidden_size: int
    num_layers: int
    num_heads: int
    dropout: float = 0.1
    gelu: str = "tanh"
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("vocab_size", "seq_length", "hidden_size", "num_layers", "num_heads"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}; it must be a whole number of at least 1")
        if self.hidden_size % self.num_heads:
            works = [n for n in range(1, self.hidden_size + 1) if self.hidden_size % n == 0]
            raise ValueError(
                f"num_heads {self.num_heads} does not divide hidden_size {self.hidden_size}; "
                f"these would: {', '.join(map(str, works))}"
            )
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout is {self.dropout!r}; it must be at least 0 and below 1")
        if self.gelu not in ("tanh", "erf"):
            raise ValueError(f'gelu is {self.gelu!r}; it must be "tanh" or "erf"')
        if not self.norm_eps > 0.0:
            raise ValueError(f"norm_eps is {self.norm_eps!r}; it must be above 0")

    @property
    def head_dim(self) -> int:
        """Width of one attention head: hidden_size / num_heads."""
        return self.hidden_size // self.num_heads

    @property
    def num_parameters(self) -> int:
        """Weights in the whole model; the output layer shares the token embedding's."""
        h = self.hidden_size
        layer = 12 * h * h + 13 * h  # qkv 3h²+3h, out h²+h, mlp 8h²+5h, two norms 4h
        return (self.vocab_size + self.seq_length) * h + self.num_layers * layer + 2 * h


def _paper(num_layers: int, hidden_size: int, num_heads: int) -> GPTConfig:
    return GPTConfig(50257, 1024, hidden_size, num_layers, num_heads)


PAPER_MODELS: dict[str, GPTConfig] = {
    # Made for a laptop: a step of 2,048 tokens takes about a third of a second on 2 cores.
    "gpt2-mini": GPTConfig(8192, 128, hidden_size=256, num_layers=4, num_heads=4),
    "gpt2-355m": _paper(24, 1024, 16),  # Table 2
    # Table 1, the scaling study: heads of 96, so that 16, 20, 24, 32 of them fit 1, 2, 4, 8 GPUs.
    "gpt2-1.2b": _paper(40, 1536, 16),
    "gpt2-2.5b": _paper(54, 1920, 20),  # Table 2 has the same
    "gpt2-4.2b": _paper(64, 2304, 24),
    "gpt2-8.3b": _paper(72, 3072, 32),
    # Table 2: the 8.3B model that was trained to the end has 24 heads of 128.
    "gpt2-8.3b-24heads": _paper(72, 3072, 24),
}
