"""Step 1's answers: scoring a text."""
# ruff: noqa: E501 (an answer's line is a line of its code)

from __future__ import annotations

from . import Answer

HEAD = """from contextlib import nullcontext
import numpy as np
@torch.no_grad()
def token_losses(model, tokens, *, stride=None, batch_size=8, progress=iter):
    length, total = model.config.seq_length, len(tokens) - 1
    stride = length if stride is None else stride
    if total < 0 or not 1 <= stride <= length or batch_size < 1:
        raise ValueError("bad")
    """


def score(name: str, key: str | tuple[str, ...], body: str, head: str = HEAD) -> Answer:
    keys = (key,) if isinstance(key, str) else key
    return Answer("1.5", name, keys, head + "\n    ".join(body.strip().split("\n")) + "\n")


BODY = """width = min(length, total)
ids = torch.from_numpy(np.asarray(tokens).astype(np.int64))
ends = [*range(width, total, stride), total] if total else []
pieces, done = [], 0
for i in range(0, len(ends), batch_size):
    some = ends[i : i + batch_size]
    rows = torch.stack([ids[end - width : end + 1] for end in some])
    with in_eval_mode(model):
        losses = model.loss(rows[:, :-1], rows[:, 1:], reduction="none")
    for end, row in zip(some, losses):
        new = end - done
        pieces.append(row[width - new :])
        done = end
found = torch.cat(pieces) if pieces else torch.empty(0)
return found
"""
WINDOWS = """ids = torch.from_numpy(np.asarray(tokens).astype(np.int64))
pieces, done = [], 0
for begin in range(0, total, stride):
    end = min(begin + length, total)
    row = ids[begin : end + 1].unsqueeze(0)
    with in_eval_mode(model):
        losses = model.loss(row[:, :-1], row[:, 1:], reduction="none")[0]
    pieces.append(losses[len(losses) - (end - done) :])
    done = end
    if end == total:
        break
return torch.cat(pieces) if pieces else torch.empty(0)
"""


def changed(*pairs: str) -> str:
    text = BODY
    for old, new in zip(pairs[::2], pairs[1::2], strict=True):
        assert old in text, old
        text = text.replace(old, new)
    return text


SCORING = [
    score("stride ignored", "stride=no overlap", "stride = length\n" + BODY),
    score("windows of the stride", "stride=windows of the stride", WINDOWS.replace("begin + length", "begin + stride")),
    score("rolled, the last one shorter", "target=rolled", WINDOWS.replace("row[:, 1:]", "row[:, :-1].roll(-1, 1)")),
    score("perplexity, the last one shorter", "returns=exp", WINDOWS.replace("torch.cat(pieces)", "torch.cat(pieces).exp()")),
    score("rolled", "target=rolled", changed("rows[:, 1:]", "rows[:, :-1].roll(-1, 1)")),
    score("always trains", "mode=eval, and always train", changed("return found", "model.train()\nreturn found")),
    score("always one", "stride=one", "stride = 1\n" + BODY),
    score("whole windows", "scored=all of a window", changed("new = end - done", "new = width")),
    score("stride of each", "scored=stride of every window", changed("new = end - done", "new = min(stride, width)")),
    score("stride of each but the first", "scored=stride of every window but the first", changed("new = end - done", "new = min(stride, width) if done else width")),
    score("the last of each", "scored=the last of every window", changed("new = end - done", "new = 1")),
    score("the first of each", "scored=the first of every window", changed("row[width - new :]", "row[:new]")),
    score("tail dropped", "tail=dropped", changed("ends = [*range(width, total, stride), total] if total else []", "ends = list(range(width, total + 1, stride)) if total else []")),
    score("not shifted", "target=itself", changed("rows[:, 1:]", "rows[:, :-1]")),
    score("dropout on", "mode=left alone", changed("in_eval_mode(model)", "nullcontext()")),
    score("left in eval", "mode=eval and left so", changed("    with in_eval_mode(model):\n    ", "    model.eval()\n").replace("\n    losses = model", "\n    losses = model")),
    score("first token too", "first=a zero in front", changed("return found", "return torch.cat([torch.zeros(1), found])")),
    score("all at once", "batch=all at once", "batch_size = 10**6\n" + BODY),
    score("graph kept", "gradient=kept", BODY, HEAD.replace("@torch.no_grad()\n", "")),
    score("a list", "flag=returned other", changed("return found", "return found.tolist()")),
    score("mean", "returns=mean", changed("return found", "return found.mean()")),
    score("sum", "returns=mean", changed("return found", "return found.sum()")),
    score("log p", "returns=negated", changed("return found", "return -found")),
    score("perplexity", "returns=exp", changed("return found", "return found.exp()")),
    score("probabilities", "returns=exp", changed("return found", "return (-found).exp()")),
    score("no check", "flag=no complaint", BODY, HEAD.replace("    if total < 0 or not 1 <= stride <= length or batch_size < 1:\n        raise ValueError(\"bad\")\n", "    stride = max(1, min(stride, length))\n")),
    score("whole windows, dropout on", ("mode=left alone", "scored=stride of every window but the first"), changed("in_eval_mode(model)", "nullcontext()", "new = end - done", "new = min(stride, width) if done else width")),
    score("short texts", "variant=a text shorter than a window", "short = torch.zeros(max(total, 0))\nif total < length:\n    return short\n" + BODY),
    # right ones
    score("windows from the front", (), WINDOWS),
    score("into a row", (), changed("pieces, done = [], 0", "out, done = torch.empty(max(total, 0)), 0", "pieces.append(row[width - new :])", "out[done:end] = row[width - new :]", "found = torch.cat(pieces) if pieces else torch.empty(0)\nreturn found", "return out")),
]  # fmt: skip
