"""Answers to 6.1: spans, and what stands in their place."""
# ruff: noqa: E501 (an answer's line is a line of its code)

from __future__ import annotations

from textwrap import indent

from . import Answer

HEAD = "import random\n"
CHOOSE = """words, room = words_and_room(word_ids, max_ngram)
places = torch.randperm(len(words), generator=generator).tolist()
last, *chances = torch.rand(len(words) + 1, generator=generator).tolist()
budget = probability * (len(word_ids) - word_ids.count(None))
spans = []
while budget > 0 and any(room):
    place, n = first_fit(places, room, ngram_length(chances.pop(), max_ngram))
    size = words[place + n - 1][1] - words[place][0]
    if size > budget and last * size >= budget:
        if spans:
            break
        n = 1
    spans.append((words[place][0], words[place + n - 1][1]))
    budget -= size
    occupy(room, place, n)
return spans
"""
REPLACE = """inputs, labels = ids.clone(), torch.full_like(ids, -100)
for first, end in spans:
    labels[first:end] = ids[first:end]
    u = torch.rand((), generator=generator).item()
    if u < 0.8:
        inputs[first:end] = mask_id
    elif u < 0.9:
        drawn = torch.randint(len(random_ids), (end - first,), generator=generator).tolist()
        inputs[first:end] = torch.tensor([int(random_ids[i]) for i in drawn])
return inputs, labels
"""
EACH = """inputs, labels = ids.clone(), torch.full_like(ids, -100)
for first, end in spans:
    for i in range(first, end):
        labels[i] = ids[i]
        u = torch.rand((), generator=generator).item()
        if u < 0.8:
            inputs[i] = mask_id
        elif u < 0.9:
            inputs[i] = int(random_ids[int(torch.randint(len(random_ids), (), generator=generator))])
return inputs, labels
"""
CROSS = "    if size > budget and last * size >= budget:\n        if spans:\n            break\n        n = 1\n"


def masking(
    name: str, key: str | tuple[str, ...], choose: str = CHOOSE, replace: str = REPLACE
) -> Answer:
    keys = (key,) if isinstance(key, str) else key
    return Answer(
        "6.1",
        name,
        keys,
        f"{HEAD}def choose_spans(word_ids, generator, probability=0.15, max_ngram=3):\n{indent(choose, '    ')}\n\n"
        f"def replace_spans(ids, spans, generator, mask_id, random_ids):\n{indent(replace, '    ')}",
    )


def chosen(name: str, key: str, old: str, new: str) -> Answer:
    assert old in CHOOSE, name
    return masking(name, key, CHOOSE.replace(old, new))


def put(name: str, key: str, old: str, new: str) -> Answer:
    assert old in REPLACE, name
    return masking(name, key, replace=REPLACE.replace(old, new))


TAKE = "spans.append((words[place][0], words[place + n - 1][1]))"
LENGTH = "ngram_length(chances.pop(), max_ngram)"
ANSWERS = [
    chosen("words counted", "a span is=words", TAKE, "spans.append((place, place + n))"),
    chosen("last token", "its end=end in it", TAKE, "spans.append((words[place][0], words[place + n - 1][1] - 1))"),
    chosen("[SEP] for a word", "special tokens=in spans", "words, room = words_and_room(word_ids, max_ngram)", "number = iter(range(10**6, 10**7))\nwords, room = words_and_room([next(number) if w is None else w for w in word_ids], max_ngram)"),
    masking("tokens", "words=cut in two", "real = [i for i, w in enumerate(word_ids) if w is not None]\nbudget = probability * len(real)\nn = int(budget) + int(torch.rand((), generator=generator) < budget % 1)\norder = torch.randperm(len(real), generator=generator).tolist()\nreturn [(real[i], real[i] + 1) for i in order[: max(n, 1)]]\n"),
    masking("with replacement", "overlaps=some", CHOOSE.replace("    occupy(room, place, n)\n", "").replace("places = torch", "rooms = list(room)\nplaces = torch").replace("while budget", "def some():\n    at = [i for i, r in enumerate(room) if r]\n    return [at[int(torch.randint(len(at), (), generator=generator))]]\nchances = chances * 9\nwhile budget").replace("first_fit(places,", "first_fit(some(),")),
    chosen("always taken", "share=a little above", CROSS, ""),
    chosen("never taken", "share=a little below", CROSS, "    if size > budget:\n        break\n"),
    chosen("of all", "share=of all places", "(len(word_ids) - word_ids.count(None))", "len(word_ids)"),
    chosen("words used up", "share=in words", "budget -= size", "budget -= n"),
    chosen("15 %", "share=15 % whatever is asked", "budget = probability", "budget = 0.15"),
    chosen("all lengths alike", "length=all alike", LENGTH, "1 + int(chances.pop() * max_ngram)"),
    chosen("the longest", "length=the longest", LENGTH, "max_ngram"),
    chosen("one word", "length=one word", LENGTH, "1"),
    chosen("one fewer", "length=one fewer", LENGTH, "ngram_length(chances.pop(), max_ngram - 1)"),
    masking("one more", "length=one more", CHOOSE.replace("max_ngram)", "max_ngram + 1)")),
    masking("three", "length=3 whatever is asked", CHOOSE.replace("max_ngram)", "3)")),
    chosen("in order", "places=from the front", "torch.randperm(len(words), generator=generator).tolist()", "list(range(len(words)))[::-1]"),
    chosen("perhaps nothing", "fewest=none, now and then", "        if spans:\n            break\n        n = 1\n", "        break\n"),
    chosen("seeded anew", "chance of spans=from elsewhere", "words, room = words", "torch.manual_seed(0)\nwords, room = words"),
    chosen("global spans", "chance of spans=from elsewhere", "torch.randperm(len(words), generator=generator)", "torch.randperm(len(words))"),
    put("global words", "chance of words=from elsewhere", "torch.rand((), generator=generator)", "torch.rand(())"),
    put("Python's words", "chance of words=from elsewhere", "torch.rand((), generator=generator).item()", "random.random()"),
    put("second draw of 0.1", "shares=80/2/18", "elif u < 0.9:", "elif torch.rand((), generator=generator) < 0.1:"),
    put("second draw of 0.9", "shares=80/18/2", "elif u < 0.9:", "elif torch.rand((), generator=generator) < 0.9:"),
    put("nothing kept", "shares=80/20/0", "elif u < 0.9:", "else:"),
    put("nothing random", "shares=80/0/20", "elif u < 0.9:", "elif u < 0.0:"),
    put("all masked", "shares=100/0/0", "if u < 0.8:", "if u < 1.0:"),
    put("wrong way round", "shares=10/80/10", "if u < 0.8:", "if u < 0.1:"),
    put("mostly kept", "shares=10/10/80", "u = torch.rand((), generator=generator).item()", "u = torch.rand((), generator=generator).item() + 0.7"),
    put("overwritten", "shares=90/0/10", "inputs[first:end] = torch.tensor([int(random_ids[i]) for i in drawn])", "inputs[first:end] = mask_id"),
    masking("90 and 10", "shares=90/10/0", replace=REPLACE.replace("if u < 0.8:", "if u < 0.9:").replace("elif u < 0.9:", "else:")),
    masking("thirds", "shares=all alike", replace=REPLACE.replace("if u < 0.8:", "if u < 1 / 3:").replace("elif u < 0.9:", "elif u < 2 / 3:")),
    masking("each token", "decided for=each token", replace=EACH),
    masking("once a row", "decided for=the whole row", replace=REPLACE.replace("    u = torch.rand((), generator=generator).item()\n", "").replace("for first", "u = torch.rand((), generator=generator).item()\nfor first", 1)),
    masking("the first token", "decided for=its first token alone", replace=REPLACE.replace("u = torch", "end = first + 1\n    u = torch")),
    put("numbers", "random words=numbers in random_ids", "[int(random_ids[i]) for i in drawn]", "drawn"),
    put("one for a span", "random words=one for a whole span", "torch.tensor([int(random_ids[i]) for i in drawn])", "int(random_ids[drawn[0]])"),
    put("always the first", "random words=the first of random_ids", "random_ids[i]", "random_ids[0]"),
    put("other ids", "random words=other ids", "[int(random_ids[i]) for i in drawn]", "[int(max(random_ids)) + 1 + i for i in drawn]"),
    masking("of the inputs", "labels=what stands there now", replace=REPLACE.replace("    labels[first:end] = ids[first:end]\n", "").replace("return inputs", "for first, end in spans:\n    labels[first:end] = inputs[first:end]\nreturn inputs")),
    put("changed ones", "labels=nothing where it stayed", "return inputs, labels", "return inputs, labels.masked_fill(inputs == ids, -100)"),
    put("masked ones", "labels=nothing where no mask stands", "return inputs, labels", "return inputs, labels.masked_fill(inputs != mask_id, -100)"),
    put("all labels", "labels elsewhere=the ids", "torch.full_like(ids, -100)", "ids.clone()"),
    put("zero labels", "labels elsewhere=0", "torch.full_like(ids, -100)", "torch.zeros_like(ids)"),
    put("-1 labels", "labels elsewhere=-1", "torch.full_like(ids, -100)", "torch.full_like(ids, -1)"),
    put("turned round", "order=labels, inputs", "return inputs, labels", "return labels, inputs"),
    put("in place", "flag=input changed", "ids.clone()", "ids"),
    masking("always taken, all masked", ("share=a little above", "shares=100/0/0"), CHOOSE.replace(CROSS, ""), REPLACE.replace("if u < 0.8:", "if u < 1.0:")),
    # right ones
    masking("in turn", ()),
    masking("by words, one by one", (), """n = torch.arange(1, max_ngram + 1).double()
real = sum(w is not None for w in word_ids)
starts = [i for i, w in enumerate(word_ids) if w is not None and (i == 0 or w != word_ids[i - 1])]
taken, left, spans = set(), probability * real, []
for start in [starts[i] for i in torch.randperm(len(starts), generator=generator).tolist()]:
    k = 1 + int(torch.multinomial(1 / n, 1, generator=generator))
    end = start
    while end < len(word_ids) and word_ids[end] is not None and end not in taken:
        if word_ids[end] != word_ids[end - 1] or end == start:
            if k == 0:
                break
            k -= 1
        end += 1
    if start in taken or left <= 0:
        continue
    if end in taken and end < len(word_ids) and word_ids[end] == word_ids[end - 1]:
        continue
    if end - start > left and torch.rand((), generator=generator) * (end - start) >= left:
        if spans:
            break
    taken |= set(range(start, end))
    spans.append((start, end))
    left -= end - start
return spans
""", """inputs, labels = ids.clone(), torch.full(ids.shape, -100)
kinds = torch.multinomial(torch.tensor([0.8, 0.1, 0.1]), len(spans), replacement=True, generator=generator)
pool = torch.as_tensor(random_ids)
for (a, b), kind in zip(spans, kinds.tolist()):
    new = {0: torch.full((b - a,), mask_id), 1: pool[torch.randint(len(pool), (b - a,), generator=generator)], 2: ids[a:b]}
    inputs[a:b], labels[a:b] = new[kind], ids[a:b]
return inputs, labels
"""),
    masking("half of the rest", (), replace=REPLACE.replace("elif u < 0.9:", "elif torch.rand((), generator=generator) < 0.5:")),
]  # fmt: skip
