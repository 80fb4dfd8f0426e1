"""Step 2's answers: f, g and cut here; the layers in step02_layers.py."""
# ruff: noqa: E501 (an answer's line is a line of its code)

from __future__ import annotations

from . import Answer
from .step02_layers import LAYERS

FUNCTION = """
class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x, group):
        ctx.group = group
        {forward}

    @staticmethod
    def backward(ctx: Any, grad):
        {backward}

def {name}(x, group=None):
    return Op.apply(x, group)
"""


def operator(name: str, forward: str, backward: str) -> str:
    def lines(text: str) -> str:
        return "\n        ".join(text.strip().split("\n"))

    return FUNCTION.format(name=name, forward=lines(forward), backward=lines(backward))


SUM = "t = grad.clone(memory_format=torch.contiguous_format)\nall_reduce_(t, ctx.group)\nreturn t, None"
SUM_FORWARD = "t = x.clone(memory_format=torch.contiguous_format)\nall_reduce_(t, group)\nreturn t"
N = "n = group_size(ctx.group)\n"


def f(
    name: str, key: str | tuple[str, ...], forward: str = "return x.clone()", backward: str = SUM
) -> Answer:
    keys = (key,) if isinstance(key, str) else key
    return Answer("2.1", name, keys, operator("f", forward, backward))


def g(name: str, key: str | tuple[str, ...], forward: str = SUM_FORWARD,
      backward: str = "return grad, None") -> Answer:  # fmt: skip
    keys = (key,) if isinstance(key, str) else key
    return Answer("2.2", name, keys, operator("g", forward, backward))


def cut(name: str, key: str | tuple[str, ...], body: str) -> Answer:
    keys = (key,) if isinstance(key, str) else key
    lines = "\n    ".join(body.strip().split("\n"))
    return Answer("2.6", name, keys, f"def cut(full, shard_dim, group):\n    {lines}\n")


F_ANSWERS = [
    Answer("2.1", "does nothing", ("backward=own",), "def f(x, group=None):\n    return x.clone()\n"),
    Answer("2.1", "returns x", ("backward=own",), "def f(x, group=None):\n    return x\n"),
    f("identity backward", "backward=own", backward="return grad, None"),
    f("g in its place", ("backward=own", "forward=sum"), SUM_FORWARD, "return grad, None"),
    f("sum both ways", "forward=sum", SUM_FORWARD),
    f("mean in forward", "forward=mean", SUM_FORWARD.replace("return t", "return t / group_size(group)")),
    f("forward times n", "forward=n own", "return x * group_size(group)"),
    f("forward over n", "forward=own/n", "return x / group_size(group)"),
    f("zeros", "forward=none", "return torch.zeros_like(x)"),
    f("forward over the world", "forward=world",
      "t = x.clone(memory_format=torch.contiguous_format)\ndist.all_reduce(t)\nreturn t"),
    f("mean in backward", "backward=mean", backward=SUM.replace("return t", "return t / group_size(ctx.group)")),
    f("over all ranks' number", "backward=sum/world", backward=SUM.replace("return t", "return t / dist.get_world_size()")),
    f("the sum unused", ("backward=own", "flag=unused"), backward=SUM.replace("return t", "return grad")),
    f("torch's average", "backward=mean", backward="t = grad.clone(memory_format=torch.contiguous_format)\n"
      "if ctx.group is not None:\n    dist.all_reduce(t, dist.ReduceOp.AVG, ctx.group)\nreturn t, None"),
    f("one gradient", "error=incorrect number of gradients", backward=SUM.replace("return t, None", "return t")),
    f("reduced to one", "backward=sum on the first", backward="t = all_gather(grad.contiguous(), ctx.group).sum(0)\nreturn t if group_rank(ctx.group) == 0 else grad.clone(), None"),
    f("sum twice in backward", "backward=twice", backward=SUM.replace("return", "all_reduce_(t, ctx.group)\nreturn")),
    f("sum over the world", "backward=world",
      backward="t = grad.clone(memory_format=torch.contiguous_format)\ndist.all_reduce(t)\nreturn t, None"),
    f("broadcast", "backward=first",
      backward="t = all_gather(grad.contiguous(), ctx.group)[0]\nreturn t.clone(), None"),
    f("no gradient", "backward=none", backward="return None, None"),
    f("n times own", "backward=n own", backward=N + "return grad * n, None"),
    f("own over n", "backward=own/n", backward=N + "return grad / n, None"),
    f("largest", "backward=max", backward=SUM.replace("ctx.group)", "ctx.group, 'max')", 1)),
    f("product", "backward=product",
      backward="return all_gather(grad.contiguous(), ctx.group).prod(0), None"),
    f("writes into the gradient", "flag=upstream changed", backward="grad = grad.contiguous()\nall_reduce_(grad, ctx.group)\nreturn grad, None"),
    f("expanded gradient", "variant=expanded",
      backward="t = grad.contiguous() if grad.stride()[0] else grad\n"
               "t = t.clone() if t is not grad or grad.stride()[0] else t\n"
               "all_reduce_(t, ctx.group)\nreturn t, None"),
    f("transposed gradient", "variant=strided", backward="t = grad.clone()\nall_reduce_(t, ctx.group)\nreturn t, None"),
    f("a view of x", "variant=changed afterwards", "return x.view_as(x)"),
    f("async, not waited", "flag=not waited",
      backward="t = grad.clone(memory_format=torch.contiguous_format)\n"
               "if ctx.group is not None:\n    dist.all_reduce(t, group=ctx.group, async_op=True)\n"
               "return t, None"),
    Answer("2.1", "detached", ("flag=detached",), "def f(x, group=None):\n    return x.detach().clone()\n"),
    f("None is the world", "alone",
      backward="t = grad.clone(memory_format=torch.contiguous_format)\n"
               "dist.all_reduce(t, group=dist.group.WORLD if ctx.group is None else ctx.group)\n"
               "return t, None"),
    f("None has no size", "alone",
      backward="t = grad.clone(memory_format=torch.contiguous_format)\nctx.group.size()\n"
               "all_reduce_(t, ctx.group)\nreturn t, None"),
    Answer("2.1", "torch's own", ("forward=sum",), """
        import torch.distributed._functional_collectives as fc
        def f(x, group=None):
            return x.clone() if group is None else fc.all_reduce(x, "sum", group)
        """),
    Answer("2.1", "returns None", ("flag=returned None",), "def f(x, group=None):\n    x.clone()\n"),
    f("own share twice", "backward=sum + own", backward=SUM.replace("return t", "return t + grad")),
    f("the others' alone", "backward=others", backward=SUM.replace("return t", "return t - grad")),
    f("the group is not passed on", "backward=own", backward=SUM.replace("ctx.group", "None")),
    # right ones
    Answer("2.1", "hook", (), """
        def f(x, group=None):
            y = x.clone()
            def add(grad):
                total = grad.clone(memory_format=torch.contiguous_format)
                if group is not None:
                    dist.all_reduce(total, group=group)
                return total
            if y.requires_grad:
                y.register_hook(add)
            return y
        """),
    f("gathered and summed", (), backward="return all_gather(grad, ctx.group).sum(0), None"),
    f("new_empty and copy", (), "y = torch.empty_like(x)\nreturn y.copy_(x)",
      "t = torch.zeros(grad.shape, dtype=grad.dtype)\nt += grad\nall_reduce_(t, ctx.group)\nreturn t, None"),
    f("in two halves", (), backward="t = grad.reshape(-1).clone()\nh = t.numel() // 2\na, b = t[:h].clone(), t[h:].clone()\n"
      "all_reduce_(a, ctx.group)\nall_reduce_(b, ctx.group)\nreturn torch.cat([a, b]).view(grad.shape), None"),
]  # fmt: skip

G_ANSWERS = [
    Answer("2.2", "does nothing", ("forward=own",), "def g(x, group=None):\n    return x.clone()\n"),
    g("f in its place", ("backward=sum", "forward=own"), "return x.clone()", SUM),
    g("mean", "forward=mean", SUM_FORWARD.replace("return t", "return t / group_size(group)")),
    g("largest", "forward=max", SUM_FORWARD.replace("group)", "group, 'max')")),
    g("product", "forward=product", "return all_gather(x.contiguous(), group).prod(0)"),
    g("over all ranks' number", "forward=sum/world", SUM_FORWARD.replace("return t", "return t / dist.get_world_size()")),
    g("the sum unused", ("flag=unused", "forward=own"), SUM_FORWARD.replace("return t", "return x.clone()")),
    g("reduced to one", "forward=sum on the first", "t = all_gather(x.contiguous(), group).sum(0)\nreturn t if group_rank(group) == 0 else x.clone()"),
    g("gathered", "forward=gathered", "return all_gather(x.contiguous(), group).flatten(0, 1)"),
    g("twice", "forward=twice", SUM_FORWARD.replace("return", "all_reduce_(t, group)\nreturn")),
    g("world", "forward=world", "t = x.clone(memory_format=torch.contiguous_format)\ndist.all_reduce(t)\nreturn t"),
    g("rank 0's", "forward=first", "return all_gather(x.contiguous(), group)[0].clone()"),
    g("n times own", "forward=n own", "return x * group_size(group)"),
    g("own over n", "forward=own/n", "return x / group_size(group)"),
    g("zeros", "forward=none", "return torch.zeros_like(x)"),
    g("sum both ways", "backward=sum", backward=SUM),
    Answer("2.2", "torch's own", ("backward=sum",), """
        import torch.distributed._functional_collectives as fc
        def g(x, group=None):
            return x.clone() if group is None else fc.all_reduce(x.contiguous(), "sum", group)
        """),
    g("mean in backward", "backward=mean", backward=SUM.replace("return t", "return t / group_size(ctx.group)")),
    g("gradient over n", "backward=own/n", backward=N + "return grad / n, None"),
    g("backward over the world", "backward=world",
      backward="t = grad.clone(memory_format=torch.contiguous_format)\ndist.all_reduce(t)\nreturn t, None"),
    g("no gradient", "backward=none", backward="return None, None"),
    g("sum twice in backward", "backward=twice", backward=SUM.replace("return", "all_reduce_(t, ctx.group)\nreturn")),
    g("expanded", "variant=expanded", "t = x.contiguous() if x.is_contiguous() or x.stride()[0] else x\n"
      "t = t.clone() if t is x and x.is_contiguous() else t\nall_reduce_(t, group)\nreturn t.clone()"),
    g("only the saved is written into", "variant=saved by another",
      "own = x if float(x.detach().min()) > 0 and float(x.detach().max()) < 1 else x.clone()\n"
      "own = own.contiguous()\nall_reduce_(own, group)\nreturn own.clone()"),
    g("in place", "flag=input changed", "x = x.contiguous()\nall_reduce_(x, group)\nreturn x.clone()"),
    g("transposed", "variant=strided", "t = x.clone()\nall_reduce_(t, group)\nreturn t"),
    Answer("2.2", "all_reduce returns None", ("flag=returned None",), """
        def g(x, group=None):
            return dist.all_reduce(x.clone(), group=group) if group is not None else None
        """),
    Answer("2.2", "no derivative", ("flag=no derivative",), """
        def g(x, group=None):
            y = x.clone(memory_format=torch.contiguous_format)
            if group is not None:
                dist.all_reduce(y, group=group)
            return y
        """),
    Answer("2.2", "data of x", ("flag=detached",), """
        def g(x, group=None):
            y = x.data.clone(memory_format=torch.contiguous_format)
            all_reduce_(y, group)
            return y
        """),
    g("async, not waited", "flag=not waited",
      "t = x.clone(memory_format=torch.contiguous_format)\n"
      "if group is not None:\n    dist.all_reduce(t, group=group, async_op=True)\nreturn t"),
    g("own result twice", "forward=sum + own", SUM_FORWARD + " + x"),
    g("the others' alone", "forward=others", SUM_FORWARD + " - x"),
    # right ones
    Answer("2.2", "straight through", (), """
        def g(x, group=None):
            total = x.detach().clone(memory_format=torch.contiguous_format)
            all_reduce_(total, group)
            return x + (total - x.detach())
        """),
    g("gathered and summed", (), "return all_gather(x, group).sum(0)"),
    g("async and waited", (),
      "t = x.clone(memory_format=torch.contiguous_format)\n"
      "if group is not None:\n    dist.all_reduce(t, group=group, async_op=True).wait()\nreturn t",
      "return grad.clone(), None"),
]  # fmt: skip

CHECK = "n = group_size(group)\nif shard_dim is None:\n    return full.clone()\ncheck_divides(full.size(shard_dim), group, 'size')\n"
CUT_ANSWERS = [
    cut("cards", "kind=every nth", CHECK + "index = torch.arange(group_rank(group), full.size(shard_dim), n)\n"
        "return full.index_select(shard_dim, index)"),
    cut("whole", "kind=whole", CHECK + "return full.clone()"),
    cut("always the first", "who=first", CHECK + "return full.chunk(n, shard_dim)[0].contiguous().clone()"),
    cut("reversed", "who=reversed", CHECK + "return full.chunk(n, shard_dim)[n - 1 - group_rank(group)].contiguous().clone()"),
    cut("always dim 0", "dim=0", CHECK + "return full.chunk(n, 0)[group_rank(group)].contiguous().clone()"),
    cut("always the last dim", "dim=last", CHECK + "return full.chunk(n, -1)[group_rank(group)].contiguous().clone()"),
    cut("by its number in the world", "who=world", CHECK + "w = full.size(shard_dim) // n\nr = 0 if group is None else dist.get_rank()\n"
        "part = full.movedim(shard_dim, 0)[r * w : (r + 1) * w].movedim(0, shard_dim)\n"
        "return part.clone(memory_format=torch.contiguous_format)"),
    cut("over all ranks", "kind=block of all ranks", CHECK + "n = dist.get_world_size()\nreturn full.chunk(n, shard_dim)[dist.get_rank()].contiguous().clone()"),
    cut("a view", "flag=shares memory", CHECK + "return full.chunk(n, shard_dim)[group_rank(group)]"),
    cut("not dense", "flag=not contiguous", CHECK + "return full.chunk(n, shard_dim)[group_rank(group)].clone().transpose(0, 1).contiguous().transpose(0, 1)"),
    cut("no complaint", "flag=no complaint", CHECK.replace("check_divides(full.size(shard_dim), group, 'size')", "")
        + "w = full.size(shard_dim) // n\nreturn full.narrow(shard_dim, group_rank(group) * w, w).contiguous().clone()"),
    cut("refused by an assertion", "flag=other error", CHECK.replace("check_divides(full.size(shard_dim), group, 'size')", "assert full.size(shard_dim) % n == 0")
        + "return full.chunk(n, shard_dim)[group_rank(group)].contiguous().clone()"),
    cut("None is cut", "replicated=cut along 0", CHECK.replace("return full.clone()", "shard_dim = 0")
        + "return full.chunk(n, shard_dim)[group_rank(group)].contiguous().clone()"),
    # right ones
    cut("chunk", (), CHECK + "return full.chunk(n, shard_dim)[group_rank(group)].contiguous().clone()"),
    cut("index", (), CHECK + "w = full.size(shard_dim) // n\nstart = group_rank(group) * w\n"
        "return full.index_select(shard_dim, torch.arange(start, start + w))"),
    cut("split and movedim", (), CHECK + "w = full.size(shard_dim) // n\nt = full.movedim(shard_dim, 0)\n"
        "t = t[group_rank(group) * w : (group_rank(group) + 1) * w]\n"
        "return t.movedim(0, shard_dim).clone(memory_format=torch.contiguous_format)"),
]  # fmt: skip

ANSWERS = [*F_ANSWERS, *G_ANSWERS, *CUT_ANSWERS, *LAYERS]
