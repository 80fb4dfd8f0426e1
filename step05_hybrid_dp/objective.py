"""What is minimised: a sum of means, each over labels of its own.

A GPT-2 has one part, the next token. A BERT (step 6) has two, masked words and sentence order, and
a batch has other numbers of the two; so each part is divided by a count of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

# Tensors with one row a sample, tokens first; a NamedTuple where there are more than two.
Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class Objective:
    """The parts of a model's loss, by name, and how to come by them.

    labels(batch) gives one integer tensor a part; -100 doesn't count. losses(model, batch,
    divisors) gives, for each part, the sum over the batch's labels, over that part's divisor:
    [parts], or [] if there is one.
    """

    parts: tuple[str, ...]
    labels: Callable[[Any], Sequence[Tensor]]
    losses: Callable[[Any, Any, Sequence[float]], Tensor]


def _next_token(model: Any, batch: tuple[Tensor, Tensor], divisors: Sequence[float]) -> Tensor:
    tokens, targets = batch
    loss: Tensor = model.loss(tokens, targets, reduction="sum", divisor=divisors[0])
    return loss


# A batch is (tokens [b, s], targets [b, s]); the model has step 1's loss.
NEXT_TOKEN = Objective(("loss",), lambda batch: [batch[1]], _next_token)
