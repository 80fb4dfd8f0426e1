"""Step 3's answers: a tracker's streams, and swapping one in."""
# ruff: noqa: E501 (an answer's line is a line of its code)

from __future__ import annotations

from . import Answer

INIT = """class RNGTracker:
    def __init__(self, seed, *, tp_rank=0, tp_size=1, dp_rank=0, mode="paper"):
        """
CHECK = """if mode not in ("paper", "invariant") or not 0 <= tp_rank < tp_size or dp_rank < 0:
    raise ValueError("bad")
"""
FIELDS = """self.seed, self.mode = seed, mode
self.tp_rank, self.tp_size, self.dp_rank = tp_rank, tp_size, dp_rank
self.stateless = mode == "invariant"
self.step = self.first_sample = 0
"""


def init(name: str, key: str | tuple[str, ...], body: str) -> Answer:
    keys = (key,) if isinstance(key, str) else key
    return Answer("3.3", name, keys, INIT + "\n        ".join(body.strip().split("\n")) + "\n")


def streams(replicated: str, sharded: str) -> str:
    made = f"self._replicated = _Stream({replicated})\nself._sharded = _Stream({sharded})\n"
    return CHECK + FIELDS + made


R, S = "seed, 'replicated', dp_rank", "seed, 'sharded', dp_rank, tp_rank"
STREAMS = [
    init("replicated by nothing", "replicated by=nothing", streams("seed, 'replicated'", S)),
    init("replicated by TP", "replicated by=tp", streams("seed, 'replicated', tp_rank", S)),
    init("replicated by both", "replicated by=dp and tp", streams("seed, 'replicated', dp_rank, tp_rank", S)),
    init("replicated by the sum", "replicated by=dp and tp", streams("seed, 'replicated', dp_rank + tp_rank", S)),
    init("sharded by TP", "sharded by=tp", streams(R, "seed, 'sharded', tp_rank")),
    init("sharded by DP", "sharded by=dp", streams(R, "seed, 'sharded', dp_rank")),
    init("sharded by nothing", "sharded by=nothing", streams(R, "seed, 'sharded'")),
    init("sharded by the sum", "sharded by=sum", streams(R, "seed, 'sharded', dp_rank + tp_rank")),
    init("sharded by the product", "sharded by=sum", streams(R, "seed, 'sharded', dp_rank * tp_rank")),
    init("exchanged", "kinds=exchanged", streams("seed, 'replicated', dp_rank, tp_rank", "seed, 'sharded', dp_rank")),
    init("one name", "kinds=one", streams("seed + 1000 * dp_rank", "seed + 1000 * dp_rank + tp_rank")),
    init("one stream", "kinds=one stream", streams(R, S) + "self._sharded = self._replicated\n"),
    init("hash", "kinds=salted", streams("seed, hash('replicated'), dp_rank", "seed, hash('sharded'), dp_rank, tp_rank")),
    init("no seed", "seed=not used", streams(R[6:], S[6:])),
    init("a new seed each time", "made again=differs", streams("torch.seed()", "torch.seed()")),
    init("seeds the global one", "global generator=seeded", "torch.manual_seed(seed)\n" + streams(R, S)),
    init("never stateless", "stateless=never", streams(R, S).replace('mode == "invariant"', "False")),
    init("always stateless", "stateless=never", streams(R, S).replace('mode == "invariant"', "True")),
    init("stateless the wrong way round", "stateless=never", streams(R, S).replace('mode == "invariant"', 'mode != "invariant"')),
    init("replicated by both, no seed", ("replicated by=dp and tp", "seed=not used"), streams("'replicated', dp_rank, tp_rank", S[6:])),
    init("no check", "flag=no complaint", streams(R, S).replace(CHECK, "")),
    # right ones
    init("offsets", (), streams("seed, dp_rank", "seed, 2718 + tp_rank, dp_rank")),
    init("a rank of all", (), CHECK + FIELDS + "self._sharded = _Stream('s', seed, dp_rank * tp_size + tp_rank)\nself._replicated = _Stream('r', f'{seed} {dp_rank}')\n"),
]  # fmt: skip


def swap(name: str, key: str | tuple[str, ...], body: str) -> Answer:
    keys = (key,) if isinstance(key, str) else key
    head = "from contextlib import contextmanager\nclass _Stream:\n    @contextmanager\n    def swapped_in(self):\n        "
    return Answer("3.4", name, keys, head + "\n        ".join(body.strip().split("\n")) + "\n")


BODY = """if self.active:
    yield
    return
before = {device: _get(device) for device in self.states}
for device, state in self.states.items():
    _set(device, state)
self.active = True
try:
    yield
finally:
    self.active = False
    self.states = {device: _get(device) for device in self.states}
    for device, state in before.items():
        _set(device, state)
"""


def changed(*pairs: str) -> str:
    text = BODY
    for old, new in zip(pairs[::2], pairs[1::2], strict=True):
        assert old in text, old
        text = text.replace(old, new)
    return text


NESTED = "if self.active:\n    yield\n    return\n"
RESTORE = "    for device, state in before.items():\n        _set(device, state)\n"
KEEP = "    self.states = {device: _get(device) for device in self.states}\n"
SWAP = [
    swap("does nothing", "enter=nothing", "yield"),
    swap("seeded", "enter=seeded", changed("    _set(device, state)\nself.active", "    torch.manual_seed(self.start)\nself.active")),
    swap("global not put back", "leave=left", changed(RESTORE, "")),
    swap("global seeded anew", "leave=left", changed(RESTORE, "    torch.seed()\n")),
    swap("stream not kept", "stream is kept=not", changed(KEEP, "")),
    swap("kept too late", "stream is kept=after the swap", changed(KEEP + RESTORE, RESTORE + KEEP)),
    swap("in place", "stream is kept=in place", changed(KEEP, "    for device, state in self.states.items():\n        state.copy_(_get(device))\n")),
    swap("global kept too late", "global is kept=too late", changed("before = {device: _get(device) for device in self.states}\n", "", "self.active = True\n", "before = {device: _get(device) for device in self.states}\nself.active = True\n")),
    swap("swaps again", "inside itself=swaps again", changed(NESTED, "")),
    swap("no finally", "error=not put back", changed("try:\n    yield\nfinally:\n    self.active = False", "if True:\n    yield\n    self.active = False")),
    swap("kept if all went well", "error=stream not kept", changed("try:\n    yield\nfinally:\n", "try:\n    yield\n" + KEEP + "finally:\n", "    self.active = False\n" + KEEP, "    self.active = False\n")),
    swap("left on", "active=left on", changed("    self.active = False\n", "")),
    swap("never on", "inside itself=swaps again", changed("self.active = True\n", "")),
    swap("fork_rng and a seed", "enter=seeded", NESTED + "self.active = True\nwith torch.random.fork_rng(devices=[]):\n    torch.manual_seed(self.start)\n    try:\n        yield\n    finally:\n        self.active = False\n        self.states = {'cpu': _get('cpu')}\n"),
    swap("seeded and nothing put back", ("enter=seeded", "leave=left"), changed("    _set(device, state)\nself.active", "    torch.manual_seed(self.start)\nself.active", RESTORE, "")),
    # right ones
    swap("fork_rng", (), NESTED + "self.active = True\nwith torch.random.fork_rng(devices=[]):\n    torch.set_rng_state(self.states['cpu'])\n    try:\n        yield\n    finally:\n        self.states, self.active = {'cpu': torch.get_rng_state()}, False\n"),
    swap("one device by hand", (), NESTED + "outer = torch.get_rng_state()\ntorch.default_generator.set_state(self.states['cpu'])\nself.active = True\ntry:\n    yield\nfinally:\n    inner = torch.get_rng_state()\n    torch.set_rng_state(outer)\n    self.states = {**self.states, 'cpu': inner}\n    self.active = False\n"),
]  # fmt: skip
