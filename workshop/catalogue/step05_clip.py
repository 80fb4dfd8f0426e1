"""Answers to 5.4 and 5.5, clipping and the step with a loss scale."""
# ruff: noqa: E501 (an answer's line is a line of its code)

from __future__ import annotations

from . import Answer


def clip(name: str, key: str | tuple[str, ...], lines: str) -> Answer:
    keys = (key,) if isinstance(key, str) else key
    head = "import math\ndef clip_grad_norm_(module_or_parameters, max_norm, tp_group=None, *, norm_type=2.0):\n    "
    return Answer("5.4", name, keys, head + "\n    ".join(lines.strip("\n").split("\n")) + "\n")


PARTS = """p = norm_type
grads = [(q.grad, cut) for q, cut in marked(module_or_parameters, tp_group) if q.grad is not None]
cut = torch.cat([torch.zeros(1).double(), *(g.double().flatten() for g, c in grads if c)])
rest = torch.cat([torch.zeros(1).double(), *(g.double().flatten() for g, c in grads if not c)])
"""
LARGEST = """if p == math.inf:
    norm = torch.cat([cut, rest]).abs().max()
    all_reduce_(norm, tp_group, 'max')
else:
"""
POWERS = """    total = cut.abs().pow(p).sum()
    all_reduce_(total, tp_group)
    norm = (total + rest.abs().pow(p).sum()).pow(1 / p)
"""
SCALE = """if norm.isfinite():
    for g, c in grads:
        g *= min(1.0, float(max_norm / (norm + 1e-6)))
"""
NORM = PARTS + LARGEST + POWERS
ALL = NORM + SCALE + "return norm"


def norm(name: str, key: str | tuple[str, ...], powers: str, largest: str = LARGEST) -> Answer:
    """`powers`: how the norm of finite type is found."""
    block = "".join(f"    {line}\n" for line in powers.strip("\n").split("\n"))
    return clip(name, key, PARTS + largest + block + SCALE + "return norm")


SUM = "all_reduce_(total, tp_group)\n"
OWN_LARGEST = LARGEST.replace("    all_reduce_(norm, tp_group, 'max')\n", "")
CLIP = [
    norm("own", "norm=own", "norm = (cut.abs().pow(p).sum() + rest.abs().pow(p).sum()).pow(1 / p)", OWN_LARGEST),
    clip("torch's", ("norm=own", "overflow=scaled all the same"), "return torch.nn.utils.clip_grad_norm_([q for q, _ in marked(module_or_parameters, tp_group)], max_norm, norm_type)"),
    norm("all summed", "norm=replicated on every rank", "total = cut.abs().pow(p).sum() + rest.abs().pow(p).sum()\n" + SUM + "norm = total.pow(1 / p)"),
    norm("cut alone", "norm=replicated left out", "total = cut.abs().pow(p).sum()\n" + SUM + "norm = total.pow(1 / p)", LARGEST.replace("torch.cat([cut, rest])", "cut")),
    norm("replicated alone", "norm=cut left out", "norm = rest.abs().pow(p).sum().pow(1 / p)", LARGEST.replace("torch.cat([cut, rest])", "rest").replace("    all_reduce_(norm, tp_group, 'max')\n", "")),
    norm("norms added", "norm=ranks' norms added", "norm = torch.cat([cut, rest]).norm(p)\nall_reduce_(norm, tp_group)", LARGEST.replace(", 'max'", "")),
    norm("two norms", "norm=two norms added", "total = cut.abs().pow(p).sum()\n" + SUM + "norm = total.pow(1 / p) + rest.norm(p)", LARGEST.replace("norm = torch.cat([cut, rest]).abs().max()\n    all_reduce_(norm, tp_group, 'max')", "norm = cut.abs().max()\n    all_reduce_(norm, tp_group, 'max')\n    norm = norm + rest.abs().max()")),
    norm("squares", "norm=no root", "total = cut.abs().pow(p).sum()\n" + SUM + "norm = total + rest.abs().pow(p).sum()"),
    norm("largest rank", "norm=largest of the ranks", "norm = torch.cat([cut, rest]).norm(p)\nall_reduce_(norm, tp_group, 'max')"),
    norm("averaged", "norm=mean over the ranks", "total = cut.abs().pow(p).sum() / group_size(tp_group)\n" + SUM + "norm = (total + rest.abs().pow(p).sum()).pow(1 / p)", LARGEST.replace(", 'max')", ")\n    norm /= group_size(tp_group)")),
    norm("over the world", "norm=over all ranks", "total = cut.abs().pow(p).sum()\nif tp_group is not None:\n    dist.all_reduce(total)\nelse:\n    dist.all_reduce(total)\nnorm = (total + rest.abs().pow(p).sum()).pow(1 / p)", LARGEST.replace("all_reduce_(norm, tp_group, 'max')", "dist.all_reduce(norm, dist.ReduceOp.MAX)")),
    norm("absolute values", "norm=absolute values", "total = cut.abs().sum()\n" + SUM + "norm = total + rest.abs().sum()", LARGEST.replace("p == math.inf", "False")),
    clip("of the weights", "norm=of the weights", ALL.replace("(g.double()", "(q.double()").replace("for g, c in grads if c)", "for q, c in ps if c)").replace("for g, c in grads if not c)", "for q, c in ps if not c)").replace("grads = [", "ps = marked(module_or_parameters, tp_group)\nps = [(q.detach(), c) for q, c in ps]\ngrads = [")),
    norm("always 2", "norm=2 whatever is asked", "total = cut.pow(2).sum()\n" + SUM + "norm = (total + rest.pow(2).sum()).sqrt()", LARGEST.replace("p == math.inf", "False")),
    norm("largest added", "norm=largest numbers added", POWERS.replace("    total", "total").replace("    norm", "norm").replace("    all", "all"), LARGEST.replace("torch.cat([cut, rest])", "cut").replace(", 'max')", ")\n    norm = norm + rest.abs().max()")),
    clip("scaled up", "factor=always", ALL.replace("min(1.0, float(max_norm / (norm + 1e-6)))", "max_norm / float(norm + 1e-6)")),
    clip("not scaled", "factor=none", NORM + "return norm"),
    clip("rebound", "factor=none", NORM + "for g, c in grads:\n    g = g * min(1.0, float(max_norm / (norm + 1e-6)))\nreturn norm"),
    clip("to one", "factor=to one", ALL.replace("max_norm / (norm", "1.0 / (norm")),
    clip("by value", "factor=by value", ALL.replace("g *= min(1.0, float(max_norm / (norm + 1e-6)))", "g.clamp_(-max_norm, max_norm)")),
    clip("upside down", "factor=the other way up", ALL.replace("max_norm / (norm + 1e-6)", "norm / max_norm")),
    clip("cut ones scaled", "scaled=cut", ALL.replace("g *= min", "g *= 1.0 if not c else min")),
    clip("replicated ones scaled", "scaled=replicated", ALL.replace("g *= min", "g *= 1.0 if c else min")),
    clip("norm from behind", "returned=from behind", NORM + SCALE + "return norm.clamp(max=max_norm) if norm.isfinite() else norm"),
    clip("factor", "returned=factor", NORM + SCALE + "return min(1.0, float(max_norm / (norm + 1e-6))) if norm.isfinite() else torch.ones(())"),
    clip("no norm", "returned=nothing", NORM + SCALE),
    clip("zeros", "overflow=scaled all the same", ALL.replace("if norm.isfinite():", "if True:")),
    clip("leaves without gradients", "variant=a rank without cut gradients", ALL.replace("    all_reduce_(total, tp_group)\n", "    if any(c for _, c in grads):\n        all_reduce_(total, tp_group)\n")),
    clip("no case for inf", "variant=norm_type=inf", ALL.replace("if p == math.inf", "if False")),
    clip("not waited for", "flag=not waited", ALL.replace("all_reduce_(total, tp_group)", "all_reduce_(total, tp_group, async_op=True)")),
    clip("torch's, always scaled", ("factor=always", "norm=own"), "qs = [q for q, _ in marked(module_or_parameters, tp_group) if q.grad is not None]\nnorm = torch.nn.utils.get_total_norm([q.grad for q in qs], norm_type).double()\nif norm.isfinite():\n    for q in qs:\n        q.grad *= max_norm / norm\nreturn norm"),
    # right ones
    clip("powers", (), ALL),
    clip("replicated over n", (), PARTS + LARGEST + "    total = cut.abs().pow(p).sum() + rest.abs().pow(p).sum() / group_size(tp_group)\n    all_reduce_(total, tp_group)\n    norm = total ** (1 / p)\n"
         "factor = max_norm / norm if max_norm < norm < math.inf else 1.0\nfor q, _ in marked(module_or_parameters, tp_group):\n    if q.grad is not None:\n        q.grad = q.grad * factor\nreturn float(norm)"),
    clip("gathered", (), PARTS + "mine = torch.stack([cut.norm(p), rest.norm(p)])\nall_ = all_gather(mine, tp_group)\nnorm = torch.cat([all_[:, 0], all_[:, 1].max().view(1)]).norm(p)\n" + SCALE + "return norm"),
]  # fmt: skip


def step(name: str, key: str | tuple[str, ...], lines: str) -> Answer:
    keys = (key,) if isinstance(key, str) else key
    head = "def scaled_step(optimizer, parameters, scale, max_norm, tp_group=None):\n    "
    return Answer("5.5", name, keys, head + "\n    ".join(lines.strip("\n").split("\n")) + "\n")


GRADS = "ps = [p for p, _ in marked(parameters, tp_group)]\ngrads = [p.grad for p in ps if p.grad is not None]\n"
UNSCALE = "for g in grads:\n    g /= scale\n"
LOOK = "bad = torch.tensor(float(any(not g.isfinite().all() for g in grads)))\n"
AGREE = "all_reduce_(bad, tp_group, 'max')\n"
STOP = "if bad:\n    return False\n"
CLIPPED = "clip_grad_norm_(parameters, max_norm, tp_group)\n"
TAKE = "optimizer.step()\nreturn True"
STEP_ALL = GRADS + UNSCALE + LOOK + AGREE + STOP + CLIPPED + TAKE
OWN_CLIP = "torch.nn.utils.clip_grad_norm_(ps, max_norm)\n"
STEPS = [
    step("not unscaled", "unscaled=left out", STEP_ALL.replace(UNSCALE, "")),
    step("unscaled behind", "unscaled=behind clipping", STEP_ALL.replace(UNSCALE, "").replace(CLIPPED, CLIPPED + UNSCALE)),
    step("clipped first of all", "unscaled=behind clipping", GRADS + CLIPPED + UNSCALE + LOOK + AGREE + STOP + TAKE),
    step("multiplied", "unscaled=times", STEP_ALL.replace("/= scale", "*= scale")),
    step("twice", "unscaled=twice", STEP_ALL.replace("/= scale", "/= scale**2")),
    step("alone", "agreed=alone", STEP_ALL.replace(AGREE, "")),
    step("never", "agreed=never", STEP_ALL.replace(LOOK + AGREE + STOP, "")),
    step("all must", "agreed=where all have it", STEP_ALL.replace(AGREE, "all_reduce_(bad, tp_group)\nbad = bad == group_size(tp_group)\n")),
    step("whole world", "agreed=over all ranks", STEP_ALL.replace(AGREE, "dist.all_reduce(bad, dist.ReduceOp.MAX)\n")),
    step("inf alone", "looks for=inf", STEP_ALL.replace("not g.isfinite().all()", "g.isinf().any()")),
    step("NaN alone", "looks for=NaN", STEP_ALL.replace("not g.isfinite().all()", "g.isnan().any()")),
    step("plus inf alone", "looks for=+inf", STEP_ALL.replace("not g.isfinite().all()", "(g == float('inf')).any()")),
    step("largest is inf", "looks for=+inf", STEP_ALL.replace("not g.isfinite().all()", "g.nan_to_num(nan=0.0, posinf=float('inf')).max() == float('inf')")),
    step("not clipped", "clip=left out", STEP_ALL.replace(CLIPPED, "")),
    step("own clip", "clip=own", STEP_ALL.replace(CLIPPED, OWN_CLIP)),
    step("no step", "step=left out", STEP_ALL.replace("optimizer.step()\n", "")),
    step("steps and says no", "step=taken in any case", STEP_ALL.replace(STOP, "").replace("return True", "return not bad")),
    step("always True", "returned=always True", STEP_ALL.replace("return False", "return True")),
    step("always False", "returned=always False", STEP_ALL.replace("return True", "return False")),
    step("overflow", "returned=whether it overflowed", STEP_ALL.replace("return False", "return 1").replace("return True", "return False").replace("return 1", "return True")),
    step("nothing", "returned=nothing", STEP_ALL.replace("return False", "return").replace("return True", "return")),
    step("not waited for", "flag=not waited", STEP_ALL.replace("'max')", "'max', async_op=True)")),
    step("alone, own clip", ("agreed=alone", "clip=own"), STEP_ALL.replace(AGREE, "").replace(CLIPPED, OWN_CLIP)),
    step("not unscaled, not clipped", ("clip=left out", "unscaled=left out"), STEP_ALL.replace(UNSCALE, "").replace(CLIPPED, "")),
    # right ones
    step("in order", (), STEP_ALL),
    step("by the norm", (), GRADS + UNSCALE + "norm = clip_grad_norm_(parameters, max_norm, tp_group)\nif not norm.isfinite():\n    return False\noptimizer.step()\nreturn True"),
    step("counted before unscaling", (), GRADS + "bad = sum((~g.isfinite()).sum() for g in grads).double()\nall_reduce_(bad, tp_group)\nok = bad.item() == 0\nif ok:\n    torch._foreach_mul_(grads, 1 / scale)\n    clip_grad_norm_(parameters, max_norm, tp_group)\n    optimizer.step()\nreturn ok"),
]  # fmt: skip
ANSWERS = [*CLIP, *STEPS]
