"""BERT's weights under Hugging Face's names, in and out; whole tensors, no ranks.

Both keep matrices as [out, in], so nothing is transposed; Q, K and V are three matrices there and
one, [3, h, h], here. Only the original norm order has a counterpart: a rearranged layer computes
another function of the same matrices (its norms see other tensors, and its stream is never
normalised), so no renaming turns one into the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from .bert import BERT
from .config import BertConfig

_ENCODER = {
    "tokens.weight": "embeddings.word_embeddings.weight",
    "positions.weight": "embeddings.position_embeddings.weight",
    "segments.weight": "embeddings.token_type_embeddings.weight",
    "ln_embedding.weight": "embeddings.LayerNorm.weight",
    "ln_embedding.bias": "embeddings.LayerNorm.bias",
}
_IN_A_BLOCK = {
    "attention.out": "attention.output.dense",
    "ln1": "attention.output.LayerNorm",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
    "ln2": "output.LayerNorm",
}
_QKV = ("query", "key", "value")
# Parts that a file may lack as a whole: the model it is from had no use for them.
_PARTS: dict[str, dict[str, str]] = {
    "pooler": {f"pooler.{k}": f"pooler.dense.{k}" for k in ("weight", "bias")},
    "mlm": {
        "mlm_dense.weight": "cls.predictions.transform.dense.weight",
        "mlm_dense.bias": "cls.predictions.transform.dense.bias",
        "ln_mlm.weight": "cls.predictions.transform.LayerNorm.weight",
        "ln_mlm.bias": "cls.predictions.transform.LayerNorm.bias",
        "mlm_bias": "cls.predictions.bias",
    },
    "order": {f"order.{k}": f"cls.seq_relationship.{k}" for k in ("weight", "bias")},
}
_PREFIX = "bert."
_DECODER = "cls.predictions.decoder.weight"
_DECODER_BIAS = "cls.predictions.decoder.bias"
# A buffer that older files carry along, and the names of a BERT in the rearranged order.
_BUFFER = "embeddings.position_ids"
_REARRANGED = re.compile(r"(bert\.)?encoder\.(ln\.|layer\.\d+\.(ln|attention\.ln)\.)")
_REFUSED = (
    "the two norm orders are not convertible: a rearranged layer computes another function of the "
    "same matrices"
)


def from_huggingface_bert(
    state_dict: Mapping[str, Tensor], *, heads: bool = True
) -> dict[str, Tensor]:
    """Whole weights for `BERT` and, by `load_full_state_dict`, `ParallelBERT`, with
    `norm="original"`; dtypes are kept.

    Takes the names of `BertModel` and of models that contain one ("bert." in front). Pooler and
    heads that the file lacks start as those of `BERT(config)` do; their "next sentence" head is
    our `order`. `heads=False` leaves both heads out. Tensors may share memory with those given.
    Raises ValueError that lists missing and unknown names; for an output layer that isn't the
    embedding; and for a model in the rearranged order.
    """
    if any(_REARRANGED.match(name) for name in state_dict):
        raise ValueError(f"these weights are of a BERT in the rearranged order, and {_REFUSED}")
    theirs = {name.removeprefix(_PREFIX): tensor for name, tensor in state_dict.items()}
    theirs.pop(_BUFFER, None)
    _check_tied(theirs)
    layers = _count(theirs, r"encoder\.layer")
    parts = {n: p for n, p in _PARTS.items() if any(other in theirs for other in p.values())}
    names = _names(layers) | {ours: o for part in parts.values() for ours, o in part.items()}
    wanted = {*names.values(), *(other for three in _qkv(layers).values() for other in three)}
    _compare(layers, wanted, theirs.keys(), "a BERT's weights in the original order")
    ours = {name: theirs[other] for name, other in names.items()}
    for name, three in _qkv(layers).items():
        ours[name] = torch.stack([theirs[other] for other in three])
    ours |= _fresh(ours, [part for part in _PARTS if part not in parts])
    unwanted = () if heads else (*_PARTS["mlm"], *_PARTS["order"])
    return {name: tensor for name, tensor in ours.items() if name not in unwanted}


def to_huggingface_bert(
    state_dict: Mapping[str, Tensor], *, heads: bool = True
) -> dict[str, Tensor]:
    """A whole state (of `BERT`, or gathered) under the names of `BertForPreTraining`, decoder
    included; `heads=False`: under those of `BertModel`.

    Every tensor has memory of its own, as safetensors wants it. Raises ValueError that lists
    missing and unknown names, and for a rearranged model.
    """
    if "ln.weight" in state_dict:
        raise ValueError(f"this BERT is in the rearranged order, and {_REFUSED}")
    layers = _count(state_dict, "blocks")
    parts = _PARTS.values() if "mlm_bias" in state_dict or heads else [_PARTS["pooler"]]
    names = _names(layers) | {ours: other for part in parts for ours, other in part.items()}
    qkv = _qkv(layers)
    _compare(layers, {*names, *qkv}, state_dict.keys(), "a whole BERT's state")
    prefix = _PREFIX if heads else ""
    theirs = {other: state_dict[name].clone() for name, other in names.items()}
    for name, three in qkv.items():
        theirs |= {o: t.clone() for o, t in zip(three, state_dict[name], strict=True)}
    if heads:
        theirs[_DECODER] = theirs[_ENCODER["tokens.weight"]].clone()
        theirs[_DECODER_BIAS] = theirs["cls.predictions.bias"].clone()
    named = {o if o.startswith("cls.") else prefix + o: t for o, t in theirs.items()}
    return {o: t for o, t in named.items() if heads or not o.startswith("cls.")}


def bert_config(
    state_dict: Mapping[str, Tensor], num_heads: int, **others: float | str
) -> BertConfig:
    """The sizes of our whole state; how many heads there are can't be seen in it."""
    vocab_size, hidden_size = state_dict["tokens.weight"].shape
    return BertConfig(
        vocab_size,
        state_dict["positions.weight"].size(0),
        hidden_size,
        _count(state_dict, "blocks"),
        num_heads,
        norm="rearranged" if "ln.weight" in state_dict else "original",
        num_segments=state_dict["segments.weight"].size(0),
        **others,  # type: ignore[arg-type]
    )


def _check_tied(theirs: dict[str, Tensor]) -> None:
    """Take the decoder's second names out, if they are what they stand for here."""
    for second, first in (
        (_DECODER, _ENCODER["tokens.weight"]),
        (_DECODER_BIAS, "cls.predictions.bias"),
    ):
        other = theirs.pop(second, None)
        if other is not None and first not in theirs:
            theirs[first] = other
        elif other is not None and not torch.equal(other, theirs[first]):
            raise ValueError(
                f"{second} differs from {first}: an untied output layer, for which this model, "
                "whose decoder is the embedding, has no place"
            )


def _fresh(ours: Mapping[str, Tensor], parts: list[str]) -> dict[str, Tensor]:
    """The start of what a file lacks, in the dtype of the rest."""
    if not parts:
        return {}
    rows, (v, h) = ours["segments.weight"].size(0), ours["tokens.weight"].shape
    model = BERT(BertConfig(v, 1, h, num_layers=1, num_heads=1, num_segments=rows))
    state, dtype = model.state_dict(), ours["tokens.weight"].dtype
    return {name: state[name].to(dtype) for part in parts for name in _PARTS[part]}


def _names(layers: int) -> dict[str, str]:
    """Our name of each tensor -> theirs, Q, K and V apart."""
    names = dict(_ENCODER)
    for i in range(layers):
        for ours, theirs in _IN_A_BLOCK.items():
            for kind in ("weight", "bias"):
                names[f"blocks.{i}.{ours}.{kind}"] = f"encoder.layer.{i}.{theirs}.{kind}"
    return names


def _qkv(layers: int) -> dict[str, list[str]]:
    """Our name of each fused tensor -> their three."""
    return {
        f"blocks.{i}.attention.qkv.{kind}": [
            f"encoder.layer.{i}.attention.self.{one}.{kind}" for one in _QKV
        ]
        for i in range(layers)
        for kind in ("weight", "bias")
    }


def _compare(layers: int, wanted: Iterable[str], found: Iterable[str], what: str) -> None:
    missing, unknown = set(wanted) - set(found), set(found) - set(wanted)
    if layers == 0 or missing or unknown:
        raise ValueError(
            f"this is not {what} ({layers} layers found): missing "
            f"{sorted(missing) or 'nothing'}, unknown {sorted(unknown) or 'nothing'}"
        )


def _count(names: Iterable[str], stack: str) -> int:
    """Layers in the stack of that name: one more than the highest number."""
    numbers = (re.match(rf"{stack}\.(\d+)\.", name) for name in names)
    return 1 + max((int(number[1]) for number in numbers if number), default=-1)
