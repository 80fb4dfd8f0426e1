"""Where weights start: each is drawn whole from (seed, its name), whatever else is built."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init


def generator_for(*key: object) -> torch.Generator:
    """A CPU generator whose stream depends on the values of `key` alone.

    blake2b, not `hash()`: Python salts string hashes differently in each process.
    """
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return torch.Generator(device="cpu").manual_seed(int.from_bytes(digest, "little") >> 1)


# exercise 1.3
def draw_weight(name: str, shape: tuple[int, ...], std: float, seed: int) -> Tensor:
    """Draw the weight called `name` from N(0, std²): a function of its arguments only.

    Returns float32 on the CPU, of `shape`, drawn as one whole tensor: a rank that holds a part
    of it (steps 2 to 6) draws it all and cuts, so every layout starts from the same model. No
    global generator is read or advanced.
    """
    generator = generator_for("weight", int(seed), name)
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu").mul_(std)


def dotted(prefix: str, name: str) -> str:
    """`name` under `prefix`, as `state_dict` would spell it."""
    return f"{prefix}.{name}" if prefix else name


@torch.no_grad()
def fill(parameter: Tensor, name: str, std: float, seed: int) -> None:
    """Fill `parameter` with its drawn weight, cast to its dtype; nothing to fill on `meta`."""
    if not parameter.is_meta:
        parameter.copy_(draw_weight(name, tuple(parameter.shape), std, seed))


def linear(in_features: int, out_features: int, *, std: float, seed: int, name: str) -> nn.Linear:
    """An `nn.Linear` with weight [out, in] drawn by its name and bias [out] zero.

    `skip_init` keeps torch from drawing a first set of weights, which would advance the global
    generator and cost as much time again.
    """
    device = torch.get_default_device()
    layer = skip_init(  # type: ignore[no-untyped-call]
        nn.Linear, in_features, out_features, device=device
    )
    fill(layer.weight, dotted(name, "weight"), std, seed)
    nn.init.zeros_(layer.bias)
    assert isinstance(layer, nn.Linear)
    return layer


def embedding(rows: int, width: int, *, std: float, seed: int, name: str) -> nn.Embedding:
    """An `nn.Embedding` [rows, width] drawn by its name."""
    layer = skip_init(  # type: ignore[no-untyped-call]
        nn.Embedding, rows, width, device=torch.get_default_device()
    )
    fill(layer.weight, dotted(name, "weight"), std, seed)
    assert isinstance(layer, nn.Embedding)
    return layer
