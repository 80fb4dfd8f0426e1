"""The parallel MLP (paper, section 3 and figure 3a): one all-reduce each way."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from step01_single_gpu.attention import residual_std
from step01_single_gpu.config import GPTConfig
from step01_single_gpu.weights import dotted

from .linear import ColumnParallelLinear, RowParallelLinear
from .wire import Group


class ParallelMLP(nn.Module):
    """GeLU(x A) B over the ranks of `group`: [b, s, h] -> [b, s, h], the same on all ranks.

    A is cut by columns, so each rank holds whole entries of x A and can take GeLU of them; B is
    cut by rows, just where A's outputs end up, so nothing is exchanged between the two.
    Wire: forward one all-reduce of b·s·h numbers (g, in `down`), backward one (f, in `up`).
    Raises ValueError if the ranks don't divide 4 · hidden_size.
    """

    def __init__(
        self, config: GPTConfig, *, group: Group = None, seed: int = 0, name: str = "mlp"
    ) -> None:
        super().__init__()
        h = config.hidden_size
        self.approximate = "tanh" if config.gelu == "tanh" else "none"
        self.up = ColumnParallelLinear(h, 4 * h, group=group, seed=seed, name=dotted(name, "up"))
        self.down = RowParallelLinear(
            4 * h, h, group=group, std=residual_std(config), seed=seed, name=dotted(name, "down")
        )

    # exercise 2.5
    def forward(self, x: Tensor) -> Tensor:
        part = F.gelu(self.up(x), approximate=self.approximate)  # [b, s, 4h/n]
        output: Tensor = self.down(part)
        return output
