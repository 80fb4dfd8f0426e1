"""Step 2: f and g, linear layers cut over the ranks, the parallel MLP, and ranks to run it."""

from .launch import RankError, join_torchrun, run_ranks
from .ledger import record_collectives
from .linear import ColumnParallelLinear, RowParallelLinear
from .mlp import ParallelMLP
from .operators import f, g, gather_last_dim, split_last_dim
from .sharding import gather_full_gradients, gather_full_state_dict, load_full_state_dict

__all__ = [
    "ColumnParallelLinear",
    "ParallelMLP",
    "RankError",
    "RowParallelLinear",
    "f",
    "g",
    "gather_full_gradients",
    "gather_full_state_dict",
    "gather_last_dim",
    "join_torchrun",
    "load_full_state_dict",
    "record_collectives",
    "run_ranks",
    "split_last_dim",
]
