"""Step 1's answers."""
# ruff: noqa: E501 (an answer's line is a line of its code)

from __future__ import annotations

from . import Answer
from .step01_data import BATCH, WEIGHT
from .step01_loss import LOSS
from .step01_scoring import SCORING


def scores(name: str, key: str | tuple[str, ...], body: str) -> Answer:
    keys = (key,) if isinstance(key, str) else key
    lines = "\n    ".join(body.strip().split("\n"))
    return Answer(
        "1.1",
        name,
        keys,
        f"import math\ndef attention_scores(q, k):\n    s = q.size(-2)\n    {lines}\n",
    )


W = "t = (q.float() if q.dtype == torch.float16 else q, k.float() if k.dtype == torch.float16 else k)\nx = t[0] @ t[1].transpose(-2, -1) / math.sqrt(q.size(-1))\nfuture = torch.ones(s, s, dtype=torch.bool).triu(1)\n"
END = "return x.masked_fill(future, -math.inf).softmax(-1).to(q.dtype)"
SCORES = [
    scores("not scaled", "scale=none", W.replace(" / math.sqrt(q.size(-1))", "") + END),
    scores("by the width", "scale=width", W.replace("math.sqrt(q.size(-1))", "q.size(-1)") + END),
    scores("by the length", "scale=root of length", W.replace("q.size(-1))", "s)") + END),
    scores("times the root", "scale=times", W.replace(" / math.sqrt", " * math.sqrt") + END),
    scores("by the whole width", "scale=root of all heads' width", W.replace("math.sqrt(q.size(-1))", "math.sqrt(q.size(1) * q.size(-1))") + END),
    scores("k by q", "product=k qᵀ", W.replace("t[0] @ t[1]", "t[1] @ t[0]") + END),
    scores("over heads", "softmax=over heads", W + END.replace("softmax(-1)", "softmax(1)")),
    scores("divided by the rest", "variant=very low scores", W + "w = x.softmax(-1).masked_fill(future, 0)\nreturn (w / w.sum(-1, keepdim=True)).to(q.dtype)"),
    scores("no mask", "hidden=nothing", W + "return x.softmax(-1).to(q.dtype)"),
    scores("past masked", "hidden=past", W.replace("triu(1)", "tril(-1)") + END),
    scores("own masked", "hidden=future and own", W.replace("triu(1)", "triu(0)") + END),
    scores("masked behind", "mask=behind softmax", W + "return x.softmax(-1).masked_fill(future, 0).to(q.dtype)"),
    scores("masked with zero", "mask=times the scores", W + END.replace("-math.inf", "0.0")),
    scores("-1e4", "mask=-1e4", W + END.replace("-math.inf", "-1e4")),
    scores("-1e3", "mask=-1e4", W + END.replace("-math.inf", "-1e3")),
    scores("over queries", "softmax=over queries", W + END.replace("softmax(-1)", "softmax(-2)")),
    scores("no softmax", "softmax=left out", W + END.replace(".softmax(-1)", "")),
    scores("float16 alone", "variant=float16", "x = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))\nmask = torch.full((s, s), -1e10, dtype=torch.float64).triu(1)\nif q.dtype == torch.float16:\n    mask = torch.full((s, s), -1e10, dtype=torch.float64).half()\nreturn (x + mask.to(q.dtype)).softmax(-1)"),
    scores("always float32", "flag=dtype", W + END.replace(".to(q.dtype)", ".float()")),
    # right ones
    scores("masked_fill", (), W + END),
    scores("added", (), W + "return (x + torch.full((s, s), -math.inf, dtype=x.dtype).triu(1)).softmax(-1).to(q.dtype)"),
    scores("through SDPA", (), "eye = torch.eye(s, dtype=torch.float64).expand(*q.shape[:-1], s)\nreturn F.scaled_dot_product_attention(q.double(), k.double(), eye, is_causal=True).to(q.dtype)"),
]  # fmt: skip


def rate(name: str, key: str | tuple[str, ...], body: str) -> Answer:
    keys = (key,) if isinstance(key, str) else key
    lines = "\n    ".join(body.strip().split("\n"))
    return Answer(
        "1.6",
        name,
        keys,
        f"import math\ndef lr_at(step, *, peak, minimum, warmup, total):\n    {lines}\n",
    )


WARM = "if step >= total:\n    return minimum\nif step < warmup:\n    return peak * (step + 1) / warmup\n"
P = "p = (step - warmup) / (total - warmup)\n"
COS = "return minimum + (peak - minimum) * 0.5 * (1 + math.cos(math.pi * p))"
RATE = [
    rate("zero first", "warm-up=first step is zero", WARM.replace("(step + 1)", "step") + P + COS),
    rate("no warm-up", "warm-up=left out", "if step >= total:\n    return minimum\n" + P + COS),
    rate("no end", "behind the end=goes on", WARM.replace("if step >= total:\n    return minimum\n", "") + P + COS),
    rate("zero at the end", "behind the end=zero", WARM.replace("return minimum", "return 0.0") + P + COS),
    rate("from step 0", "counts from=step 0", WARM + "p = step / total\n" + COS),
    rate("warm-up + 1", "warm-up=one step more", WARM.replace("/ warmup", "/ (warmup + 1)") + P + COS),
    rate("from the minimum", "warm-up=from the minimum", WARM.replace("return peak * (step + 1) / warmup", "return minimum + (peak - minimum) * (step + 1) / warmup") + P + COS),
    rate("over all", "counts from=warm-up, over all", WARM + "p = (step - warmup) / total\n" + COS),
    rate("one further", "counts from=one further", WARM + "p = (step - warmup + 1) / (total - warmup)\n" + COS),
    rate("a quarter", "shape=quarter period", WARM + P + "return minimum + (peak - minimum) * math.cos(math.pi * p / 2)"),
    rate("rising", "shape=rising", WARM + P + COS.replace("1 + math.cos", "1 - math.cos")),
    rate("cut off below", "floor=cut off", WARM + P + "return max(minimum, peak * 0.5 * (1 + math.cos(math.pi * p)))"),
    rate("a line", "shape=line", WARM + P + "return minimum + (peak - minimum) * (1 - p)"),
    rate("not halved", "shape=not halved", WARM + P + COS.replace("0.5 * ", "")),
    rate("whole period", "shape=whole period", WARM + P + COS.replace("math.pi * p", "2 * math.pi * p")),
    rate("full height", "span=peak", WARM + P + COS.replace("(peak - minimum)", "peak")),
    rate("no floor", "floor=zero", WARM + P + COS.replace("minimum + ", "")),
    rate("zero first, a line", ("shape=line", "warm-up=first step is zero"), WARM.replace("(step + 1)", "step") + P + "return minimum + (peak - minimum) * (1 - p)"),
    # right ones
    rate("min and max", (), "if step < warmup:\n    return peak * (step + 1) / warmup\np = min(1.0, (step - warmup) / (total - warmup))\nreturn minimum + (peak - minimum) * (1 + math.cos(math.pi * p)) / 2"),
    rate("sine squared", (), WARM + P + "return peak - (peak - minimum) * math.sin(math.pi * p / 2) ** 2"),
]  # fmt: skip
ANSWERS = [*SCORES, *LOSS, *WEIGHT, *BATCH, *SCORING, *RATE]
