"""Step 4's answers: the loss's statistics, combining them, and its gradient."""
# ruff: noqa: E501 (an answer's line is a line of its code)

from __future__ import annotations

from . import Answer

FIRST = """words, column = terms.words, terms.words.column(targets)
own, lowest = logits[:, : words.count], torch.finfo(logits.dtype).min
largest = own.amax(1) if words.count else logits.new_full(column.shape, lowest)
largest = largest.clamp(min=lowest)
low = logits - largest.unsqueeze(1)
powers = low.exp()
powers[:, words.count :] = 0.0
sums = powers.sum(1)
at = low.gather(1, column.unsqueeze(1)).squeeze(1)
at = at.masked_fill(~words.has(targets), 0.0)
fourth = low[:, : words.count].sum(1)
logits.copy_(powers)
rows = [largest, sums, at]
if terms.label_smoothing:
    rows.append(fourth)
return torch.stack(rows)
"""
SECOND = """words, group = terms.words, terms.group
largest = own[0].clone()
all_reduce_(largest, group, "max")
shift = own[0] - largest
rows = own[1:].clone()
rows[0] = own[1] * shift.exp()
rows[1] = own[2] + shift.masked_fill(~words.has(targets), 0.0)
if terms.label_smoothing:
    rows[2] = own[3] + words.count * shift
all_reduce_(rows, group)
weight = shift.exp()
return Combined(largest, rows[0], rows[1], rows[2] if terms.label_smoothing else None, weight)
"""


def parts(
    name: str, key: str | tuple[str, ...], first: str = FIRST, second: str = SECOND
) -> Answer:
    keys = (key,) if isinstance(key, str) else key
    one, two = ("\n    ".join(text.strip().split("\n")) for text in (first, second))
    return Answer(
        "4.3", name, keys,
        f"def rank_statistics(logits, targets, terms):\n    {one}\n\n"
        f"def combine(own, targets, terms):\n    {two}\n",
    )  # fmt: skip


def one(*pairs: str) -> str:
    return changed(FIRST, *pairs)


def two(*pairs: str) -> str:
    return changed(SECOND, *pairs)


def changed(text: str, *pairs: str) -> str:
    for old, new in zip(pairs[::2], pairs[1::2], strict=True):
        assert old in text, old
        text = text.replace(old, new)
    return text


STATISTICS = [
    parts("largest of all columns", "largest=padding too", one("largest = own.amax(1) if words.count else logits.new_full(column.shape, lowest)", "largest = logits.amax(1)")),
    parts("nothing subtracted", "largest=nothing", one("largest = largest.clamp(min=lowest)", "largest = torch.zeros_like(largest)")),
    parts("mean subtracted", "largest=mean", one("largest = own.amax(1) if", "largest = own.mean(1) if")),
    parts("mean of exponentials", "sum=mean", one("sums = powers.sum(1)", "sums = powers.sum(1) / max(words.count, 1)")),
    parts("fourth of exponentials", "fourth=exponentials", one("fourth = low[:, : words.count].sum(1)", "fourth = powers.sum(1)")),
    parts("maximum averaged", "maximum=mean", second=two('all_reduce_(largest, group, "max")', "all_reduce_(largest, group)\nlargest /= group_size(group)")),
    parts("the first's maximum", "maximum=first", second=two('all_reduce_(largest, group, "max")', "largest = all_gather(largest, group)[0]")),
    parts("added twice", "added=twice", second=two("all_reduce_(rows, group)", "all_reduce_(rows, group)\nall_reduce_(rows, group)")),
    parts("the first's sums", "added=first", second=two("all_reduce_(rows, group)", "rows = all_gather(rows, group)[0]")),
    parts("targets alone", "added to=targets alone", second=two("all_reduce_(rows, group)", "kept = rows[0].clone()\nall_reduce_(rows, group)\nrows[0] = kept")),
    parts("sums by a difference", "sums' shift=not exp", second=two("own[1] * shift.exp()", "own[1] * shift")),
    parts("target up", "target's shift=the wrong way", second=two("own[2] + shift", "own[2] - shift")),
    parts("fourth for each column", "fourth's shift=a column", second=two("words.count * shift", "-(-words.vocab_size // group_size(group)) * shift")),
    parts("weight is a difference", "weight=not exp", second=two("weight = shift.exp()", "weight = shift")),
    parts("the log of the sum", "sum=its log", one("sums = powers.sum(1)", "sums = powers.sum(1).log()")),
    parts("sum of logits", "sum=of logits", one("sums = powers.sum(1)", "sums = low[:, : words.count].sum(1)")),
    parts("largest exponential", "sum=largest", one("sums = powers.sum(1)", "sums = powers.amax(1)")),
    parts("padding counted", "padding=left", one("powers[:, words.count :] = 0.0\n", "")),
    parts("target not shifted", "target=not shifted", one("at = low.gather", "at = logits.gather")),
    parts("target's exponential", "target=exponential", one("at = low.gather", "at = powers.gather")),
    parts("target not counted from the first word", "target=not counted from the first word",
          one("column = terms.words, terms.words.column(targets)", "column = terms.words, targets.clamp(max=logits.size(1) - 1)", "~words.has(targets)", "targets >= logits.size(1)")),
    parts("others not masked", "others=as they are", one("at = at.masked_fill(~words.has(targets), 0.0)\n", "")),
    parts("others masked before the shift", "others=-largest", one("at = low.gather(1, column.unsqueeze(1)).squeeze(1)\nat = at.masked_fill(~words.has(targets), 0.0)", "at = logits.gather(1, column.unsqueeze(1)).squeeze(1).masked_fill(~words.has(targets), 0.0) - largest")),
    parts("not in place", "buffer=left alone", one("logits.copy_(powers)\n", "")),
    parts("shifted alone", "buffer=shifted", one("logits.copy_(powers)", "logits.copy_(low)")),
    parts("fourth over padding", "fourth=padding too", one("fourth = low[:, : words.count].sum(1)", "fourth = low.sum(1)")),
    parts("fourth not shifted", "fourth=not shifted", one("fourth = low[:, : words.count].sum(1)", "fourth = own.sum(1)")),
    parts("fourth is a mean", "fourth=mean", one("fourth = low[:, : words.count].sum(1)", "fourth = low[:, : words.count].mean(1)")),
    parts("no fourth", "fourth=left out", one("if terms.label_smoothing:\n    rows.append(fourth)\n", "")),
    parts("no word at all", "variant=a rank without words", one("largest = own.amax(1) if words.count else logits.new_full(column.shape, lowest)", "largest = own.amax(1) if words.count else logits.new_zeros(column.shape)")),
    parts("-inf alone", "variant=a rank with -inf alone", one("largest = largest.clamp(min=lowest)\n", "")),
    parts("maximum summed", "maximum=sum", second=two(', "max"', "")),
    parts("maximum not exchanged", "maximum=own", second=two('all_reduce_(largest, group, "max")\n', "")),
    parts("sums not exchanged", "added=own", second=two("all_reduce_(rows, group)\n", "")),
    parts("averaged", "added=mean", second=two("all_reduce_(rows, group)", "all_reduce_(rows, group)\nrows /= group_size(group)")),
    parts("largest of the sums", "added=max", second=two("all_reduce_(rows, group)", "all_reduce_(rows, group, 'max')")),
    parts("over all ranks", "added=world", second=two('all_reduce_(largest, group, "max")', "dist.all_reduce(largest, dist.ReduceOp.MAX)", "all_reduce_(rows, group)", "dist.all_reduce(rows)")),
    parts("sums alone", "added to=sums alone", second=two("all_reduce_(rows, group)", "total = rows[0].clone()\nall_reduce_(total, group)\nrows[0] = total\nif terms.label_smoothing:\n    more = rows[2].clone()\n    all_reduce_(more, group)\n    rows[2] = more")),
    parts("largest minus own", "shift=largest - own", second=two("shift = own[0] - largest", "shift = largest - own[0]")),
    parts("padding left in the buffer", "padding=left", one("logits.copy_(powers)", "logits.copy_(low.exp())")),
    parts("sums not shifted", "sums' shift=left out", second=two("own[1] * shift.exp()", "own[1]")),
    parts("sums the wrong way", "sums' shift=the wrong way", second=two("own[1] * shift.exp()", "own[1] / shift.exp()")),
    parts("target shifted everywhere", "target's shift=on every rank", second=two("shift.masked_fill(~words.has(targets), 0.0)", "shift")),
    parts("target not shifted in combine", "target's shift=left out", second=two(" + shift.masked_fill(~words.has(targets), 0.0)", "")),
    parts("fourth shifted once", "fourth's shift=once", second=two("words.count * shift", "shift")),
    parts("fourth not shifted in combine", "fourth's shift=left out", second=two(" + words.count * shift", "")),
    parts("no weight", "weight=one", second=two("weight = shift.exp()", "weight = torch.ones_like(shift)")),
    parts("weight upside down", "weight=inverse", second=two("weight = shift.exp()", "weight = (-shift).exp()")),
    parts("its statistics changed", "flag=input changed", second=two("rows = own[1:].clone()", "rows = own[1:]")),
    parts("None", "flag=returned None", second=two("return Combined", "Combined")),
    parts("shift left out and summed maximum", ("maximum=sum", "weight=one"), second=two(', "max"', "", "weight = shift.exp()", "weight = torch.ones_like(shift)")),
    # right ones
    parts("out of place", ()),
    parts("gathered once", (), one("low = logits - largest.unsqueeze(1)\npowers = low.exp()", "logits -= largest.unsqueeze(1)\nlow = logits.clone()\npowers = torch.exp(low)"), """
        everyone = all_gather(own, terms.group)
        top = everyone[:, 0].max(0).values
        shifts = everyone[:, 0] - top
        mine = own[0] - top
        at = own[2] + mine.masked_fill(~terms.words.has(targets), 0.0)
        at = all_gather(at, terms.group).sum(0)
        total = None
        if terms.label_smoothing:
            total = all_gather(own[3] + terms.words.count * mine, terms.group).sum(0)
        return Combined(top, (everyone[:, 1] * shifts.exp()).sum(0), at, total, mine.exp())
        """.replace("\n        ", "\n")),
]  # fmt: skip

GRADIENT = """words, smooth = terms.words, terms.label_smoothing
factor = scale
if terms.z_loss:
    factor = scale * (1 + 2 * terms.z_loss * (known.largest + known.sums.log()))
share = known.weight / known.sums
grad = exponentials * (factor * share).unsqueeze(1)
grad[:, : words.count] -= (scale * smooth / words.vocab_size).unsqueeze(1)
ones = ((1 - smooth) * scale).masked_fill(~words.has(targets), 0.0)
at = words.column(targets).unsqueeze(1)
grad.scatter_add_(1, at, -ones.unsqueeze(1))
return grad
"""


def back(name: str, key: str | tuple[str, ...], *pairs: str) -> Answer:
    keys = (key,) if isinstance(key, str) else key
    text = changed(GRADIENT, *pairs)
    head = "def logits_gradient_(exponentials, targets, known, scale, terms):\n    "
    return Answer("4.4", name, keys, head + "\n    ".join(text.strip().split("\n")) + "\n")


GRADIENTS = [
    back("no weight", "softmax=weight left out", "known.weight / known.sums", "1 / known.sums"),
    back("own sum", "softmax=of own words", "known.weight / known.sums", "1 / exponentials.sum(1).clamp(min=1e-300)"),
    back("not divided", "softmax=not divided", "known.weight / known.sums", "known.weight"),
    back("weight twice", "softmax=weight twice", "known.weight / known.sums", "known.weight ** 2 / known.sums"),
    back("divided by the weight", "softmax=weight twice", "known.weight / known.sums", "1 / (known.weight * known.sums)"),
    back("divided by the ranks", "softmax=of the ranks", "known.weight / known.sums", "known.weight / known.sums / group_size(terms.group)"),
    back("everywhere", "target=everywhere", ".masked_fill(~words.has(targets), 0.0)", ""),
    back("no target", "target=left out", "grad.scatter_add_(1, at, -ones.unsqueeze(1))\n", ""),
    back("target added", "target=added", "-ones.unsqueeze(1)", "ones.unsqueeze(1)"),
    back("not counted from the first word", "target=not counted from the first word", "~words.has(targets)", "targets >= exponentials.size(1)", "words.column(targets)", "targets.clamp(max=exponentials.size(1) - 1)"),
    back("scale of the softmax alone", "scale=softmax alone", "((1 - smooth) * scale)", "((1 - smooth) * torch.ones_like(scale))", "(scale * smooth / w", "(torch.ones_like(scale) * smooth / w"),
    back("scale of the target alone", "scale=target alone", "factor = scale\n", "factor = torch.ones_like(scale)\n", "factor = scale *", "factor = torch.ones_like(scale) *"),
    back("no scale", "scale=not used", "words, smooth", "scale = torch.ones_like(scale)\nwords, smooth"),
    back("scale twice", "scale=twice", "return grad", "return grad * scale.unsqueeze(1)"),
    back("raw column", "target=not counted from the first word", "words.column(targets)", "targets.clamp(max=exponentials.size(1) - 1)"),
    back("mean", "scale=mean", "words, smooth", "scale = scale / len(scale)\nwords, smooth"),
    back("summed over the ranks", "behind=sum", "return grad", "all_reduce_(grad, terms.group)\nreturn grad"),
    back("averaged over the ranks", "behind=sum", "return grad", "all_reduce_(grad, terms.group)\nreturn grad / group_size(terms.group)"),
    back("turned", "sign=turned", "return grad", "return -grad"),
    back("smoothing over own words", "smoothing=own words", "smooth / words.vocab_size", "smooth / max(words.count, 1)"),
    back("smoothing over columns", "smoothing=columns", "smooth / words.vocab_size", "smooth / (exponentials.size(1) * group_size(terms.group))"),
    back("smoothing over padding", "smoothing=padding too", "grad[:, : words.count] -=", "grad -="),
    back("no smoothing", "smoothing=left out", "grad[:, : words.count] -= (scale * smooth / words.vocab_size).unsqueeze(1)\n", ""),
    back("smoothing added", "smoothing=added", "grad[:, : words.count] -=", "grad[:, : words.count] +="),
    back("a whole one", "one=whole", "(1 - smooth) * scale", "scale"),
    back("smoothing nowhere", ("one=whole", "smoothing=left out"), "(1 - smooth) * scale", "scale", "grad[:, : words.count] -= (scale * smooth / words.vocab_size).unsqueeze(1)\n", ""),
    back("no z-loss", "z-loss=left out", "if terms.z_loss:", "if False:"),
    back("z-loss without the largest", "z-loss=without the largest", "(known.largest + known.sums.log())", "known.sums.log()"),
    back("z-loss not doubled", "z-loss=not doubled", "1 + 2 * terms", "1 + terms"),
    back("scale written into", "flag=input changed", "ones = ((1 - smooth) * scale)", "ones = scale.mul_(1 - smooth)"),
    back("None", "flag=returned None", "return grad", "exponentials.copy_(grad)"),
    # right ones
    back("out of place", ()),
    back("in place, row by row", (), GRADIENT, """words, smooth = terms.words, terms.label_smoothing
exponentials *= (known.weight / known.sums).unsqueeze(1)
for i, target in enumerate(targets.tolist()):
    row = exponentials[i]
    if terms.z_loss:
        row *= 1 + 2 * terms.z_loss * (known.largest[i] + known.sums[i].log())
    row[: words.count] -= smooth / words.vocab_size
    if words.first <= target < words.first + words.count:
        row[target - words.first] -= 1 - smooth
    row *= scale[i]
return exponentials
"""),
]  # fmt: skip
