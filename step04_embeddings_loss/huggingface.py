"""GPT-2's weights under Hugging Face's names, in and out; whole tensors, no ranks.

Theirs are made for x W with W [in, out] (`Conv1D`), ours for x Wᵀ with W [out, in]: *every* matrix
is transposed, also the square one, where forgetting it raises no error. Q, K and V stand side by
side in theirs, [h, 3h], and behind one another in ours, [3, h, h].
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from einops import rearrange
from torch import Tensor

_OUTSIDE = {"tokens": "wte", "positions": "wpe", "ln": "ln_f"}
_IN_A_BLOCK = {
    "ln1": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "ln2": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}
_EMBEDDINGS = ("tokens", "positions")
# Causal masks that older files carry along; they are no weights.
_BUFFER = re.compile(r"h\.\d+\.attn\.(masked_)?bias")
_PREFIX, _HEAD = "transformer.", "lm_head.weight"


def from_huggingface_gpt2(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole weights for `GPT` and, by `load_full_state_dict`, `ParallelGPT`; dtypes are kept.

    Takes the names of `GPT2LMHeadModel` and of `GPT2Model` (without "transformer."). Tensors may
    share memory with those given. Raises ValueError that lists missing and unknown names, and for
    an output layer that isn't the embedding: ours are one matrix.
    """
    theirs = {name.removeprefix(_PREFIX): tensor for name, tensor in state_dict.items()}
    theirs = {name: tensor for name, tensor in theirs.items() if not _BUFFER.fullmatch(name)}
    head = theirs.pop(_HEAD, None)
    layers = _count(theirs, "h")
    names = _names(layers)
    missing, unknown = names.values() - theirs.keys(), theirs.keys() - names.values()
    if layers == 0 or missing or unknown:
        raise ValueError(
            f"these are not a GPT-2's weights ({layers} layers found): missing "
            f"{sorted(missing) or 'nothing'}, unknown {sorted(unknown) or 'nothing'}"
        )
    embedding = theirs["wte.weight"]
    if head is not None and (head.shape != embedding.shape or not bool((head == embedding).all())):
        raise ValueError(
            f"{_HEAD} differs from wte.weight: an untied output layer, for which this model, whose "
            "output layer is the embedding, has no place"
        )
    ours = {}
    for name, other in names.items():
        tensor = theirs[other]
        if ".qkv." in name:
            tensor = rearrange(tensor, "... (three out) -> three out ...", three=3)
        elif _is_matrix(name):
            tensor = tensor.T
        ours[name] = tensor.contiguous()
    return ours


def to_huggingface_gpt2(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A whole state (of `GPT`, or gathered) under the names of `GPT2LMHeadModel`, lm_head included.

    Every tensor has memory of its own, as safetensors wants it. Raises ValueError that lists
    missing and unknown names.
    """
    layers = _count(state_dict, "blocks")
    names = _names(layers)
    missing, unknown = names.keys() - state_dict.keys(), state_dict.keys() - names.keys()
    if missing or unknown:
        raise ValueError(
            f"this is not a whole GPT's state ({layers} layers found): missing "
            f"{sorted(missing) or 'nothing'}, unknown {sorted(unknown) or 'nothing'}"
        )
    theirs = {}
    for name, other in names.items():
        tensor = state_dict[name]
        if ".qkv." in name:
            tensor = rearrange(tensor, "three out ... -> ... (three out)")
        elif _is_matrix(name):
            tensor = tensor.T
        theirs[_PREFIX + other] = tensor.clone().contiguous()
    theirs[_HEAD] = theirs[_PREFIX + "wte.weight"].clone()
    return theirs


def _names(layers: int) -> dict[str, str]:
    """Our name of each tensor -> theirs."""
    modules = dict(_OUTSIDE)
    for i in range(layers):
        modules |= {f"blocks.{i}.{o}": f"h.{i}.{t}" for o, t in _IN_A_BLOCK.items()}
    names = {}
    for ours, theirs in modules.items():
        for kind in ("weight",) if ours in _EMBEDDINGS else ("weight", "bias"):
            names[f"{ours}.{kind}"] = f"{theirs}.{kind}"
    return names


def _count(names: Iterable[str], stack: str) -> int:
    """Layers in the stack of that name: one more than the highest number."""
    numbers = (re.match(rf"{stack}\.(\d+)\.", name) for name in names)
    return 1 + max((int(number[1]) for number in numbers if number), default=-1)


def _is_matrix(name: str) -> bool:
    """Of a linear layer, so transposed."""
    return name.endswith(".weight") and name.split(".")[-2] in ("out", "up", "down")
