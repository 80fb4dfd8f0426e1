"""GPT-2 cut by layers: a stage of a pipeline, its blocks cut over tensor-parallel ranks or not.

A stage has whole blocks, made of the steps' own modules and with the reference's names. The token
embedding is also the output layer, so the first and the last stage both hold it, and each computes
one half of its gradient: the halves must be added, or the two copies drift apart.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from step01_single_gpu.config import GPTConfig
from step01_single_gpu.model import check_tokens
from step01_single_gpu.weights import embedding
from step02_mlp_parallel.sharding import ParallelModule
from step02_mlp_parallel.wire import Group, all_reduce_
from step03_attention_parallel import ParallelBlock
from step04_embeddings_loss import VocabParallelEmbedding, vocab_parallel_linear_cross_entropy


def layers_of(stage: int, pp_size: int, num_layers: int) -> range:
    """Which blocks stage `stage` has. Raises ValueError unless all stages get equally many."""
    if num_layers % pp_size:
        works = [n for n in range(1, num_layers + 1) if num_layers % n == 0]
        raise ValueError(
            f"{num_layers} layers don't divide by {pp_size} stages; these would work: "
            f"{', '.join(map(str, works))}"
        )
    each = num_layers // pp_size
    return range(stage * each, (stage + 1) * each)


class StageGrid:
    """This rank's stage and groups, out of a DeviceMesh (pp, tp) of the first pp · tp ranks.

    Tensor-parallel ranks are adjacent, since they talk most. `ends` is the group of the first and
    the last stage that share a part of the embedding: None on the stages between, and when there
    is one stage. All ranks of the world must make it, also those beyond pp · tp, whose `member` is
    False: making a group is a collective of the whole world.
    Raises ValueError if the world is smaller.
    """

    def __init__(self, pp_size: int, tp_size: int) -> None:
        world = dist.get_world_size()
        if pp_size < 1 or tp_size < 1 or pp_size * tp_size > world:
            raise ValueError(
                f"pp_size {pp_size} × tp_size {tp_size} must be between 1 and the {world} ranks "
                "that are running"
            )
        self.pp_size, self.tp_size = pp_size, tp_size
        ranks = torch.arange(pp_size * tp_size).view(pp_size, tp_size)
        self.mesh = DeviceMesh("cpu", ranks, mesh_dim_names=("pp", "tp"))
        self.ends: Group = None
        for column in ranks.t().tolist():
            if pp_size > 1:
                group = dist.new_group([column[0], column[-1]])
                if dist.get_rank() in (column[0], column[-1]):
                    self.ends = group
        self.member = dist.get_rank() < pp_size * tp_size
        if self.member:
            self.pp_group, self.tp_group = self.mesh.get_group("pp"), self.mesh.get_group("tp")
            self.stage = dist.get_rank(self.pp_group)
            self.is_first, self.is_last = self.stage == 0, self.stage == pp_size - 1


class GPTStage(ParallelModule):
    """The blocks of one stage; the embeddings before the first, norm and output layer on the last.

    tokens [b, s] (first stage) or hidden states [b, s, h] -> hidden states [b, s, h]; names and
    whole shapes of the parameters are those of step 1's `GPT`, as far as the stage has them.
    Wire: the blocks' and the embedding's all-reduces over `grid.tp_group`. What goes from stage to
    stage is the schedule's business.
    Raises ValueError if the stages don't divide num_layers, or for dropout: a schedule doesn't
    tell a stage which rows it works on, so its masks could not be those of one process.
    """

    def __init__(self, config: GPTConfig, grid: StageGrid, *, vocab_multiple: int = 128) -> None:
        super().__init__()
        if config.dropout:
            raise ValueError(f"dropout is {config.dropout}; a stage of a pipeline needs 0.0 here")
        layers = layers_of(grid.stage, grid.pp_size, config.num_layers)
        self.config, self.grid, self.group = config, grid, grid.tp_group
        h = config.hidden_size
        if grid.is_first or grid.is_last:
            self.tokens = VocabParallelEmbedding(
                config.vocab_size, h, group=self.group, multiple=vocab_multiple, name="tokens"
            )
        if grid.is_first:
            self.positions = embedding(config.seq_length, h, std=0.02, seed=0, name="positions")
        self.blocks = nn.ModuleDict(
            {str(i): ParallelBlock(config, group=self.group, name=f"blocks.{i}") for i in layers}
        )
        if grid.is_last:
            self.ln = nn.LayerNorm(h, eps=config.norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        if self.grid.is_first:
            check_tokens(x, self.config)
            x = self.tokens(x) + self.positions.weight[: x.size(1)]
        for block in self.blocks.values():
            x = block(x)
        if self.grid.is_last:
            x = self.ln(x)
        return x

    def loss(self, hidden: Tensor, targets: Tensor, divisor: float) -> Tensor:
        """Of the last stage: the summed loss of `targets` [b, s] over `divisor`."""
        return vocab_parallel_linear_cross_entropy(
            hidden,
            self.tokens.weight,
            targets,
            self.group,
            vocab_size=self.config.vocab_size,
            reduction="sum",
            divisor=divisor,
            allow_empty_ranks=True,  # as ParallelGPT: a small vocabulary padded to 128 a rank
        )

    def add_tied_gradients(self) -> None:
        """Give both copies of the embedding the sum of their gradients, once a step.

        Wire: one all-reduce of padded_v/n · h numbers between first and last stage.
        """
        if self.grid.ends is not None:
            grad = self.tokens.weight.grad
            assert grad is not None
            all_reduce_(grad, self.grid.ends)  # in place: .grad is the parameter's own
