"""The option that the paper rejects (section 3, equation 2), so that one can see why.

Cut A by *rows* and x by columns. Then each rank has a partial sum of every entry of x A, and
GeLU(x₁A₁ + x₂A₂) is not GeLU(x₁A₁) + GeLU(x₂A₂): the ranks must add up before GeLU.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from step01_single_gpu.config import GPTConfig

from .linear import RowParallelLinear
from .operators import split_last_dim
from .sharding import ParallelModule
from .wire import Group


class RejectedMLP(ParallelModule):
    """The same MLP with A cut by rows: [b, s, h] -> [b, s, h].

    With `synchronize` it is right, and sends b·s·4h numbers before GeLU: forward an all-reduce
    five times as large in all as ParallelMLP's, backward two all-gathers more. Without it, it is
    wrong. Same parameter names and whole shapes as ParallelMLP.
    """

    def __init__(self, config: GPTConfig, *, group: Group = None, synchronize: bool = True) -> None:
        super().__init__()
        h = config.hidden_size
        self.group, self.synchronize = group, synchronize
        self.approximate = "tanh" if config.gelu == "tanh" else "none"
        self.up = RowParallelLinear(h, 4 * h, group=group, name="mlp.up")
        self.down = RowParallelLinear(4 * h, h, group=group, name="mlp.down")

    def forward(self, x: Tensor) -> Tensor:
        part = split_last_dim(x, self.group)  # [b, s, h/n]
        if self.synchronize:
            inner = split_last_dim(F.gelu(self.up(part), approximate=self.approximate), self.group)
            output: Tensor = self.down(inner)
            return output
        # GeLU of a partial sum: as if it were linear.
        partial = F.gelu(F.linear(part, self.up.weight, self.up.bias), approximate=self.approximate)
        whole: Tensor = self.down(split_last_dim(partial, self.group))
        return whole
