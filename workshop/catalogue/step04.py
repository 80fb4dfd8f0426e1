"""Step 4's answers."""
# ruff: noqa: E501 (an answer's line is a line of its code)

from __future__ import annotations

from . import Answer
from .step04_loss import GRADIENTS, STATISTICS

CHECK = "if min(vocab_size, tp_size, multiple) < 1:\n    raise ValueError('bad')\nstep = multiple * tp_size\n"


def padded(name: str, key: str | tuple[str, ...], body: str) -> Answer:
    keys = (key,) if isinstance(key, str) else key
    lines = "\n    ".join(body.strip().split("\n"))
    return Answer(
        "4.1",
        name,
        keys,
        f"import math\ndef padded_vocab_size(vocab_size, tp_size, multiple=128):\n    {lines}\n",
    )


PADDED = [
    padded("multiple of the whole", "unit=of the whole", CHECK + "return math.ceil(vocab_size / multiple) * multiple"),
    padded("ranks alone", "unit=ranks alone", CHECK + "return -(-vocab_size // tp_size) * tp_size"),
    padded("power of two", "unit=power of two", CHECK + "p = 1\nwhile p < vocab_size:\n    p *= 2\nreturn p"),
    padded("the larger", "unit=the larger", CHECK + "step = max(tp_size, multiple)\nreturn -(-vocab_size // step) * step"),
    padded("common multiple", "unit=the larger", CHECK + "step = math.lcm(tp_size, multiple)\nreturn -(-vocab_size // step) * step"),
    padded("down", "rounding=down", CHECK + "return vocab_size // step * step"),
    padded("nearest", "rounding=nearest", CHECK + "return round(vocab_size / step) * step"),
    padded("one more", "rounding=always one more", CHECK + "return (vocab_size // step + 1) * step"),
    padded("a rank's", "returns=size of a rank", CHECK + "return -(-vocab_size // step) * multiple"),
    padded("the padding", "returns=padding alone", CHECK + "return -vocab_size % step"),
    padded("units", "returns=number of units", CHECK + "return -(-vocab_size // step)"),
    padded("no complaint", "flag=no complaint", "step = multiple * tp_size\nreturn -(-vocab_size // step) * step if step else 0"),
    # right ones
    padded("ceil", (), CHECK + "return math.ceil(vocab_size / step) * step"),
    padded("step by step", (), CHECK + "size = vocab_size\nwhile size % step:\n    size += 1\nreturn size"),
]  # fmt: skip

LOOK = "check_ids(ids, self.num_embeddings, 'token')\nids = ids.long()\n"
ROWS = "rows = F.embedding(self.words.column(ids), self.weight)\nothers = ~self.words.has(ids).unsqueeze(-1)\nrows = rows.masked_fill(others, 0.0)\n"


def look(name: str, key: str | tuple[str, ...], body: str, check: str = LOOK) -> Answer:
    keys = (key,) if isinstance(key, str) else key
    lines = "\n        ".join((check + body).strip().split("\n"))
    tools = "import torch.distributed._functional_collectives as fc\nfrom step01_single_gpu.loss import check_ids\n"
    return Answer(
        "4.2",
        name,
        keys,
        f"{tools}class VocabParallelEmbedding:\n    def forward(self, ids):\n        {lines}\n",
    )


WIDTH = "width = self.weight.size(0)\nplace = group_rank(self.group)\n"
THROUGH = "t = rows.detach().clone()\n{}\nreturn rows + (t - rows.detach())"
EMBEDDING = [
    look("no sum", "sum=nothing", ROWS + "return rows"),
    look("raw rows", "offset=forgotten in the row", "own = self.words.has(ids).unsqueeze(-1)\nreturn g(self.weight[ids.clamp(max=self.weight.size(0) - 1)] * own, self.group)"),
    look("own ones zero", "others=kept alone", "rows = F.embedding(self.words.column(ids), self.weight)\nreturn g(rows.masked_fill(self.words.has(ids).unsqueeze(-1), 0.0), self.group)"),
    look("g over n", "sum=mean", ROWS + "return g(rows, self.group) / group_size(self.group)"),
    look("f", "sum=f", ROWS + "return f(rows, self.group)"),
    look("torch's all-reduce", "sum=all-reduce both ways", ROWS + "return rows if self.group is None else fc.all_reduce(rows, 'sum', self.group)"),
    look("twice", "sum=g twice", ROWS + "return g(g(rows, self.group), self.group)"),
    look("mean", "sum=mean", ROWS + THROUGH.format("all_reduce_(t, self.group)\nt /= group_size(self.group)")),
    look("max", "sum=max", ROWS + THROUGH.format("all_reduce_(t, self.group, 'max')")),
    look("the first's", "sum=g of rank 0", ROWS + THROUGH.format("t = all_gather(t, self.group)[0]")),
    look("over the world", "sum=g over all ranks", ROWS + "return g(rows, None if self.group is None else dist.group.WORLD)"),
    look("no gradient", "flag=detached", ROWS + "t = rows.detach().clone()\nall_reduce_(t, self.group)\nreturn t"),
    look("gradient kept but empty", "sum=g, cut off", ROWS + "t = rows.detach().clone()\nall_reduce_(t, self.group)\nreturn t + 0 * self.weight.sum()"),
    look("no offset", "offset=forgotten", "own = ids < self.words.count\nrows = F.embedding(ids.masked_fill(~own, 0), self.weight)\nreturn g(rows.masked_fill(~own.unsqueeze(-1), 0.0), self.group)"),
    look("not masked", "others=left as they are", "return g(F.embedding(self.words.column(ids), self.weight), self.group)"),
    look("one too many", "range=one row too many",
         "first, count = self.words.first, self.words.count\nown = (ids >= first) & (ids <= first + count)\n"
         "column = (ids - first).masked_fill(~own, 0).clamp(0, self.weight.size(0) - 1)\n"
         "rows = F.embedding(column, self.weight)\nreturn g(rows.masked_fill(~own.unsqueeze(-1), 0.0), self.group)"),
    look("off by one", "offset=one too far",
         "first, count = self.words.first + 1, self.words.count\nown = (ids >= first) & (ids < first + count)\n"
         "column = (ids - first).masked_fill(~own, 0).clamp(0, self.weight.size(0) - 1)\n"
         "rows = F.embedding(column, self.weight)\nreturn g(rows.masked_fill(~own.unsqueeze(-1), 0.0), self.group)"),
    look("no check", "flag=no complaint", ROWS + "return g(rows, self.group)", check="ids = ids.long()\n"),
    # right ones
    look("where", (), "rows = F.embedding(self.words.column(ids), self.weight)\n"
         "return g(torch.where(self.words.has(ids)[..., None], rows, torch.zeros_like(rows)), self.group)"),
    look("one-hot", (), "own = self.words.has(ids)\nhot = F.one_hot(self.words.column(ids), self.weight.size(0)).to(self.weight.dtype)\n"
         "return g((hot * own[..., None]) @ self.weight, self.group)"),
    look("multiplied", (), "rows = self.weight[self.words.column(ids)]\nreturn g(rows * self.words.has(ids).unsqueeze(-1), self.group)"),
]  # fmt: skip

ANSWERS = [*PADDED, *EMBEDDING, *STATISTICS, *GRADIENTS]
