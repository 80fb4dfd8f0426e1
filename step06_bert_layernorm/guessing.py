"""What a BERT guesses for masked words, as text."""

from __future__ import annotations

from tokenizers import Tokenizer

from .examples import Batch
from .parallel_bert import ParallelBERT
from .scoring import guesses


def shown_guesses(model: ParallelBERT, batch: Batch, tokenizer: Tokenizer, rows: int) -> str:
    """The first rows of a batch, with "[guess, truth]" or "[right]" for each word asked for.

    Collective over the model's group; the text is the same on all of its ranks.
    """
    few = Batch(*(tensor[:rows] for tensor in batch))
    found = iter(guesses(model, few).tolist())

    def entry(token: int) -> str:
        return tokenizer.id_to_token(token) or "?"  # a vocab.txt may list an entry twice

    texts = []
    for tokens, targets, real in zip(few.tokens, few.targets, few.padding_mask, strict=True):
        pieces = []
        for token, target in zip(tokens[real].tolist(), targets[real].tolist(), strict=True):
            if target < 0:
                pieces.append(entry(token))
                continue
            guess, truth = entry(next(found)), entry(target)
            pieces.append(f"[{truth}]" if guess == truth else f"[{guess}, {truth}]")
        texts.append(" ".join(pieces).replace(" ##", "").replace("[##", "["))
    return "\n\n".join(texts)
