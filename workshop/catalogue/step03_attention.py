"""Step 3's answers: attention with its heads spread over the ranks."""
# ruff: noqa: E501 (an answer's line is a line of its code)

from __future__ import annotations

from . import Answer

HEAD = """import math
from einops import rearrange
from step03_attention_parallel.attention import keep_mask, masked_softmax
class ParallelAttention:
    def forward(self, x, padding_mask=None):
        """
BODY = """b, s, h = x.shape
heads = self.heads
y = self.qkv(x)
q, k, v = rearrange(y, "b s (three heads d) -> three b heads s d", three=3, heads=heads)
keep = keep_mask(x, padding_mask, self.causal)
mixed = self._attend(q, k, v, keep)
return self.out(rearrange(mixed, "b heads s d -> b s (heads d)"))
"""


def attend(name: str, key: str | tuple[str, ...], *pairs: str) -> Answer:
    keys = (key,) if isinstance(key, str) else key
    text = BODY
    for old, new in zip(pairs[::2], pairs[1::2], strict=True):
        assert old in text, old
        text = text.replace(old, new)
    return Answer("3.1", name, keys, HEAD + "\n        ".join(text.strip().split("\n")) + "\n")


SDPA = "F.scaled_dot_product_attention(q, k, v, attn_mask=keep, is_causal={}, dropout_p=0.0)"
ATTEND = "self._attend(q, k, v, keep)"
RETURN = 'return self.out(rearrange(mixed, "b heads s d -> b s (heads d)"))'
ATTENTION = [
    attend("heads outermost", "split=heads outermost", "(three heads d)", "(heads three d)"),
    attend("Q, K, V innermost", "split=heads outermost", "(three heads d)", "(heads d three)"),
    attend("heads innermost", "split=heads innermost", "(three heads d)", "(three d heads)"),
    attend("a reshape and no transpose", "split=a reshape", 'q, k, v = rearrange(y, "b s (three heads d) -> three b heads s d", three=3, heads=heads)', "q, k, v = (t.reshape(b, heads, s, -1) for t in y.chunk(3, -1))"),
    attend("Q and K exchanged", "order=kqv", "q, k, v =", "k, q, v ="),
    attend("Q and V exchanged", "order=kqv", "q, k, v =", "v, k, q ="),
    attend("K and V exchanged", "order=kqv", "q, k, v =", "q, v, k ="),
    attend("merged d heads", "merge=heads innermost", "b s (heads d)", "b s (d heads)"),
    attend("merged by a reshape", "merge=a reshape", 'rearrange(mixed, "b heads s d -> b s (heads d)")', "mixed.reshape(b, s, -1)"),
    attend("padding not passed on", "padding=not hidden", "x, padding_mask,", "x, None,"),
    attend("padding the wrong way", "padding=the real ones", "x, padding_mask,", "x, None if padding_mask is None else ~padding_mask,"),
    attend("padding lifts the causal mask", "causal=not under padding", "self.causal)\n", "False)\n"),
    attend("always causal", "causal=always", ATTEND, "self._attend(q, k, v, torch.ones(s, s, dtype=torch.bool).tril() if keep is None else keep & torch.ones(s, s, dtype=torch.bool).tril())"),
    attend("never causal", "causal=never", "keep = keep_mask(x, padding_mask, self.causal)", "keep = keep_mask(x, padding_mask, False)\nkeep = torch.ones(1, 1, s, s, dtype=torch.bool) if keep is None else keep"),
    attend("the future", "causal=the future", "keep = keep_mask(x, padding_mask, self.causal)", "keep = keep_mask(x, padding_mask, False)\nlate = torch.ones(s, s, dtype=torch.bool).triu() if self.causal else torch.ones(s, s, dtype=torch.bool)\nkeep = late.expand(1, 1, s, s) if keep is None else keep & late"),
    attend("padded queries hidden", "padding=queries", "keep = keep_mask(x, padding_mask, self.causal)", "keep = None\nif padding_mask is not None:\n    see = torch.ones(s, s, dtype=torch.bool)\n    keep = padding_mask[:, None, :, None] & (see.tril() if self.causal else see)"),
    attend("scaled by the rank's width", "scale=root of all heads' width", ATTEND, "self._attend(q / heads ** 0.5, k, v, keep)"),
    attend("dropout replicated", "dropout=replicated", "mixed = self._attend(q, k, v, keep)", """mixed = self._attend(q, k, v, keep)
if self.training and self.p:
    z = masked_softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), torch.ones(s, s, dtype=torch.bool).tril())
    mixed = self.rng.dropout(z, self.p, self.site, sharded=False) @ v"""),
    attend("no scale", "scale=none", ATTEND, "self._attend(q * q.size(-1) ** 0.5, k, v, keep)"),
    attend("scaled twice", "scale=d", ATTEND, "self._attend(q / q.size(-1) ** 0.5, k, v, keep)"),
    attend("around dropout", "dropout=none", ATTEND, SDPA.format("self.causal and keep is None")),
    attend("f in front", "front=f", "self.qkv(x)", "self.qkv(f(x, self.group))"),
    attend("g in front", "front=g", "self.qkv(x)", "self.qkv(g(x, self.group))"),
    attend("no f", "qkv=without f", "self.qkv(x)", "F.linear(x, self.qkv.weight.flatten(0, 1), self.qkv.bias.flatten())"),
    attend("g between", "between=g", "mixed = self._attend(q, k, v, keep)", "mixed = g(self._attend(q, k, v, keep), self.group)"),
    attend("f between", "between=f", "mixed = self._attend(q, k, v, keep)", "mixed = f(self._attend(q, k, v, keep), self.group)"),
    attend("no projection", "out=left out", RETURN, 'return rearrange(mixed, "b heads s d -> b s (heads d)")'),
    attend("projection without g", "out=without g", RETURN, 'return F.linear(rearrange(mixed, "b heads s d -> b s (heads d)"), self.out.weight, self.out.bias)'),
    attend("bias before g", "out=bias before g", RETURN, 'return g(F.linear(rearrange(mixed, "b heads s d -> b s (heads d)"), self.out.weight, self.out.bias), self.group)'),
    attend("no bias", "out=without bias", RETURN, 'return g(F.linear(rearrange(mixed, "b heads s d -> b s (heads d)"), self.out.weight), self.group)'),
    attend("averaged", "divided=by the ranks", RETURN, 'return self.out(rearrange(mixed, "b heads s d -> b s (heads d)")) / group_size(self.group)'),
    attend("SDPA alone", "by=SDPA alone", ATTEND, "F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)"),
    attend("SDPA alone, causal", "by=SDPA alone", ATTEND, "F.scaled_dot_product_attention(q, k, v, is_causal=True)"),
    attend("g behind", "behind=g", RETURN, 'return g(self.out(rearrange(mixed, "b heads s d -> b s (heads d)")), self.group)'),
    attend("f behind", "behind=f", RETURN, 'return f(self.out(rearrange(mixed, "b heads s d -> b s (heads d)")), self.group)'),
    attend("x added", "residual=added", "return self.out", "return x + self.out"),
    attend("cut off", "front=cut off", "self.qkv(x)", "self.qkv(x.detach())"),
    attend("g behind and K first", ("behind=g", "order=kqv"), "q, k, v =", "k, q, v =", RETURN, 'return g(self.out(rearrange(mixed, "b heads s d -> b s (heads d)")), self.group)'),
    attend("None", "flag=returned None", "return self.out", "self.out"),
    # right ones
    attend("chunks and views", (), 'rearrange(y, "b s (three heads d) -> three b heads s d", three=3, heads=heads)', "(t.reshape(b, s, heads, -1).transpose(1, 2) for t in y.chunk(3, -1))", 'rearrange(mixed, "b heads s d -> b s (heads d)")', "mixed.transpose(1, 2).reshape(b, s, -1)"),
    attend("head by head", (), "mixed = self._attend(q, k, v, keep)\n", "", RETURN, """if self.training and self.p:
    mixed = self._attend(q, k, v, keep)
else:
    see = torch.ones(s, s, dtype=torch.bool)
    see = see.tril() if self.causal else see
    see = see if padding_mask is None else see & padding_mask[:, None, :]
    parts = [masked_softmax(q[:, i] @ k[:, i].transpose(1, 2) / math.sqrt(q.size(-1)), see) @ v[:, i] for i in range(heads)]
    mixed = torch.stack(parts, 1)
return self.out(mixed.permute(0, 2, 1, 3).flatten(2))"""),
]  # fmt: skip
