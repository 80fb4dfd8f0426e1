"""Answers to 5.3, the mean over the global batch."""
# ruff: noqa: E501 (an answer's line is a line of its code)

from __future__ import annotations

from . import Answer

HEAD = "def backward_global_mean(model, micro_batches, dp_group=None):\n    n = group_size(dp_group)\n    device = next(model.parameters()).device\n"
COUNT = "count = valid_tokens(micro_batches, device, dp_group)\n"
TOTAL = "total = torch.zeros((), dtype=torch.float64)\n"
LOOP = "for tokens, targets in micro_batches:\n    loss = model.loss(tokens, targets, reduction='sum', divisor=DIVISOR)\n    loss.backward()\n    total += loss.detach()\n"
AVERAGE = "average_gradients(model.parameters(), dp_group)\n"
END = "all_reduce_(total, dp_group)\nreturn total / n"
ALL = COUNT + TOTAL + LOOP + AVERAGE + END
OWN = "own = max(sum(int((t != -100).sum()) for _, t in micro_batches), 1)\n"


def batch(name: str, key: str | tuple[str, ...], lines: str, divisor: str = "count / n") -> Answer:
    keys = (key,) if isinstance(key, str) else key
    text = lines.replace("DIVISOR", divisor).strip("\n").split("\n")
    return Answer("5.3", name, keys, HEAD + "    " + "\n    ".join(text) + "\n")


ANSWERS = [
    batch("the whole count", "divisor=count", ALL, "count"),
    batch("times n", "divisor=count times n", ALL, "count * n"),
    batch("own count", "divisor=own count", OWN + ALL.replace(COUNT, ""), "own"),
    batch("own count times n", "divisor=own count", OWN + ALL.replace(COUNT, ""), "(own * n)"),
    batch("own count over n", "divisor=own count", OWN + ALL.replace(COUNT, ""), "own / n"),
    batch("no backward", "backward=left out", ALL.replace("    loss.backward()\n", "")),
    batch("cleared behind", "backward=left out", ALL.replace(AVERAGE, AVERAGE + "model.zero_grad()\n")),
    batch("micro-batch means", "divisor=own of each micro-batch", ALL.replace("reduction='sum', divisor=DIVISOR", "").replace(COUNT, "")),
    batch("mean of micro-batch means", "divisor=own of each micro-batch", ALL.replace("loss = model.loss(tokens, targets, reduction='sum', divisor=DIVISOR)", "loss = model.loss(tokens, targets) / len(micro_batches)").replace(COUNT, "")),
    batch("counted micro-batch by micro-batch", "divisor=count of each micro-batch / n", ALL.replace(COUNT, ""), "valid_tokens([(tokens, targets)], device, dp_group) / n"),
    batch("all tokens", "divisor=all tokens / n", ALL.replace(COUNT, "count = torch.tensor(float(sum(t.numel() for _, t in micro_batches)))\nall_reduce_(count, dp_group)\ncount = count.clamp(min=1)\n")),
    batch("own tokens", "divisor=all tokens / n", ALL.replace(COUNT, "count = float(sum(t.numel() for _, t in micro_batches))\n"), "count"),
    batch("the world's tokens", "divisor=world's count / n", ALL.replace(COUNT, "count = valid_tokens(micro_batches, device, None if dp_group is None else dist.group.WORLD)\n")),
    batch("a sum", "divisor=nothing", ALL.replace(COUNT, ""), "None"),
    batch("not averaged", "average=own", ALL.replace(AVERAGE, "")),
    batch("summed", "average=sum", ALL.replace(AVERAGE, AVERAGE + "for p in model.parameters():\n    p.grad *= n\n")),
    batch("divided again", "average=mean, divided again", ALL.replace(AVERAGE, AVERAGE + "for p in model.parameters():\n    p.grad /= n\n")),
    batch("averaged in the loop", "average=after each micro-batch", (COUNT + TOTAL + LOOP + "    " + AVERAGE + END)),
    batch("the last alone", "micro-batches=the last", COUNT + "total, loss = torch.zeros(()).double(), None\nfor tokens, targets in micro_batches:\n    loss = model.loss(tokens, targets, reduction='sum', divisor=count / n)\nif loss is not None:\n    loss.backward()\n    total += loss.detach()\n" + AVERAGE + END),
    batch("the first alone", "micro-batches=the first", COUNT + TOTAL + LOOP + "    break\n" + AVERAGE + END),
    batch("cleared in the loop", "micro-batches=the last", COUNT + TOTAL + LOOP.replace("    loss.backward()", "    model.zero_grad()\n    total.zero_()\n    loss.backward()") + AVERAGE + END),
    batch("loss added up", "loss=of all ranks, not divided", ALL.replace("return total / n", "return total")),
    batch("own loss", "loss=own", ALL.replace("all_reduce_(total, dp_group)\nreturn total / n", "return total")),
    batch("own share of the loss", "loss=own / n", ALL.replace("all_reduce_(total, dp_group)\n", "")),
    batch("the last loss", "loss=the last micro-batch's", ALL.replace("total += loss", "total.copy_(loss)")),
    batch("no loss", "loss=nothing", ALL.replace("all_reduce_(total, dp_group)\nreturn total / n", "")),
    batch("no micro-batch, no meeting", "variant=a rank without micro-batches", "if not micro_batches:\n    return torch.zeros(())\n" + ALL),
    batch("divided by zero", "variant=no valid token", ALL.replace(COUNT, "count = torch.tensor(float(sum(int((t != -100).sum()) for _, t in micro_batches)))\nall_reduce_(count, dp_group)\n")),
    batch("micro-batch means, own loss", ("divisor=own of each micro-batch", "loss=own"), ALL.replace("reduction='sum', divisor=DIVISOR", "").replace(COUNT, "").replace("all_reduce_(total, dp_group)\nreturn total / n", "return total")),
    # right ones
    batch("count over n", (), ALL),
    batch("summed gradients", (), COUNT + TOTAL + LOOP + "for p in model.parameters():\n    p.grad = torch.zeros_like(p) if p.grad is None else p.grad\n    all_reduce_(p.grad, dp_group)\nall_reduce_(total, dp_group)\nreturn total", "count"),
    batch("one backward", (), COUNT + "losses = [model.loss(x, t, reduction='none') for x, t in micro_batches]\ntotal = sum(y.sum() for y in losses) * n / count if losses else torch.zeros(())\n"
          "if losses:\n    total.backward()\n    total = total.detach().clone()\n" + AVERAGE + "total = total.double()\n" + END),
    batch("means weighted", (), COUNT + TOTAL + "for x, t in micro_batches:\n    share = (t != -100).sum() * n / count\n    loss = share * model.loss(x, t)\n    loss.backward()\n    total += loss.item()\n" + AVERAGE + END),
]  # fmt: skip
