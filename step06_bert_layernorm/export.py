"""`python -m step06_bert_layernorm.export`: any run's newest checkpoint in Hugging Face's form
(`make export RUN=… TO=folder`)."""

from __future__ import annotations

import dataclasses
import shutil
from dataclasses import dataclass

import step05_hybrid_dp.export as gpt
from step01_single_gpu.programs import run_program
from step01_single_gpu.run_folder import newest_run
from step02_mlp_parallel import gather_full_state_dict

from .finetune_load import export_finetuned, is_finetuned
from .load import is_bert_run, load_bert_run
from .pretrained import write_bert


@dataclass(frozen=True)
class Options(gpt.Options):
    """Write a run's model in Hugging Face's form, which transformers opens."""

    seed: int | None = None
    """Of a fine-tuned run: which seed's model; None is the first one's."""


def main(options: Options) -> None:
    """Raises ValueError for a BERT in the rearranged order, for which there is no such form."""
    run = options.run or newest_run()
    if is_finetuned(run):
        gpt.check_folder(options)
        return export_finetuned(run, options.to, options.seed)
    if not is_bert_run(run):
        return gpt.main(dataclasses.replace(options, run=run))
    gpt.check_folder(options)
    model, text, given = load_bert_run(run)
    write_bert(options.to, model.config, gather_full_state_dict(model))
    shutil.copyfile(text.folder / "vocab.txt", options.to / "vocab.txt")
    print(f"{options.to}: model.safetensors, config.json, vocab.txt of {given.model}")


if __name__ == "__main__":
    run_program(main, Options)
