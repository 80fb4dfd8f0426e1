"""Step 2's answers for the layers' forward methods."""
# ruff: noqa: E501 (an answer's line is a line of its code)

from __future__ import annotations

from . import Answer

OWNERS = {"2.3": "ColumnParallelLinear", "2.4": "RowParallelLinear", "2.5": "ParallelMLP"}
TORCHS = "import torch.distributed._functional_collectives as fc\n"


def layer(id: str, name: str, key: str | tuple[str, ...], body: str) -> Answer:
    keys = (key,) if isinstance(key, str) else key
    lines = "\n        ".join(body.strip().split("\n"))
    code = f"class {OWNERS[id]}:\n    def forward(self, x):\n        {lines}\n"
    return Answer(id, name, keys, code)


def column(name: str, key: str | tuple[str, ...], body: str, tail: str | None = None) -> Answer:
    end = "\nreturn gather_last_dim(y, self.group) if self.gather_output else y"
    return layer("2.3", name, key, body + (end if tail is None else "\n" + tail))


Y = "y = F.linear(f(x, self.group), self.weight, self.bias)"
WORLD_F = (
    "y = F.linear(f(x, None if self.group is None else dist.group.WORLD), self.weight, self.bias)"
)
BOTH = "y = {0} if self.group is None else fc.all_reduce({0}.contiguous(), 'sum', self.group)"
B = "(0 if self.bias is None else self.bias)"

MEAN = """class Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        t = grad.clone(memory_format=torch.contiguous_format)
        all_reduce_(t, ctx.group)
        return t / group_size(ctx.group), None
"""

COLUMN = [
    column("bias over n", "bias=over n", "y = F.linear(f(x, self.group), self.weight)\ny = y if self.bias is None else y + self.bias / group_size(self.group)"),
    column("no f", "front=nothing", "y = F.linear(x, self.weight, self.bias)"),
    column("g in front", "front=g", "y = F.linear(g(x, self.group), self.weight, self.bias)"),
    column("f twice", "front=f twice", "y = F.linear(f(f(x, self.group), self.group), self.weight, self.bias)"),
    column("f over the world", "front=f over all ranks", WORLD_F),
    column("detached", "front=cut off", "y = F.linear(x.detach(), self.weight, self.bias)"),
    column("no bias", "bias=left out", "y = F.linear(f(x, self.group), self.weight)"),
    column("two biases", "bias=twice", Y + f" + {B}"),
    column("f behind too", "behind=f", "y = f(F.linear(f(x, self.group), self.weight, self.bias), self.group)"),
    column("f only behind", ("behind=f", "front=nothing"), "y = f(F.linear(x, self.weight, self.bias), self.group)"),
    column("g behind", "behind=g", "y = g(F.linear(f(x, self.group), self.weight, self.bias), self.group)"),
    column("never gathered", "when asked=nothing", Y, "return y"),
    column("always gathered", "unasked=gathered", Y, "return gather_last_dim(y, self.group)"),
    column("gather without gradient", "flag=detached", Y,
           "if not self.gather_output:\n    return y\n"
           "return torch.cat(list(all_gather(y.detach(), self.group)), -1)"),
    column("gathered below", "when asked=along dim 0", Y,
           "if not self.gather_output:\n    return y\n"
           "return gather_last_dim(y.transpose(0, -1), self.group).transpose(0, -1)"),
    column("sum of slices", "when asked=sum of slices", Y,
           "if not self.gather_output or self.group is None:\n    return y\n"
           "return F.linear(f(gather_last_dim(y, self.group), self.group), torch.eye(self.out_features, dtype=y.dtype))"),
    column("torch's all-reduce in front", "front=all-reduce both ways", TORCHS + BOTH.format("x")
           + "\ny = F.linear(y, self.weight, self.bias)"),
    column("torch's all-reduce behind", "behind=all-reduce both ways", TORCHS
           + "own = F.linear(f(x, self.group), self.weight, self.bias)\n" + BOTH.format("own")),
    column("averaged", "front=f, averaged", MEAN + "y = F.linear(Mean.apply(x, self.group), self.weight, self.bias)"),
    column("n times its own share", "front=f, n own", "n = group_size(self.group)\nx = x.detach() + n * (x - x.detach())\n"
           "y = F.linear(x, self.weight, self.bias)"),
    # right ones
    column("by hand", (), f"y = f(x, self.group) @ self.weight.T + {B}"),
    column("einsum", (), "y = torch.einsum('...i,oi->...o', f(x, self.group), self.weight)\n"
           "if self.bias is not None:\n    y = y + self.bias"),
]  # fmt: skip

S = "y = g(F.linear(x, self.weight), self.group)\n"
FIRST = "first = self.group is None or group_rank(self.group) == 0\n"


def row(name: str, key: str | tuple[str, ...], body: str) -> Answer:
    return layer("2.4", name, key, body)


OWN = "own = F.linear(x, self.weight)\nt = own.detach().clone()\n"
THROUGH = f"return own + (t - own.detach()) + {B}"
ADD = f"return y + {B}"
ROW = [
    row("bias in the product", "bias=before", "return g(F.linear(x, self.weight, self.bias), self.group)"),
    row("bias of rank 0 in the product", "bias=rank 0, before",
        FIRST + "return g(F.linear(x, self.weight, self.bias if first else None), self.group)"),
    row("bias on rank 0", "bias=rank 0, behind", FIRST + S + f"return y + {B} if first else y"),
    row("a share of the bias", "bias=share, before",
        f"return g(F.linear(x, self.weight) + {B} / group_size(self.group), self.group)"),
    row("no bias", "bias=left out", S + "return y"),
    row("two biases", "bias=twice", S + f"return y + 2 * {B}"),
    row("the bias over all ranks' number", "bias=share of all, before", f"return g(F.linear(x, self.weight) + {B} / dist.get_world_size(), self.group)"),
    row("the bias of rank 0 of all", "bias=rank 0 of all, before", f"return g(F.linear(x, self.weight) + {B} * (dist.get_rank() == 0), self.group)"),
    row("the bias n times", "bias=times n, behind", f"return g(F.linear(x, self.weight), self.group) + {B} * group_size(self.group)"),
    row("g over n", "sum=mean", f"return g(F.linear(x, self.weight), self.group) / group_size(self.group) + {B}"),
    row("no sum", "sum=nothing", "return F.linear(x, self.weight, self.bias)"),
    row("f in g's place", "sum=f", f"return f(F.linear(x, self.weight), self.group) + {B}"),
    row("torch's all-reduce", "sum=all-reduce both ways",
        "import torch.distributed._functional_collectives as fc\ny = F.linear(x, self.weight)\n"
        "y = y if self.group is None else fc.all_reduce(y, 'sum', self.group)\n" + ADD),
    row("g twice", "sum=g twice", "y = g(g(F.linear(x, self.weight), self.group), self.group)\n" + ADD),
    row("mean", "sum=mean", S + "n = group_size(self.group)\n"
        "y = y.detach() / n + (F.linear(x, self.weight) - F.linear(x, self.weight).detach())\n" + ADD),
    row("over the world", "sum=g over all ranks",
        "y = g(F.linear(x, self.weight), None if self.group is None else dist.group.WORLD)\n" + ADD),
    row("cut off", "sum=g, cut off", "y = F.linear(x, self.weight).detach().clone()\nall_reduce_(y, self.group)\n"
        "return y + self.bias if self.bias is not None else y + 0 * self.weight.sum()"),
    row("f in front", "front=f", "y = g(F.linear(f(x, self.group), self.weight), self.group)\n" + ADD),
    row("x added up", "front=g", "y = g(F.linear(g(x, self.group), self.weight), self.group)\n" + ADD),
    row("g behind the bias again", "behind=g", S + f"return g(y + {B}, self.group)"),
    row("f behind", "behind=f", S + f"return f(y + {B}, self.group)"),
    row("no sum, no bias", ("bias=left out", "sum=nothing"), "return F.linear(x, self.weight)"),
    row("None is returned", "flag=returned None", "y = F.linear(x, self.weight)\ny = y.clone()\nall_reduce_(y, self.group)"),
    row("largest", "sum=max", OWN + "all_reduce_(t, self.group, 'max')\n" + THROUGH),
    row("the first rank's", "sum=g of rank 0", OWN + "t = all_gather(t, self.group)[0]\n" + THROUGH),
    row("gradient over n", "sum=g, own / n back", OWN + "all_reduce_(t, self.group)\nn = group_size(self.group)\n"
        f"return own / n + (t - own.detach() / n) + {B}"),
    row("mean both ways", "sum=mean both ways", MEAN.replace("return x.clone()", "return all_gather(x, group).mean(0)")
        + f"return Mean.apply(F.linear(x, self.weight), self.group) + {B}"),
    row("x detached", "front=cut off", f"return g(F.linear(x.detach(), self.weight), self.group) + {B}"),
    row("a share of the bias behind", "bias=share, behind", S + f"return y + {B} / group_size(self.group)"),
    # right ones
    row("matmul", (), f"return g(x @ self.weight.T, self.group) + {B}"),
    row("straight through", (), "own = F.linear(x, self.weight)\ntotal = own.detach().clone()\n"
        f"all_reduce_(total, self.group)\nreturn own + (total - own.detach()) + {B}"),
    row("in place", (), "y = g_(F.linear(x, self.weight), self.group)\nreturn y if self.bias is None else y.add_(self.bias)"),
]  # fmt: skip


def mlp(name: str, key: str | tuple[str, ...], body: str) -> Answer:
    return layer("2.5", name, key, body)


GELU = "F.gelu({}, approximate=self.approximate)"
A = GELU.format("self.up(x)")
MLP = [
    mlp("f in front", "extra in front=f",
        f"return self.down({GELU.format('self.up(f(x, self.up.group))')})"),
    mlp("up by hand", "up=by hand",
        f"return self.down({GELU.format('F.linear(x, self.up.weight, self.up.bias)')})"),
    mlp("no GeLU", "act=none", "return self.down(self.up(x))"),
    mlp("ReLU", "act=relu", "return self.down(F.relu(self.up(x)))"),
    mlp("exact GeLU", "act=always erf", "return self.down(F.gelu(self.up(x)))"),
    mlp("tanh GeLU", "act=always tanh", "return self.down(F.gelu(self.up(x), approximate='tanh'))"),
    mlp("SiLU", "act=silu", "return self.down(F.silu(self.up(x)))"),
    mlp("tanh", "act=tanh", "return self.down(torch.tanh(self.up(x)))"),
    mlp("GeLU behind", "place=behind down", f"return {GELU.format('self.down(self.up(x))')}"),
    mlp("GeLU twice", "place=twice", f"return self.down({GELU.format(A)})"),
    mlp("GeLU on both sides", "place=both sides", f"return {GELU.format(f'self.down({A})')}"),
    mlp("g between", "between=g", f"return self.down({GELU.format('g(self.up(x), self.up.group)')})"),
    mlp("f between", "between=f", f"return self.down({GELU.format('f(self.up(x), self.up.group)')})"),
    mlp("down by hand", "down=bias in the product",
        f"return g(F.linear({A}, self.down.weight, self.down.bias), self.down.group)"),
    mlp("sigmoid", "act=sigmoid", "return self.down(torch.sigmoid(self.up(x)))"),
    mlp("no down", "down=left out", f"return {A}"),
    mlp("over n", "extra behind=over n", f"return self.down({A}) / group_size(self.up.group)"),
    mlp("no sum", "down=no sum", f"return F.linear({A}, self.down.weight, self.down.bias)"),
    mlp("g behind", "extra behind=g", f"return g(self.down({A}), self.down.group)"),
    mlp("f behind", "extra behind=f", f"return f(self.down({A}), self.down.group)"),
    mlp("residual", "residual=added", f"return x + self.down({A})"),
    mlp("f in front and g behind", ("extra behind=g", "extra in front=f"),
        f"return g(self.down({GELU.format('self.up(f(x, self.up.group))')}), self.up.group)"),
    mlp("detached between", "between=cut off", f"return self.down({GELU.format('self.up(x).detach()')})"),
    mlp("x detached", "extra in front=cut off", f"return self.down({GELU.format('self.up(x.detach())')})"),
    mlp("g in front", "extra in front=g", f"return self.down({GELU.format('self.up(g(x, self.up.group))')})"),
    mlp("mean between", "between=mean", "u = self.up(x)\nt = u.detach().clone()\nall_reduce_(t, self.up.group)\n"
        "t /= group_size(self.up.group)\n" + f"return self.down({GELU.format('u + (t - u.detach())')})"),
    mlp("mean behind", "extra behind=mean", f"y = self.down({A})\nt = y.detach().clone()\nall_reduce_(t, self.up.group)\n"
        "t /= group_size(self.up.group)\nreturn y + (t - y.detach())"),
    mlp("torch's all-reduce between", "between=all-reduce both ways", TORCHS
        + f"u = self.up(x)\nu = u if self.up.group is None else fc.all_reduce(u, 'sum', self.up.group)\nreturn self.down({GELU.format('u')})"),
    mlp("torch's all-reduce behind", "extra behind=all-reduce both ways", TORCHS
        + f"u = self.down({A})\nreturn u if self.up.group is None else fc.all_reduce(u, 'sum', self.up.group)"),
    mlp("GeLU of x", "place=before up", f"return self.down(self.up({GELU.format('x')}))"),
    mlp("g behind GeLU", "between=g", f"return self.down(g({A}, self.up.group))"),
    mlp("f behind GeLU", "between=f", f"return self.down(f({A}, self.up.group))"),
    # right ones
    mlp("torch.nn.GELU", (), "return self.down(torch.nn.GELU(self.approximate)(self.up(x)))"),
    mlp("all by hand", (), "y = F.linear(f(x, self.up.group), self.up.weight, self.up.bias)\n"
        f"y = {GELU.format('y')}\nreturn g(F.linear(y, self.down.weight), self.down.group) + self.down.bias"),
]  # fmt: skip

LAYERS = [*COLUMN, *ROW, *MLP]
