"""The whole transformer layer over the ranks: parallel attention and MLP, the rest replicated.

Layer norm, dropout on the residual branches and the additions are computed by every rank on the
same numbers: twice the work rather than a broadcast of the result (paper, section 3).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from step01_single_gpu.config import GPTConfig
from step01_single_gpu.weights import dotted
from step02_mlp_parallel.mlp import ParallelMLP
from step02_mlp_parallel.sharding import ParallelModule
from step02_mlp_parallel.wire import Group

from .attention import ParallelAttention
from .recompute import recompute as recomputed
from .rng import RNGTracker, drop

Branch = Callable[[Tensor], Tensor]


class ParallelBlock(ParallelModule):
    """[b, s, h] -> [b, s, h], the same on all ranks of `group`; names and whole shapes of step 1's.

    `padding_mask` [b, s] bool, True = a real token. Wire: 2 all-reduces forward and 2 backward, of
    b·s·h numbers each. With `recompute` only x is kept, and backward runs the block again with the
    same dropout masks: 2 all-reduces more, 1 without dropout, where the last g is not needed again.
    `norm`: "rearranged" (before each branch) or "original" (behind each sum; step 6).
    Raises ValueError if the ranks don't divide num_heads or 4 · hidden_size.
    """

    def __init__(
        self,
        config: GPTConfig,
        *,
        group: Group = None,
        rng: RNGTracker | None = None,
        recompute: bool = False,
        causal: bool = True,
        norm: str = "rearranged",
        seed: int = 0,
        name: str = "",
    ) -> None:
        super().__init__()
        if norm not in ("rearranged", "original"):
            raise ValueError(f'norm is {norm!r}; it must be "rearranged" or "original"')
        self.group, self.rng, self.recompute, self.norm = group, rng, recompute, norm
        self.p, self.name = config.dropout, name
        self.ln1 = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.attention = ParallelAttention(
            config, group=group, rng=rng, causal=causal, seed=seed, name=dotted(name, "attention")
        )
        self.ln2 = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.mlp = ParallelMLP(config, group=group, seed=seed, name=dotted(name, "mlp"))

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        def run(x: Tensor) -> Tensor:
            return block(
                x,
                self.ln1,
                lambda y: self._drop(self.attention(y, padding_mask), "attention_residual"),
                self.ln2,
                lambda y: self._drop(self.mlp(y), "mlp_residual"),
                self.norm,
            )

        return recomputed(run, x, self.rng) if self.recompute else run(x)

    def _drop(self, x: Tensor, site: str) -> Tensor:
        """Residual dropout: replicated, so the same on all TP ranks."""
        if not self.training or self.p == 0.0:
            return x
        full_site = dotted(self.name, site)
        return drop(x, self.p, full_site, self.rng, self.group, sharded=False)


# exercise 6.2
def block(x: Tensor, ln1: Branch, attention: Branch, ln2: Branch, mlp: Branch, norm: str) -> Tensor:
    """A transformer layer out of its parts, in either order (paper, figure 7).

    rearranged: x + attention(ln1(x)), then + mlp(ln2(·)): the stream itself is never normalised.
    original: ln1(x + attention(x)), then ln2(· + mlp(·)).
    """
    if norm == "rearranged":
        x = x + attention(ln1(x))
        return x + mlp(ln2(x))
    x = ln1(x + attention(x))
    return ln2(x + mlp(x))
