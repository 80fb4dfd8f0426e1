"""Step 5's answers: the grid and averaged gradients; the rest is in the files beside."""
# ruff: noqa: E501 (an answer's line is a line of its code)

from __future__ import annotations

from . import Answer, step05_clip, step05_mean

RANGE = "if not 0 <= rank < tp_size * dp_size:\n    raise ValueError(f'no rank {rank}')\n"


def body(head: str, lines: str) -> str:
    """A function of that head."""
    return f"{head}\n    " + "\n    ".join(lines.strip("\n").split("\n")) + "\n"


def place(name: str, key: str | tuple[str, ...], lines: str) -> Answer:
    keys = (key,) if isinstance(key, str) else key
    return Answer("5.1", name, keys, body("def grid_coordinates(rank, tp_size, dp_size):", lines))


PLACE = [
    place("columns first", "neighbours=dp", RANGE + "return rank % dp_size, rank // dp_size"),
    place("divmod by dp_size", "neighbours=rows of dp_size", RANGE + "return divmod(rank, dp_size)"),
    place("swapped", "order=tp, dp", RANGE + "return rank % tp_size, rank // tp_size"),
    place("two remainders", "dp_rank=remainder by dp", RANGE + "return rank % dp_size, rank % tp_size"),
    place("true division", "dp_rank=fraction", RANGE + "return rank / tp_size, rank % tp_size"),
    place("dp_rank is the rank", "dp_rank=the rank", RANGE + "return rank, rank % tp_size"),
    place("dp_rank by dp_size", "dp_rank=quotient by dp", RANGE + "return rank // dp_size, rank % tp_size"),
    place("two quotients", "tp_rank=quotient by dp", RANGE + "return rank // tp_size, rank // dp_size"),
    place("tp_rank is the rank", "tp_rank=the rank", RANGE + "return rank // tp_size, rank"),
    place("tp_rank by dp_size", "tp_rank=remainder by dp", RANGE + "return rank // tp_size, rank % dp_size"),
    place("rank from one", "counts from=ranks from one", RANGE + "return (rank - 1) // tp_size, (rank - 1) % tp_size"),
    place("from one", "counts from=coordinates from one", RANGE + "return rank // tp_size + 1, rank % tp_size + 1"),
    place("asserted", "checked=by another error", "assert 0 <= rank < tp_size * dp_size, rank\nreturn divmod(rank, tp_size)"),
    place("unchecked", "checked=nothing", "return divmod(rank, tp_size)"),
    place("too large passes", "checked=from below alone", "if rank < 0:\n    raise ValueError(rank)\nreturn divmod(rank, tp_size)"),
    place("negative passes", "checked=from above alone", "if rank >= tp_size * dp_size:\n    raise ValueError(rank)\nreturn divmod(rank, tp_size)"),
    place("one too many", "checked=one too many", "if not 0 <= rank <= tp_size * dp_size:\n    raise ValueError(rank)\nreturn divmod(rank, tp_size)"),
    place("unchecked and swapped", ("checked=nothing", "order=tp, dp"), "return rank % tp_size, rank // tp_size"),
    # right ones
    place("divmod", (), RANGE + "return divmod(rank, tp_size)"),
    place("subtracted", (), RANGE + "dp_rank = 0\nwhile rank >= tp_size:\n    rank -= tp_size\n    dp_rank += 1\nreturn dp_rank, rank"),
    place("looked up", (), "ranks = torch.arange(tp_size * dp_size).view(dp_size, tp_size)\nif rank not in range(ranks.numel()):\n    raise ValueError('no such rank')\n"
          "return tuple((ranks == rank).nonzero()[0].tolist())"),
]  # fmt: skip


def mean(name: str, key: str | tuple[str, ...], lines: str) -> Answer:
    keys = (key,) if isinstance(key, str) else key
    return Answer(
        "5.2", name, keys, body("def average_gradients(parameters, dp_group=None):", lines)
    )


LOOP = """n = group_size(dp_group)
for p in parameters:
    had = torch.zeros_like(p) if p.grad is None else p.grad
    t = had.detach().float() if had.dtype in (torch.float16, torch.bfloat16) else had.detach()
    t = t.clone(memory_format=torch.contiguous_format)
"""
SUM = "    all_reduce_(t, dp_group)\n"
KEEP = "    p.grad = t.to(had.dtype)"
MEAN = [
    mean("nothing", "rule=own", LOOP + KEEP),
    mean("not divided", "rule=sum", LOOP + SUM + KEEP),
    mean("not summed", "rule=own/n", LOOP + "    t /= n\n" + KEEP),
    mean("times n", "rule=n own", LOOP + "    t *= n\n" + KEEP),
    mean("divided before and after", "rule=mean, divided again", LOOP + "    t /= n\n" + SUM + "    t /= n\n" + KEEP),
    mean("over the world's size", "rule=sum over all ranks' number", LOOP + SUM + "    t /= dist.get_world_size()\n" + KEEP),
    mean("n - 1", "rule=sum over one fewer", LOOP + SUM + "    t /= max(n - 1, 1)\n" + KEEP),
    mean("over the world", "rule=world", LOOP + "    all_reduce_(t, dist.group.WORLD)\n    t /= dist.get_world_size()\n" + KEEP),
    mean("world's sum, group's size", "rule=world", LOOP + "    dist.all_reduce(t)\n    t /= n\n" + KEEP),
    mean("max", "rule=max", LOOP + "    all_reduce_(t, dp_group, 'max')\n" + KEEP),
    mean("broadcast", "rule=first", LOOP + "    if dp_group is not None:\n        dist.broadcast(t, group_src=0, group=dp_group)\n" + KEEP),
    mean("None is all", "alone", LOOP + "    dist.all_reduce(t, group=dp_group)\n    t /= dist.get_world_size(dp_group)\n" + KEEP),
    mean("the weights", "of what=parameters", "n = group_size(dp_group)\nfor p in parameters:\n    t = p.detach().float() if p.dtype == torch.float16 else p.detach().clone()\n" + SUM + "    p.data = (t / n).to(p.dtype)"),
    mean("both", "of what=both", LOOP + SUM + "    t /= n\n" + KEEP + "\n    w = p.detach().clone()\n    all_reduce_(w, dp_group)\n    p.data.copy_(w / n)"),
    mean("one alone", "of what=the first alone", LOOP + SUM + "    t /= n\n" + KEEP + "\n    return"),
    mean("skipped", "missing=skipped", LOOP.replace("had = torch.zeros_like(p) if p.grad is None else p.grad", "if p.grad is None:\n        continue\n    had = p.grad") + SUM + "    t /= n\n" + KEEP),
    mean("not kept", "missing=counted, but not kept", LOOP + SUM + "    t /= n\n    if p.grad is not None:\n        p.grad.copy_(t)"),
    mean("of those there", "missing=mean of those that have one", LOOP + "    there = torch.tensor(float(p.grad is not None))\n    all_reduce_(there, dp_group)\n" + SUM + "    t /= there.clamp(min=1)\n" + KEEP),
    mean("half", "half types=summed in float16", LOOP.replace(".float()", "") + SUM + "    t /= n\n" + KEEP),
    mean("float32 stays", "variant=half precision", LOOP + SUM + "    t /= n\n    p.grad = t"),
    mean("in place", "variant=not dense", LOOP.replace("clone(memory_format=torch.contiguous_format)", "clone()") + SUM + "    t /= n\n" + KEEP),
    mean("no zeros", "variant=a gradient is missing", LOOP.replace("torch.zeros_like(p) if p.grad is None else ", "") + SUM + "    t /= n\n" + KEEP),
    mean("not waited for", "flag=not waited", LOOP + "    all_reduce_(t, dp_group, async_op=True)\n    t /= n\n" + KEEP),
    mean("skipped and not divided", ("missing=skipped", "rule=sum"), LOOP.replace("had = torch.zeros_like(p) if p.grad is None else p.grad", "if p.grad is None:\n        continue\n    had = p.grad") + SUM + KEEP),
    # right ones
    mean("summed, divided", (), LOOP + SUM + "    t /= n\n" + KEEP),
    mean("divided first, into the old", (), LOOP + "    t /= n\n" + SUM + "    if p.grad is None:\n        p.grad = torch.zeros_like(p)\n    p.grad.copy_(t)"),
    mean("one packed collective", (), "ps = list(parameters)\ngs = [torch.zeros_like(p) if p.grad is None else p.grad for p in ps]\n"
         "flat = torch.cat([g.reshape(-1).double() for g in gs])\nall_reduce_(flat, dp_group)\nflat /= group_size(dp_group)\n"
         "for p, part in zip(ps, flat.split([p.numel() for p in ps])):\n    p.grad = part.view(p.shape).to(p.dtype)"),
    mean("waited for at the end", (), "jobs = []\nfor p in parameters:\n    g = torch.zeros_like(p) if p.grad is None else p.grad\n    t = g.to(torch.float64, copy=True).contiguous()\n"
         "    jobs.append((p, t, all_reduce_(t, dp_group, async_op=True)))\nfor p, t, work in jobs:\n    if work is not None:\n        work.wait()\n    p.grad = (t / group_size(dp_group)).to(p.dtype)"),
    mean("gathered", (), "for p in parameters:\n    g = torch.zeros_like(p) if p.grad is None else p.grad\n    p.grad = all_gather(g.double(), dp_group).mean(0).to(p.dtype)"),
]  # fmt: skip

ANSWERS = [*PLACE, *MEAN, *step05_mean.ANSWERS, *step05_clip.ANSWERS]
