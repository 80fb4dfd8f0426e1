"""Step 1's answers: drawing weights and batches."""
# ruff: noqa: E501 (an answer's line is a line of its code)

from __future__ import annotations

from . import Answer

TOOLS = "import hashlib, random, zlib\nimport numpy as np\n"


def weight(name: str, key: str | tuple[str, ...], body: str) -> Answer:
    keys = (key,) if isinstance(key, str) else key
    lines = "\n    ".join(body.strip().split("\n"))
    return Answer(
        "1.3", name, keys, f"{TOOLS}def draw_weight(name, shape, std, seed):\n    {lines}\n"
    )


GEN = "gen = generator_for({})\nreturn {} * std\n"
RANDN = "torch.randn(shape, generator=gen)"
WEIGHT = [
    weight("global", "generator=global", "return torch.randn(shape) * std"),
    weight("normal_ in place", "generator=global", "return torch.empty(shape).normal_(0.0, std)"),
    weight("global, seeded", "generator=global, seeded by seed", "torch.manual_seed(seed)\nreturn torch.randn(shape) * std"),
    weight("global, seeded by the name too", "generator=global, seeded", "torch.manual_seed(zlib.crc32(name.encode()) + seed)\nreturn torch.randn(shape) * std"),
    weight("a new seed each time", "generator=fresh each time", "gen = torch.Generator()\ngen.seed()\nreturn torch.randn(shape, generator=gen) * std"),
    weight("NumPy's, seeded", "generator=global, seeded", "np.random.seed((seed + zlib.crc32(name.encode())) % 2**32)\nreturn torch.from_numpy(np.random.randn(*shape).astype(np.float32)) * std"),
    weight("address", "name=salted", GEN.format("seed, id(name)", RANDN)),
    weight("front of the name", "name=first part", GEN.format("seed, '.'.join(name.split('.')[:2])", RANDN)),
    weight("no name", "name=not at all", GEN.format("seed", RANDN)),
    weight("seed alone", "name=not at all", "gen = torch.Generator().manual_seed(seed)\nreturn torch.randn(shape, generator=gen) * std"),
    weight("length of the name", "name=length", GEN.format("seed, len(name)", RANDN)),
    weight("sum of letters", "name=letters", "gen = torch.Generator().manual_seed(1000003 * seed + sum(map(ord, name)))\nreturn torch.randn(shape, generator=gen) * std"),
    weight("last part", "name=last part", GEN.format("seed, name.split('.')[-1]", RANDN)),
    weight("hash", "name=salted", GEN.format("seed, hash(name)", RANDN)),
    weight("hash of both", "name=salted", "gen = torch.Generator().manual_seed(abs(hash((name, seed))))\nreturn torch.randn(shape, generator=gen) * std"),
    weight("no seed", "seed=not used", GEN.format("name", RANDN)),
    weight("rank in the key", "rank=in the key", GEN.format("seed, name, dist.get_rank() if dist.is_initialized() or dist.get_rank.__name__ == '<lambda>' else 0", RANDN)),
    weight("uniform", "kind=uniform to std", GEN.format("seed, name", "(2 * torch.rand(shape, generator=gen) - 1)")),
    weight("uniform from zero", "kind=uniform to std", GEN.format("seed, name", "torch.rand(shape, generator=gen)")),
    weight("variance", "scale=variance", GEN.format("seed, name", RANDN).replace("* std", "* std ** 0.5")),
    weight("std squared", "scale=variance", GEN.format("seed, name", RANDN).replace("* std", "* std ** 2")),
    weight("not scaled", "scale=none", GEN.format("seed, name", RANDN).replace(" * std", "")),
    weight("fan in", "scale=fan in", GEN.format("seed, name", RANDN) .replace("* std", "* std / shape[-1] ** 0.5")),
    weight("fan out", "scale=fan in", GEN.format("seed, name", RANDN) .replace("* std", "* std / shape[0] ** 0.5")),
    weight("cut off", "kind=cut off", "return torch.nn.init.trunc_normal_(torch.empty(shape), 0.0, std, -2 * std, 2 * std, generator=generator_for(seed, name))"),
    weight("as an array", "flag=returned other", "return torch.randn(shape, generator=generator_for(seed, name)).numpy() * std"),
    weight("Xavier", "scale=Xavier's", "return torch.nn.init.xavier_normal_(torch.empty(shape), generator=generator_for(seed, name))"),
    weight("Kaiming", "scale=Xavier's", "return torch.nn.init.kaiming_normal_(torch.empty(shape), generator=generator_for(seed, name))"),
    weight("uniform of that spread", "kind=uniform to std", GEN.format("seed, name", "(3 ** 0.5 * (2 * torch.rand(shape, generator=gen) - 1))")),
    weight("a parameter", "history=a parameter", "return torch.nn.Parameter(std * torch.randn(shape, generator=generator_for(seed, name)))"),
    weight("mean is std", "mean=std", GEN.format("seed, name", RANDN).replace("* std", "* std + std")),
    weight("float64", "dtype=float64", GEN.format("seed, name", "torch.randn(shape, generator=gen, dtype=torch.float64)")),
    weight("hash, uniform", ("kind=uniform to std", "name=salted"), GEN.format("seed, hash(name)", "(2 * torch.rand(shape, generator=gen) - 1)")),
    # right ones
    weight("crc32", (), "gen = torch.Generator().manual_seed(zlib.crc32(f'{seed} {name}'.encode()))\nreturn torch.empty(shape).normal_(0.0, std, generator=gen)"),
    weight("numpy's generator", (), "digest = hashlib.sha256(f'{name}/{seed}'.encode()).digest()\nreturn torch.from_numpy(np.random.default_rng(list(digest)).normal(0.0, std, shape).astype(np.float32))"),
    weight("in a fork", (), "with torch.random.fork_rng(devices=[]):\n    torch.manual_seed(int(hashlib.md5(f'{seed}{name}'.encode()).hexdigest()[:12], 16))\n    return std * torch.randn(shape)"),
]  # fmt: skip


def batch(name: str, key: str | tuple[str, ...], body: str) -> Answer:
    keys = (key,) if isinstance(key, str) else key
    lines = "\n    ".join(body.strip().split("\n"))
    head = "def global_batch(tokens, step, *, batch_size, seq_length, seed):\n    "
    return Answer("1.4", name, keys, f"{TOOLS}{head}{lines}\n")


CHECK = "if len(tokens) <= seq_length:\n    raise ValueError('too short')\n"
STARTS = "gen = generator_for('batch', seed, step)\nstarts = torch.randint(len(tokens) - seq_length, (batch_size,), generator=gen).tolist()\n"
ROWS = "rows = np.stack([np.asarray(tokens[i : i + seq_length + 1]) for i in starts])\nrows = torch.from_numpy(rows.astype(np.int64))\n"
END = "return rows[:, :-1], rows[:, 1:]"
ALL = CHECK + STARTS + ROWS + END


def changed(*pairs: str) -> str:
    text = ALL
    for old, new in zip(pairs[::2], pairs[1::2], strict=True):
        assert old in text, old
        text = text.replace(old, new)
    return text


BATCH = [
    batch("not shifted", "target=same", changed("return rows[:, :-1], rows[:, 1:]", "return rows[:, :-1], rows[:, :-1].clone()")),
    batch("the wrong way round", "target=before", changed("return rows[:, :-1], rows[:, 1:]", "return rows[:, 1:], rows[:, :-1]")),
    batch("two further", "target=next but one", CHECK + "n = seq_length\n" + STARTS.replace("len(tokens) - seq_length", "len(tokens) - seq_length - 1 if len(tokens) > seq_length + 3 else len(tokens) - seq_length") + ROWS.replace("seq_length + 1", "seq_length + 2") + "return rows[:, :n], rows[:, 2:n + 2]"),
    batch("rolled", "target=rolled", changed("return rows[:, :-1], rows[:, 1:]", "return rows[:, :-1], rows[:, :-1].roll(-1, 1)")),
    batch("blocks", "starts=multiples", changed("torch.randint(len(tokens) - seq_length, (batch_size,), generator=gen)", "(seq_length * torch.randint((len(tokens) - 1) // seq_length, (batch_size,), generator=gen))")),
    batch("in order", "starts=in order", changed("starts = torch.randint(len(tokens) - seq_length, (batch_size,), generator=gen).tolist()", "starts = [(step * batch_size + i) * seq_length % (len(tokens) - seq_length) for i in range(batch_size)]")),
    batch("one start", "starts=one for all", changed("(batch_size,), generator=gen).tolist()", "(1,), generator=gen).tolist() * batch_size")),
    batch("one further each", "starts=one further each", changed("(batch_size,), generator=gen).tolist()", "(1,), generator=gen).item()\nstarts = [(starts + i) % (len(tokens) - seq_length) for i in range(batch_size)]")),
    batch("windows alone", "flag=returned other", changed("return rows[:, :-1], rows[:, 1:]", "return rows")),
    batch("one stretch", "starts=one stretch", changed("(batch_size,), generator=gen).tolist()", "(1,), generator=gen).item()\nstarts = [(starts + i * seq_length) % (len(tokens) - seq_length) for i in range(batch_size)]")),
    batch("a round multiple", "key=a round multiple", changed("gen = generator_for('batch', seed, step)", "gen = torch.Generator().manual_seed(1000 * seed + step)")),
    batch("the last target", "target=the last alone", changed("rows[:, 1:]", "rows[:, -1]")),
    batch("inputs one more", "width=inputs one too long", changed("return rows[:, :-1]", "return rows")),
    batch("int32", "dtype=corpus", changed(".astype(np.int64)", ".astype(np.int32)")),
    batch("last start never", "last start=one too few", changed("randint(len(tokens) - seq_length,", "randint(max(1, len(tokens) - seq_length - 1),")),
    batch("one start too many", "last start=one too many", changed("randint(len(tokens) - seq_length,", "randint(len(tokens) - seq_length + 1,")),
    batch("inputs one short", "width=one too short", changed("seq_length + 1])", "seq_length])")),
    batch("seed + step", "key=sum", changed("'batch', seed, step", "'batch', seed + step")),
    batch("seed * step", "key=product", changed("'batch', seed, step", "seed * step")),
    batch("xor", "key=xor", changed("'batch', seed, step", "seed ^ step")),
    batch("digits joined", "key=joined", changed("'batch', seed, step", "f'batch{seed}{step}'")),
    batch("no step", "key=seed", changed("'batch', seed, step", "'batch', seed")),
    batch("no seed", "key=step", changed("'batch', seed, step", "'batch', step")),
    batch("hash of text", "key=salted", changed("'batch', seed, step", "hash(f'{seed}:{step}')")),
    batch("global", "generator=global", changed(", generator=gen", "")),
    batch("global, seeded", "generator=global, seeded", changed(", generator=gen", "", "gen = generator_for('batch', seed, step)", "torch.manual_seed(seed * 100003 + step)")),
    batch("fresh", "generator=fresh each time", changed("gen = generator_for('batch', seed, step)", "gen = np.random.default_rng()", "torch.randint(len(tokens) - seq_length, (batch_size,), generator=gen)", "gen.integers(0, len(tokens) - seq_length, batch_size)")),
    batch("rank in the key", "rank=in the key", changed("seed, step)", "seed, step, dist.get_rank() if dist.is_initialized() or dist.get_rank.__name__ == '<lambda>' else 0)")),
    batch("the corpus's dtype", "dtype=corpus", changed(".astype(np.int64)", "")),
    batch("no check", "flag=no complaint", changed(CHECK, "", "randint(len(tokens) - seq_length,", "randint(max(1, len(tokens) - seq_length),", "seq_length + 1])", "seq_length + 1])", "np.asarray(tokens[i : i + seq_length + 1])", "np.resize(np.asarray(tokens[i : i + seq_length + 1]), seq_length + 1)")),
    batch("sum and not shifted", ("key=sum", "target=same"), changed("'batch', seed, step", "'batch', seed + step", "return rows[:, :-1], rows[:, 1:]", "return rows[:, :-1], rows[:, :-1].clone()")),
    # right ones
    batch("numpy's generator", (), CHECK + "rng = np.random.default_rng([seed, step])\nstarts = rng.integers(0, len(tokens) - seq_length, batch_size)\n" + ROWS + "return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()"),
    batch("two gathers", (), CHECK + STARTS + "at = torch.tensor(starts)[:, None] + torch.arange(seq_length)\nwhole = torch.as_tensor(np.asarray(tokens).astype(np.int64))\nreturn whole[at], whole[at + 1]"),
    batch("a fork of random", (), CHECK + "rng = random.Random(f'{seed} and {step}')\nstarts = [rng.randrange(len(tokens) - seq_length) for _ in range(batch_size)]\n" + ROWS + END),
]  # fmt: skip
