"""Step 1's answers: the loss over the tokens that count."""
# ruff: noqa: E501 (an answer's line is a line of its code)

from __future__ import annotations

from . import Answer

HEAD = 'import math\ndef cross_entropy(logits, targets, *, ignore_index=-100, reduction="mean", divisor=None):\n    '


def loss(name: str, key: str | tuple[str, ...], body: str) -> Answer:
    keys = (key,) if isinstance(key, str) else key
    return Answer("1.2", name, keys, HEAD + "\n    ".join(body.strip().split("\n")) + "\n")


CHECK = "check_shapes(logits, targets)\nvalid = valid_targets(targets, logits.size(-1), ignore_index)\nx = logits.float() if logits.dtype == torch.float16 else logits\n"
PICK = "picked = x.gather(-1, targets.masked_fill(~valid, 0).long().unsqueeze(-1)).squeeze(-1)\n"
LOSSES = "losses = (x.logsumexp(-1) - picked).masked_fill(~valid, 0.0)\n"
END = "return reduce_losses(losses, valid, reduction, divisor)"
ALL = CHECK + PICK + LOSSES + END
MEAN = "if reduction == 'mean':\n    return {}\n"
TORCH = "flat = F.cross_entropy(x.reshape(-1, x.size(-1)), targets.reshape(-1).long(), ignore_index=ignore_index, reduction='none')\nlosses = flat.view_as(targets)\n"


def change(*pairs: str) -> str:
    text = ALL
    for old, new in zip(pairs[::2], pairs[1::2], strict=True):
        assert old in text, old
        text = text.replace(old, new)
    return text


LOSS = [
    loss("the logit", "of a token=logit alone", change("x.logsumexp(-1) - picked", "-picked")),
    loss("the sum", "of a token=sum alone", change(" - picked", "")),
    loss("log p", "of a token=log p", change("x.logsumexp(-1) - picked", "picked - x.logsumexp(-1)")),
    loss("probability", "of a token=p", change("(x.logsumexp(-1) - picked)", "(-(picked - x.logsumexp(-1)).exp())")),
    loss("1 - p", "of a token=p", change("(x.logsumexp(-1) - picked)", "(1 - (picked - x.logsumexp(-1)).exp())")),
    loss("bits", "of a token=base 2", change("(x.logsumexp(-1) - picked)", "((x.logsumexp(-1) - picked) / math.log(2))")),
    loss("largest not put back", "of a token=largest not put back", change("x.logsumexp(-1) - picked", "(x - x.amax(-1, keepdim=True)).exp().sum(-1).log() - picked")),
    loss("always the mean", "reduction=always the mean", CHECK + PICK + LOSSES + "return losses.sum() / valid.sum().clamp(min=1)"),
    loss("always the sum", "reduction=always the sum", CHECK + PICK + LOSSES + "return losses.sum() if divisor is None else losses.sum() / divisor"),
    loss("not masked", "ignored=class 0's loss", change(".masked_fill(~valid, 0.0)", "")),
    loss("not masked, mean over all", "ignored=class 0's loss", change(".masked_fill(~valid, 0.0)", "", "losses, valid", "losses, torch.ones_like(valid)")),
    loss("never ignored", "ignored=class 0's loss", change("masked_fill(~valid, 0)", "clamp(min=0)", ".masked_fill(~valid, 0.0)", "", "losses, valid", "losses, torch.ones_like(valid)")),
    loss("-100 hard-coded", "ignored=-100 alone", change("ignore_index)", "-100)")),
    loss("0 is nothing", "ignored=class 0 too", change("ignore_index)\n", "ignore_index) & (targets != 0)\n")),
    loss("over positions", "softmax=over positions", change("x.logsumexp(-1) - picked", "-picked", "picked = x.", "picked = x.log_softmax(-2).")),
    loss("softmax first", "softmax=twice", change("logits.float() if logits.dtype == torch.float16 else logits", "(logits.float() if logits.dtype == torch.float16 else logits).softmax(-1)")),
    loss("class leaves", "softmax=without the ignored class", change("x.logsumexp(-1)", "(x.masked_fill(torch.arange(x.size(-1)) == ignore_index, -math.inf)).logsumexp(-1)")),
    loss("mean over all", "mean=over all", CHECK + PICK + LOSSES + MEAN.format("losses.mean()") + END),
    loss("mean over b", "mean=over b", CHECK + PICK + LOSSES + MEAN.format("losses.sum() / losses.size(0)") + END),
    loss("mean over s", "mean=over s", CHECK + PICK + LOSSES + MEAN.format("losses.sum(0).mean()") .replace("sum(0).mean()", "sum() / losses.size(1)") + END),
    loss("mean is the sum", "mean=not divided", CHECK + PICK + LOSSES + MEAN.format("losses.sum()") + END),
    loss("one more", "mean=one more", CHECK + PICK + LOSSES + MEAN.format("losses.sum() / (valid.sum() + 1)") + END),
    loss("of rows", "mean=of the sequences' means", CHECK + PICK + LOSSES + MEAN.format("(losses.sum(-1) / valid.sum(-1).clamp(min=1)).mean()") + END),
    loss("flat", "none=flattened", CHECK + PICK + LOSSES + "losses, valid = losses.flatten(), valid.flatten()\n" + END),
    loss("valid ones", "none=valid ones alone", CHECK + PICK + LOSSES + "losses = losses[valid]\n" + END),
    loss("none is the sum", "none=their sum", CHECK + PICK + LOSSES + "if reduction == 'none':\n    return losses.sum()\n" + END),
    loss("none is the mean", "none=their sum", CHECK + PICK + LOSSES + "if reduction == 'none':\n    reduction = 'mean'\n" + END),
    loss("sum is the mean", "sum=the mean", CHECK + PICK + LOSSES + "if reduction == 'sum':\n    return losses.sum() / valid.sum().clamp(min=1) / (divisor or 1)\n" + END),
    loss("no divisor", "divisor=not used", change("reduction, divisor)", "reduction)")),
    loss("divides the mean", "divisor=of the mean", CHECK + PICK + LOSSES + "if divisor is not None:\n    return losses.sum() / valid.sum().clamp(min=1) / divisor\n" + END),
    loss("multiplies", "divisor=multiplied", CHECK + PICK + LOSSES + "if divisor is not None:\n    return losses.sum() * divisor\n" + END),
    loss("shifted", "shift=once more", "logits, targets = logits[:, :-1], targets[:, 1:]\n" + ALL),
    loss("overflows", "variant=logits in thousands", change("x.logsumexp(-1)", "x.exp().sum(-1).log()")),
    loss("log of softmax", "variant=logits in thousands", change("picked = x.", "picked = x.softmax(-1).", "x.logsumexp(-1) - picked", "-picked.log()")),
    loss("in float16", "variant=float16", change("logits.float() if logits.dtype == torch.float16 else logits", "logits", ".masked_fill(~valid, 0.0)", ".masked_fill(~valid, 0.0).to(torch.float32 if x.dtype == torch.float16 else x.dtype)")),
    loss("NaN for nothing", "none valid=NaN", CHECK + "if reduction == 'mean':\n    return F.cross_entropy(x.reshape(-1, x.size(-1)), targets.reshape(-1).long(), ignore_index=ignore_index)\n" + PICK + LOSSES + END),
    loss("mean over all and no divisor", ("divisor=not used", "mean=over all"), CHECK + PICK + LOSSES + MEAN.format("losses.mean()") + END.replace(", divisor", "")),
    loss("no check", "flag=no complaint", "valid = targets != ignore_index\nx = logits.float() if logits.dtype == torch.float16 else logits\npicked = x.gather(-1, targets.masked_fill(~valid, 0).clamp(0, x.size(-1) - 1).long().unsqueeze(-1)).squeeze(-1)\n" + LOSSES + END),
    # right ones
    loss("torch's own", (), CHECK + TORCH + END),
    loss("log_softmax and one-hot", (), CHECK + "hot = F.one_hot(targets.masked_fill(~valid, 0).long(), x.size(-1)) * valid.unsqueeze(-1)\nlosses = -(x.log_softmax(-1) * hot).sum(-1)\n" + END),
    loss("by hand", (), CHECK + "top = x.amax(-1, keepdim=True).detach()\n" + PICK.replace("x.gather", "(x - top).gather") + "losses = torch.where(valid, (x - top).exp().sum(-1).log() - picked, torch.zeros_like(picked))\n"
         "if reduction == 'none':\n    return losses\nif reduction == 'mean':\n    return losses.sum() / max(int(valid.sum()), 1)\nreturn losses.sum() / (1 if divisor is None else divisor)"),
]  # fmt: skip
