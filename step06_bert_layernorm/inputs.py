"""What a BERT is given, checked before anything is computed or sent."""

from __future__ import annotations

import torch
from torch import Tensor

from step01_single_gpu.loss import reduce_losses, valid_targets
from step01_single_gpu.model import check_tokens

from .config import BertConfig


def check_inputs(
    tokens: Tensor, segments: Tensor | None, padding_mask: Tensor | None, config: BertConfig
) -> None:
    """Raise ValueError unless all fit one another and the config: tokens [b, ≤ seq_length] ids,
    segments [b, s] below `num_segments`, padding_mask [b, s] bool."""
    check_tokens(tokens, config)
    shape = list(tokens.shape)
    if segments is not None:
        if segments.shape != tokens.shape:
            raise ValueError(f"segments have shape {list(segments.shape)}, the tokens {shape}")
        _check_labels(segments, config.num_segments, "segment")
    if padding_mask is not None and (
        padding_mask.dtype != torch.bool or padding_mask.shape != tokens.shape
    ):
        raise ValueError(
            f"padding_mask is {padding_mask.dtype} {list(padding_mask.shape)}; it must be "
            f"torch.bool {shape}, [batch, sequence], True where a token is real"
        )


def no_segments(tokens: Tensor) -> Tensor:
    """All tokens in the first segment."""
    return torch.zeros_like(tokens)


def check_loss(
    tokens: Tensor,
    targets: Tensor,
    order: Tensor | None,
    *,
    vocab_size: int,
    ignore_index: int,
    reduction: str,
    divisor: float | Tensor | None,
    order_divisor: float | Tensor | None,
) -> None:
    """Raise ValueError for what `loss` can't work with."""
    if targets.shape != tokens.shape:
        raise ValueError(
            f"targets {list(targets.shape)} and tokens {list(tokens.shape)} differ in shape"
        )
    for one in (divisor, order_divisor):
        reduce_losses(torch.zeros(()), torch.zeros(()), reduction, one)  # checks both arguments
    valid_targets(targets, vocab_size, ignore_index)
    if order is None:
        return
    if reduction == "none":
        raise ValueError(
            'reduction="none" gives a loss for each token, and order has a label for each row; '
            "leave order out"
        )
    if order.shape != tokens.shape[:1]:
        raise ValueError(
            f"order has shape {list(order.shape)}; it must be [{tokens.size(0)}], one label a row"
        )
    _check_labels(order, 2, "order label", also=order == ignore_index)


def _check_labels(labels: Tensor, number: int, what: str, also: Tensor | None = None) -> None:
    """Raise ValueError for a label that isn't among 0 … number - 1, those in `also` apart."""
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(f"{what}s are {labels.dtype}; they must be integers, such as torch.int64")
    good = (labels >= 0) & (labels < number)
    good = good if also is None else good | also
    if labels.is_meta:
        return
    if labels.device.type != "cpu":  # no wait for the device: it stops itself
        torch._assert_async(good.all(), f"a {what} isn't among 0 … {number - 1}")
    elif not good.all():
        raise ValueError(f"{what} {labels[~good][0].item()} isn't among 0 … {number - 1}")
