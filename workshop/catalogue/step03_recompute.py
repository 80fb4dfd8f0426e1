"""Step 3's answers: recompute."""
# ruff: noqa: E501 (an answer's line is a line of its code)

from __future__ import annotations

from . import Answer

TOOLS = """from contextlib import contextmanager, nullcontext
from torch.utils.checkpoint import checkpoint
"""


def redo(name: str, key: str | tuple[str, ...], body: str, tools: str = TOOLS) -> Answer:
    keys = (key,) if isinstance(key, str) else key
    lines = "\n    ".join(body.strip().split("\n"))
    return Answer("3.5", name, keys, f"{tools}def recompute(run, x, rng):\n    {lines}\n")


BODY = """if rng is None:
    return checkpoint(run, x, use_reentrant=False)
start = rng.state_dict()
@contextmanager
def around():
    now = rng.state_dict()
    rng.load_state_dict(start)
    try:
        yield
    finally:
        rng.load_state_dict(now)
class Around:
    def __enter__(self):
        self.inner = around()
        return self.inner.__enter__()
    def __exit__(self, *error):
        return self.inner.__exit__(*error)
return checkpoint(run, x, use_reentrant=False, context_fn=lambda: (nullcontext(), Around()))
"""


def changed(*pairs: str) -> str:
    text = BODY
    for old, new in zip(pairs[::2], pairs[1::2], strict=True):
        assert old in text, old
        text = text.replace(old, new)
    return text


RUN_AGAIN = (
    TOOLS
    + """class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, run, rng):
        ctx.run, ctx.rng, ctx.state = run, rng, rng and rng.state_dict()
        ctx.cpu = torch.get_rng_state()
        ctx.save_for_backward(x)
        with torch.no_grad():
            return run(x)
    @staticmethod
    def backward(ctx, grad):
        now, cpu = ctx.rng and ctx.rng.state_dict(), torch.get_rng_state()
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            if ctx.rng:
                ctx.rng.load_state_dict(ctx.state)
            torch.set_rng_state(ctx.cpu)
            y = ctx.run(x)
            if ctx.rng:
                ctx.rng.load_state_dict(now)
            torch.set_rng_state(cpu)
        torch.autograd.backward(y, grad)
        return x.grad, None, None
"""
)
PATCHED = """class Wrapped:
    start = None
    def __call__(self, x):
        if rng is None or self.start is None:
            self.start = rng and rng.state_dict()
            return run(x)
        now = rng.state_dict()
        rng.load_state_dict(self.start)
        try:
            return run(x)
        finally:
            rng.load_state_dict(now)
return checkpoint(Wrapped(), x, use_reentrant=False)
"""
RECOMPUTE = [
    redo("not at all", "second run=none", "return run(x)"),
    redo("without history", "second run=none, and no history", "with torch.no_grad():\n    return run(x)"),
    redo("checkpoint alone", "tracker=not put back", "return checkpoint(run, x, use_reentrant=False)"),
    redo("put back, left there", "afterwards=left there", changed("        rng.load_state_dict(now)", "        pass")),
    redo("put back, to the start", "afterwards=to the start", changed("        rng.load_state_dict(now)", "        rng.load_state_dict(start)")),
    redo("state taken behind", "tracker=state taken behind", changed("start = rng.state_dict()\n", "", "return checkpoint(run, x, use_reentrant=False, c", "y = checkpoint(run, x, use_reentrant=False, c") + "start = rng.state_dict()\nreturn y\n"),
    redo("replicated alone", "tracker=replicated alone", changed("    rng.load_state_dict(start)\n", "    rng.load_state_dict({**start, 'sharded': now['sharded']})\n")),
    redo("sharded alone", "tracker=replicated alone", changed("    rng.load_state_dict(start)\n", "    rng.load_state_dict({**start, 'replicated': now['replicated']})\n")),
    redo("the global one not", "global generator=not put back", changed("use_reentrant=False", "use_reentrant=False, preserve_rng_state=False")),
    redo("around both runs", "first run=leaves them", changed("lambda: (nullcontext(), Around())", "lambda: (Around(), Around())")),
    redo("around the first run", ("first run=leaves them", "tracker=not put back"), changed("(nullcontext(), Around())", "(Around(), nullcontext())")),
    redo("x detached", "input=cut off", "x = x.detach()\n" + BODY),
    redo("neither", ("global generator=not put back", "tracker=not put back"), "return checkpoint(run, x, use_reentrant=False, preserve_rng_state=False)"),
    redo("a function by hand", "by=reentrant", "return Again.apply(x, run, rng) if torch.is_grad_enabled() else run(x)", RUN_AGAIN),
    redo("reentrant, tracker not put back", ("by=reentrant", "tracker=not put back"), "return checkpoint(run, x, use_reentrant=True)"),
    redo("good for one backward", "variant=backward twice", changed("class Around:", "once = around()\nclass Around:", "self.inner = around()\n        ", "self.inner = once\n        ")),
    redo("needs a tracker", "variant=no tracker", changed("if rng is None:\n    return checkpoint(run, x, use_reentrant=False)\n", "")),
    redo("with gradients all the same", "variant=without gradients", "torch_grad = torch.enable_grad()\nwith torch_grad:\n    " + BODY.replace("\n", "\n    ")),
    redo("None", "flag=returned None", "checkpoint(run, x, use_reentrant=False)"),
    # right ones
    redo("context_fn", (), BODY),
    redo("the function remembers", (), PATCHED),
]  # fmt: skip
