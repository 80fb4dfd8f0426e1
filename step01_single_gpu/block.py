"""One transformer layer: attention and MLP, each normalised first and added to the stream."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from .attention import Attention, residual_std
from .config import GPTConfig
from .dropout import Dropout, DropoutFunction
from .weights import dotted, linear


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)): [b, s, h] -> [b, s, h].

    Dropout acts on what each branch adds, at "<name>.attention_residual" and
    "<name>.mlp_residual".
    """

    def __init__(
        self,
        config: GPTConfig,
        *,
        seed: int = 0,
        name: str = "",
        dropout: DropoutFunction | None = None,
    ) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.attention = Attention(
            config, seed=seed, name=dotted(name, "attention"), dropout=dropout
        )
        self.dropout1 = Dropout(config.dropout, dotted(name, "attention_residual"), dropout)
        self.ln2 = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.mlp = MLP(config, seed=seed, name=dotted(name, "mlp"))
        self.dropout2 = Dropout(config.dropout, dotted(name, "mlp_residual"), dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout1(self.attention(self.ln1(x)))
        x = x + self.dropout2(self.mlp(self.ln2(x)))
        return x


class MLP(nn.Module):
    """GeLU(x Aᵀ) Bᵀ with biases: [b, s, h] -> [b, s, 4h] -> [b, s, h].

    `up` holds the paper's A and `down` its B (section 3): the pair of GEMMs that step 2 cuts.
    """

    def __init__(self, config: GPTConfig, *, seed: int = 0, name: str = "mlp") -> None:
        super().__init__()
        hidden, std = config.hidden_size, residual_std(config)
        self.approximate = "tanh" if config.gelu == "tanh" else "none"
        self.up = linear(hidden, 4 * hidden, std=0.02, seed=seed, name=dotted(name, "up"))
        self.down = linear(4 * hidden, hidden, std=std, seed=seed, name=dotted(name, "down"))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down(F.gelu(self.up(x), approximate=self.approximate))
        return output
