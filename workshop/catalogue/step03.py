"""Step 3's answers."""
# ruff: noqa: E501 (an answer's line is a line of its code)

from __future__ import annotations

from . import Answer
from .step03_attention import ATTENTION
from .step03_recompute import RECOMPUTE
from .step03_rng import STREAMS, SWAP


def qkv(name: str, key: str | tuple[str, ...], body: str) -> Answer:
    keys = (key,) if isinstance(key, str) else key
    lines = "\n    ".join(body.strip().split("\n"))
    tools = "from step02_mlp_parallel.sharding import cut\n"
    return Answer(
        "3.2",
        name,
        keys,
        f"{tools}def cut_qkv(full, group):\n    n = group_size(group)\n    {lines}\n",
    )


QKV = [
    qkv("stacked and shaped back", "how=stacked, shaped back",
        "part = cut(full.flatten(0, 1), 0, group)\nreturn part.view(3, -1, *full.shape[2:])"),
    qkv("stacked", "how=stacked", "return cut(full.flatten(0, 1), 0, group)"),
    qkv("joined", "how=inside each, joined", "return torch.cat([cut(m, 0, group) for m in full])"),
    qkv("the three", "error=dimension 0 of shape [3", "return cut(full, 0, group)"),
    qkv("last dim", "how=along the last dimension", "return cut(full, -1, group)"),
    qkv("cards", "how=every nth", "return full[:, group_rank(group) :: n].contiguous().clone()"),
    qkv("whole", "how=whole", "return full.clone()"),
    qkv("first", "who=first", "return full.chunk(n, 1)[0].contiguous().clone()"),
    qkv("reversed", "who=reversed", "return full.chunk(n, 1)[n - 1 - group_rank(group)].contiguous().clone()"),
    qkv("a view", "flag=shares memory", "return full.chunk(n, 1)[group_rank(group)]"),
    qkv("None", "flag=returned None", "cut(full, 1, group)"),
    # right ones
    qkv("chunks of each", (), "return torch.stack([m.chunk(n, 0)[group_rank(group)] for m in full])"),
    qkv("three cuts", (), "q, k, v = full\nreturn torch.stack([cut(q, 0, group), cut(k, 0, group), cut(v, 0, group)])"),
]  # fmt: skip
ANSWERS = [*ATTENTION, *QKV, *STREAMS, *SWAP, *RECOMPUTE]
