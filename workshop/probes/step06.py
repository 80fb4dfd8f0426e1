"""Probes of the block's two orders, and of the decoder over the ranks."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..journal import WORLD
from ..sim import Ranks, Tape, gathered
from ..wiretap import Wiretap
from .common import MAIN, Case, Choices, Foreseen, Probe, Seen, integers, leaves, watch
from .lazy import there_and_back
from .step02_layers import crossing

ORDERS = ("rearranged", "original")
BLOCK_CASES = (Case("alone", torch.float64, 1), Case("alone", torch.float32, 2))


def ln1(x: Tensor) -> Tensor:
    """Stand-ins for the block's parts, done by hand: no two orders of them give the same."""
    return 2 * x + 1


def ln2(x: Tensor) -> Tensor:
    return 3 * x - 1


def attention(x: Tensor) -> Tensor:
    """Each token and those before it."""
    return x.cumsum(-2)


def mlp(x: Tensor) -> Tensor:
    return x * x


def _sublayer(kind: str, x: Tensor, norm: Any, branch: Any) -> Tensor:
    if kind == "pre":
        return x + branch(norm(x))  # type: ignore[no-any-return]
    if kind == "post":
        return norm(x + branch(x))  # type: ignore[no-any-return]
    if kind == "no residual, pre":
        return branch(norm(x))  # type: ignore[no-any-return]
    if kind == "no residual, post":
        return norm(branch(x))  # type: ignore[no-any-return]
    if kind == "of the normed":
        return norm(x) + branch(norm(x))  # type: ignore[no-any-return]
    if kind == "norm of the branch":
        return x + norm(branch(x))  # type: ignore[no-any-return]
    if kind == "norm of the stream":
        return norm(x) + branch(x)  # type: ignore[no-any-return]
    if kind == "no norm":
        return x + branch(x)  # type: ignore[no-any-return]
    return norm(x + branch(norm(x)))  # type: ignore[no-any-return]


def _block(x: Tensor, order: str, c: Choices) -> Tensor:
    if c["named"] == "swapped":
        order = ORDERS[1 - ORDERS.index(order)]
    right = "pre" if order == "rearranged" else "post"
    given, _, where = c["norms"].partition(" in ")
    norms = {"own": (ln1, ln2), "swapped": (ln2, ln1), "ln1 for both": (ln1, ln1),
             "ln2 for both": (ln2, ln2)}[given if where in ("", order) else "own"]  # fmt: skip
    if order == "rearranged" and c[order] == "side by side":
        return x + attention(norms[0](x)) + mlp(norms[1](x))
    if order == "rearranged" and c[order] == "start again":
        return x + mlp(norms[1](x + attention(norms[0](x))))
    parts = [("attention", norms[0], attention), ("mlp", norms[1], mlp)]
    if c["branches"] in ("mlp first", "attention alone", "mlp alone"):
        kept = {"mlp first": parts[::-1], "attention alone": parts[:1], "mlp alone": parts[1:]}
        parts = kept[c["branches"]]
    for name, norm, branch in parts:
        own = c[f"{order} {name}"]
        kind = own if own != "as the order" else c[order]
        kind = right if kind == "right" else kind
        kind = f"no residual, {right}" if kind == "no residual" else kind
        x = _sublayer(kind, x, norm, branch)
    return x


@functools.cache
def _given(case: Case) -> tuple[Ranks, Ranks]:
    return integers(case, "x", 2, 3), integers(case, "upstream", 2, 3)


def _orders(case: Case, c: Choices) -> tuple[Ranks, Ranks, Foreseen]:
    x, upstream = _given(case)
    values: list[dict[str, Any]] = [{} for _ in range(WORLD)]
    for order in ORDERS:  # all ranks at once: thousands of pairs of choices may have to be tried
        own = torch.stack(x).requires_grad_()
        y = _block(own, order, c)
        (grad,) = torch.autograd.grad((y * torch.stack(upstream)).sum(), own)
        for rank, row in enumerate(values):
            row |= {f"{order}: output": y[rank].detach(), f"{order}: grad of x": grad[rank]}
    return x, upstream, Foreseen(values)


def _observe_block(functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap) -> Seen:
    xs, upstream, _ = _orders(case, RIGHT_BLOCK)
    whole = Seen(sent=tap.sent)
    for order in ORDERS:
        x = xs[rank].clone().requires_grad_()
        stream = x.clone()  # no leaf: writing into it is found, and not refused
        call = functools.partial(functions[0], stream, ln1, attention, ln2, mlp, order)
        seen = watch(call, {"x": x}, upstream[rank], tap, kept={"the stream": stream})
        whole.values |= {f"{order}: {name}": value for name, value in seen.values.items()}
        whole.flags |= seen.flags
    return whole


KINDS = (
    "right",
    "no residual",
    "of the normed",
    "norm of the branch",
    "norm of the stream",
    "no norm",
    "both norms",
)
BLOCK = Probe(
    cases=BLOCK_CASES,
    observe=_observe_block,
    foresee=lambda case, c: _orders(case, c)[2],
    scene=lambda case: {"x": integers(case, "x", 2, 3)},
    axes={
        "rearranged": (*KINDS, "post", "side by side", "start again"),
        "original": (*KINDS, "pre"),
        "rearranged attention": ("as the order", *KINDS[1:], "post"),
        "rearranged mlp": ("as the order", *KINDS[1:], "post"),
        "original attention": ("as the order", *KINDS[1:], "pre"),
        "original mlp": ("as the order", *KINDS[1:], "pre"),
        "named": ("as it is", "swapped"),
        "norms": (
            "own",
            "swapped",
            "ln1 for both",
            "ln2 for both",
            *(
                f"{norms} in {order}"
                for norms in ("swapped", "ln1 for both", "ln2 for both")
                for order in ORDERS
            ),
        ),
        "branches": ("both", "mlp first", "attention alone", "mlp alone"),
    },
)
RIGHT_BLOCK: dict[str, str] = {axis: choices[0] for axis, choices in BLOCK.axes.items()}

WORDS, H, PLACES = 8, 3, 2
DEEP = Case("pairs", torch.float64, 4, "[b, s, h]")


def _decoder(case: Case, c: Choices) -> tuple[dict[str, Ranks], Ranks, Foreseen]:
    width = WORDS // case.n
    places = (2, PLACES) if case == DEEP else (PLACES,)
    hidden = integers(case, "hidden", *places, H, same=True)
    weight, bias = integers(case, "weight", width, H), integers(case, "bias", width)
    upstream = integers(case, "upstream", *places, width)
    given = {"hidden": hidden, "weight": weight, "bias": bias}
    hs, ws, bs = leaves(hidden, weight, bias)
    tape = Tape()
    through = {"own": (ws, bs), "weight through f": (crossing(ws, case, "f", tape), bs),
               "bias through f": (ws, crossing(bs, case, "f", tape))}  # fmt: skip
    own_ws, own_bs = through[c["parameters"]]
    y = [F.linear(h, w) for h, w in zip(crossing(hs, case, c["front"], tape), own_ws, strict=True)]
    first = [case.shape.group(rank)[0] == rank for rank in range(WORLD)]
    times = {"once": 1.0, "left out": 0.0, "twice": 2.0, "over n": 1 / case.n,
             "times n": float(case.n)}.get(c["bias"])  # fmt: skip
    for rank, b in enumerate(own_bs):
        share = float(first[rank]) if times is None else times
        y[rank] = y[rank] + share * b if share else y[rank]
    y = crossing(y, case, c["behind"], tape)
    if c["result"] == "all words'":
        y = gathered(y, case.shape, -1, "slice", tape)
    if c["result"] == "log-probabilities":
        y = [t.log_softmax(-1) for t in y]
    if c["result"] == "probabilities":
        y = [t.softmax(-1) for t in y]
    if c["result"] == "over n":
        y = [t / case.n for t in y]
    wanted = {"hidden": hs, "weight": ws, "bias": bs}
    return given, upstream, there_and_back(y, upstream, wanted, tape)


def _observe_decoder(functions: list[Any], case: Case, group: Any, rank: int, tap: Wiretap) -> Seen:
    given, upstream, _ = _decoder(case, RIGHT_DECODER)
    inputs = {name: ranks[rank].clone().requires_grad_() for name, ranks in given.items()}
    return watch(
        lambda: functions[0](inputs["hidden"], inputs["weight"], inputs["bias"], group),
        inputs,
        upstream[rank],
        tap,
    )


def _scene(case: Case) -> dict[str, Ranks]:
    given, upstream, _ = _decoder(case, RIGHT_DECODER)
    return {**given, "gradient from above": upstream}


DECODER = Probe(
    cases=(*MAIN, DEEP),
    observe=_observe_decoder,
    foresee=lambda case, c: _decoder(case, c)[2],
    scene=_scene,
    axes={
        "front": ("f", "nothing", "g", "f twice", "f, averaged", "f over all ranks",
                  "f over any group's world", "all-reduce both ways", "f, n own", "cut off"),
        "bias": ("once", "left out", "twice", "first rank alone", "over n", "times n"),
        "behind": ("nothing", "f", "g", "all-reduce both ways", "mean", "max"),
        "parameters": ("own", "weight through f", "bias through f"),
        "result": ("own words' logits", "all words'", "log-probabilities", "probabilities",
                   "over n"),
    },
)  # fmt: skip
RIGHT_DECODER: dict[str, str] = {axis: choices[0] for axis, choices in DECODER.axes.items()}
