"""`python -m step06_bert_layernorm.evaluate`: score a run of any model (`make evaluate`).

A GPT-2's run by step 1's program; a BERT's by its masked words and sentence order; a fine-tuned
one's by its task.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

import step01_single_gpu.evaluate as gpt
from step01_single_gpu.machine import keep_freed_memory
from step01_single_gpu.programs import run_program
from step01_single_gpu.run_folder import newest_run, write_text
from step01_single_gpu.scoring import unigram_loss
from step05_hybrid_dp.load import load_run

from .examples import Batch
from .finetune_load import evaluate_finetuned, is_finetuned
from .load import is_bert_run, load_bert_run
from .pretrain import held_out, report
from .scoring import score


@dataclass(frozen=True)
class Options(gpt.Options):
    """Score a trained GPT-2 on held-out text, Wikipedia and LAMBADA; a BERT on held-out pairs,
    or on the task that it was fine-tuned for."""

    examples: int = 2048
    """Of a BERT: how many sentence pairs of the held-out text."""


def main(options: Options) -> dict[str, object]:
    """The figures, which are printed and stand in the run's evaluation.json."""
    run = options.run or newest_run()
    options = dataclasses.replace(options, run=run)
    if is_finetuned(run):
        return evaluate_finetuned(run)
    if not is_bert_run(run):
        return gpt.main(options, load=load_run)
    if options.examples < 1:
        raise ValueError(f"--examples is {options.examples}; it must be at least 1")
    keep_freed_memory()
    model, text, given = load_bert_run(run)
    valid = held_out(text, given, options.examples)
    size = options.batch_size
    starts = range(0, options.examples, size)
    batches = (Batch(*(tensor[i : i + size] for tensor in valid)) for i in starts)
    found = score(model, batches)
    words = valid.targets[valid.targets >= 0]
    unigram = unigram_loss(text.train.ids, words.numpy(), model.config.vocab_size)
    print(f"{run}, {given.model}, {given.norm} order\n{report(found, unigram)}")
    results = {**found._asdict(), "perplexity": found.perplexity, "unigram_loss": unigram}
    write_text(run / "evaluation.json", json.dumps(results, indent=2) + "\n")
    return results


if __name__ == "__main__":
    run_program(main, Options)
