"""Step 6's answers; those to 6.1 are in the file beside."""
# ruff: noqa: E501 (an answer's line is a line of its code)

from __future__ import annotations

from . import Answer, step06_masking


def answer(id: str, head: str, name: str, key: str | tuple[str, ...], lines: str) -> Answer:
    keys = (key,) if isinstance(key, str) else key
    return Answer(
        id, name, keys, head + "\n    " + "\n    ".join(lines.strip("\n").split("\n")) + "\n"
    )


def block(name: str, key: str | tuple[str, ...], rearranged: str, original: str) -> Answer:
    """What each order does: lines over x."""
    text = f'if norm == "rearranged":\n    {rearranged}\nelse:\n    {original}\nreturn x'
    return answer("6.2", "def block(x, ln1, attention, ln2, mlp, norm):", name, key, text)


PRE = "x = x + attention(ln1(x)); x = x + mlp(ln2(x))"
POST = "x = ln1(x + attention(x)); x = ln2(x + mlp(x))"
BLOCK = [
    block("swapped", "named=swapped", POST, PRE),
    block("always post", "rearranged=post", POST, POST),
    block("always pre", "original=pre", PRE, PRE),
    block("MLP's norm behind", "rearranged=post", "x = x + attention(ln1(x)); x = ln2(x + mlp(x))", POST),
    block("attention's norm before", "original=pre", PRE, "x = x + attention(ln1(x)); x = ln2(x + mlp(x))"),
    block("no sums", "rearranged=no residual", "x = attention(ln1(x)); x = mlp(ln2(x))", "x = ln1(attention(x)); x = ln2(mlp(x))"),
    block("no sum, MLP, rearranged", "rearranged=no residual", "x = x + attention(ln1(x)); x = mlp(ln2(x))", POST),
    block("no sum, attention, original", "rearranged=no residual", PRE, "x = ln1(attention(x)); x = ln2(x + mlp(x))"),
    block("of the normed", "rearranged=of the normed", "y = ln1(x); x = y + attention(y); y = ln2(x); x = y + mlp(y)", POST),
    block("of the normed, once", "rearranged=of the normed", "y = ln1(x); x = y + attention(y); x = x + mlp(ln2(x))", POST),
    block("branch normed", "rearranged=norm of the branch", PRE, "x = x + ln1(attention(x)); x = x + ln2(mlp(x))"),
    block("branch normed, rearranged", "rearranged=norm of the branch", "x = x + ln1(attention(x)); x = x + ln2(mlp(x))", POST),
    block("norm of the stream", "rearranged=norm of the stream", PRE, "x = ln1(x) + attention(x); x = ln2(x) + mlp(x)"),
    block("the start again", "rearranged=start again", "x = x + mlp(ln2(x + attention(ln1(x))))", POST),
    block("no norm", "rearranged=no norm", "x = x + attention(x); x = x + mlp(ln2(x))", POST),
    block("no last norm", "rearranged=no norm", PRE, "x = ln1(x + attention(x)); x = x + mlp(x)"),
    block("both", "rearranged=both norms", PRE, "x = ln1(x + attention(ln1(x))); x = ln2(x + mlp(ln2(x)))"),
    block("side by side", "rearranged=side by side", "x = x + attention(ln1(x)) + mlp(ln2(x))", POST),
    block("norms swapped", "norms=swapped", PRE.replace("ln1", "lnX").replace("ln2", "ln1").replace("lnX", "ln2"), POST.replace("ln1", "lnX").replace("ln2", "ln1").replace("lnX", "ln2")),
    block("ln1 twice in one order", "norms=ln1 for both", PRE.replace("ln2", "ln1"), POST),
    block("ln1 twice", "norms=ln1 for both", PRE.replace("ln2", "ln1"), POST.replace("ln2", "ln1")),
    block("MLP first", "branches=mlp first", "x = x + mlp(ln2(x)); x = x + attention(ln1(x))", "x = ln2(x + mlp(x)); x = ln1(x + attention(x))"),
    block("no MLP", "branches=attention alone", "x = x + attention(ln1(x))", "x = ln1(x + attention(x))"),
    block("no attention", "branches=mlp alone", "x = x + mlp(ln2(x))", "x = ln2(x + mlp(x))"),
    block("in place", "flag=input changed", "x += attention(ln1(x)); x = x + mlp(ln2(x))", POST),
    # right ones
    block("two lines each", (), PRE, POST),
    answer("6.2", "def block(x, ln1, attention, ln2, mlp, norm):", "a loop", (), "for ln, branch in ((ln1, attention), (ln2, mlp)):\n    pre = norm == 'rearranged'\n    y = branch(ln(x) if pre else x)\n    x = torch.add(y, x) if pre else ln(torch.add(x, y))\nreturn x"),
]  # fmt: skip


def pair(name: str, key: str | tuple[str, ...], lines: str) -> Answer:
    return answer("6.3", "def sop_pair(document, generator):", name, key, lines)


TWO = "if len(document) < 2:\n    raise ValueError('no order')\n"
CUT = "cut = int(torch.randint(1, len(document), (), generator=generator))\n"
HALVES = "a, b = list(document[:cut]), list(document[cut:])\n"
TURN = "if torch.rand((), generator=generator) < 0.5:\n    return b, a, 1\nreturn a, b, 0"
PAIR = TWO + CUT + HALVES + TURN
PAIRS = [
    pair("never swapped", "swapped=never", TWO + CUT + HALVES + "return a, b, 0"),
    pair("always swapped", "swapped=always", TWO + CUT + HALVES + "return b, a, 1"),
    pair("one in seven", "swapped=seldom", PAIR.replace("< 0.5", "< 0.15")),
    pair("joined", "made of=a piece is a text, not a list", PAIR.replace("list(document[:cut]), list(document[cut:])", "' '.join(document[:cut]), ' '.join(document[cut:])")),
    pair("by parity", "swapped=by the cut", PAIR.replace("torch.rand((), generator=generator) < 0.5", "cut % 2")),
    pair("the longer first", "swapped=by the cut", PAIR.replace("torch.rand((), generator=generator) < 0.5", "len(b) > len(a)")),
    pair("taken apart", "flag=input changed", TWO + CUT + "a, b = [document.pop(0) for _ in range(cut)], document\n" + TURN),
    pair("the other label", "label=swapped is 0", PAIR.replace("b, a, 1", "b, a, 0").replace("a, b, 0", "a, b, 1").replace("b, a, 0\nreturn a, b, 1", "b, a, 0\nreturn a, b, 1")),
    pair("label 0", "label=always 0", PAIR.replace("b, a, 1", "b, a, 0")),
    pair("label 1", "label=always 1", PAIR.replace("return a, b, 0", "return a, b, 1")),
    pair("two draws", "label=drawn apart", PAIR.replace("return b, a, 1", "a, b = b, a").replace("return a, b, 0", "return a, b, int(torch.rand((), generator=generator) < 0.5)")),
    pair("from zero", "cut=also at an end", PAIR.replace("randint(1,", "randint(0,")),
    pair("to the end", "cut=also at an end", PAIR.replace("len(document), ()", "len(document) + 1, ()")),
    pair("from two", "cut=never behind the first", PAIR.replace("randint(1,", "randint(2,")),
    pair("one short", "cut=never before the last", PAIR.replace("len(document), ()", "len(document) - 1, ()")),
    pair("halves", "cut=in the middle", PAIR.replace(CUT, "cut = len(document) // 2\n")),
    pair("the first sentence", "cut=behind the first", PAIR.replace(CUT, "cut = 1\n")),
    pair("the last sentence", "cut=before the last", PAIR.replace(CUT, "cut = len(document) - 1\n")),
    pair("two sentences", "made of=two sentences", PAIR.replace(HALVES, "a, b = [document[cut - 1]], [document[cut]]\n")),
    pair("shared sentence", "made of=some of them more than once", PAIR.replace("document[cut:]", "document[cut - 1:]")),
    pair("one lost", "made of=some left out", PAIR.replace("document[cut:]", "document[cut + 1:]")),
    pair("reversed", "made of=not in the document's order", PAIR.replace("return b, a, 1", "d = list(document)[::-1]\n    return d[:cut], d[cut:], 1")),
    pair("shuffled", "made of=not in the document's order", TWO + CUT + "swap = bool(torch.rand((), generator=generator) < 0.5)\nd = list(document)\nif swap:\n    d = [d[i] for i in torch.randperm(len(d), generator=generator)]\nreturn d[:cut], d[cut:], int(swap)"),
    pair("global chance", "chance=chance from elsewhere", PAIR.replace("generator=generator) < 0.5", ") < 0.5").replace("rand((), )", "rand(())")),
    pair("Python's chance", "chance=chance from elsewhere", "import random\n" + PAIR.replace(CUT, "cut = random.randrange(1, len(document))\n")),
    pair("not refused", "single=no complaint", "if len(document) < 2:\n    return list(document), [], 0\n" + CUT + HALVES + TURN),
    pair("refused by chance", "single=RuntimeError", CUT + HALVES + TURN),
    pair("the other label, never refused", ("label=swapped is 0", "single=RuntimeError"), CUT + HALVES + TURN.replace("b, a, 1", "b, a, 2").replace("a, b, 0", "a, b, 1").replace("b, a, 2", "b, a, 0")),
    # right ones
    pair("slices", (), PAIR),
    pair("a coin first", (), TWO + "label = int(torch.randint(2, (1,), generator=generator))\nat = 1 + int(torch.rand((), generator=generator) * (len(document) - 1))\npieces = [[*document[:at]], [*document[at:]]]\nreturn pieces[label], pieces[1 - label], label"),
]  # fmt: skip


def logits(name: str, key: str | tuple[str, ...], lines: str) -> Answer:
    return answer(
        "6.4",
        "import torch.distributed._functional_collectives as fc\ndef mlm_logits(hidden, weight, bias, group=None):",
        name,
        key,
        lines,
    )


LOGITS = [
    logits("no f", "front=nothing", "return F.linear(hidden, weight, bias)"),
    logits("g in front", "front=g", "return F.linear(g(hidden, group), weight, bias)"),
    logits("f twice", "front=f twice", "return F.linear(f(f(hidden, group), group), weight, bias)"),
    logits("averaged", "front=f, averaged", "x = f(hidden, group)\nn = group_size(group)\nreturn F.linear(x / n + (x - x / n).detach(), weight, bias)"),
    logits("times n", "front=f, n own", "n = group_size(group)\nreturn F.linear(hidden * n - ((n - 1) * hidden).detach(), weight, bias)"),
    logits("world", "front=f over all ranks", "return F.linear(f(hidden, dist.group.WORLD), weight, bias)"),
    logits("world if several", "front=f over all ranks", "return F.linear(f(hidden, None if group is None else dist.group.WORLD), weight, bias)"),
    logits("both ways", "front=all-reduce both ways", "x = hidden if group is None else fc.all_reduce(hidden, 'sum', group)\nreturn F.linear(x, weight, bias)"),
    logits("cut off", "front=cut off", "return F.linear(hidden.detach(), weight, bias)"),
    logits("no bias", "bias=left out", "return f(hidden, group) @ weight.T"),
    logits("bias twice", "bias=twice", "return F.linear(f(hidden, group), weight, bias) + bias"),
    logits("one rank's bias", "bias=first rank alone", "y = F.linear(f(hidden, group), weight)\nreturn y + bias if group_rank(group) == 0 else y"),
    logits("bias over n", "bias=over n", "return F.linear(f(hidden, group), weight, bias / group_size(group))"),
    logits("bias times n", "bias=times n", "return F.linear(f(hidden, group), weight, bias * group_size(group))"),
    logits("g behind", "behind=g", "return g(F.linear(f(hidden, group), weight, bias), group)"),
    logits("f behind", "behind=f", "return f(F.linear(f(hidden, group), weight, bias), group)"),
    logits("f on the weight", "parameters=weight through f", "return F.linear(f(hidden, group), f(weight, group), bias)"),
    logits("f on the bias", "parameters=weight through f", "return F.linear(f(hidden, group), weight, f(bias, group))"),
    logits("gathered", "result=all words'", "return gather_last_dim(F.linear(f(hidden, group), weight, bias), group)"),
    logits("softmax", "result=log-probabilities", "return F.linear(f(hidden, group), weight, bias).softmax(-1)"),
    logits("over n", "result=over n", "return F.linear(f(hidden, group), weight, bias) / group_size(group)"),
    logits("log-softmax", "result=log-probabilities", "return F.linear(f(hidden, group), weight, bias).log_softmax(-1)"),
    logits("g in front, no bias", ("bias=left out", "front=g"), "return g(hidden, group) @ weight.T"),
    # right ones
    logits("f and linear", (), "return F.linear(f(hidden, group), weight, bias)"),
    logits("a product", (), "return (f(hidden, group).unsqueeze(-2) * weight).sum(-1) + bias"),
    logits("a hook", (), "x = hidden.clone()\ndef summed(grad):\n    total = grad.clone(memory_format=torch.contiguous_format)\n    all_reduce_(total, group)\n    return total\nif x.requires_grad:\n    x.register_hook(summed)\nreturn x @ weight.T + bias"),
]  # fmt: skip
ANSWERS = [*step06_masking.ANSWERS, *BLOCK, *PAIRS, *LOGITS]
