"""`make certificate`: which of the steps' own proofs *your* code passed, at 1, 2, 4 and 8 ranks.

The equivalence tests of each step that the learner has finished functions of, run with them in
place. A proof counts only if it called one of them; which ones stands beside it.
"""

from __future__ import annotations

import math
import re
import time
from pathlib import Path
from typing import Any

from .make_exercises import WORK, shown
from .own_tests import pytest_run
from .standing import Standing, all_standing

WORLDS = (1, 2, 4, 8)
PROOFS = {
    1: [
        "test_attention.py::test_explicit_path_equals_sdpa",
        "test_loss.py::test_plain_and_fused_equal_torch",
        "test_weights.py::test_every_weight_of_a_model_is_the_one_its_name_draws",
        "test_optimizer.py::test_learning_rate_warms_up_then_follows_a_cosine",
        "test_data.py",
        "test_evaluation.py",
    ],
    2: [
        "test_layers.py::test_the_parallel_mlp_equals_the_whole_one",
        "test_layers.py::test_each_layer_alone_equals_torch",
    ],
    3: [
        "test_block.py::test_stacks_of_blocks_equal_step_one",
        "test_block.py::test_with_dropout_on_too_the_layout_does_not_matter",
        "test_rng.py::test_pitfall_32_recompute_changes_no_bit",
    ],
    4: [
        "test_cross_entropy.py::test_equals_torch_on_gathered_true_logits",
        "test_gpt.py::test_ten_steps_of_training_equal_the_reference",
        "test_gpt.py::test_starts_loads_and_moves_as_the_reference",
    ],
    5: [
        "test_clip.py::test_pitfalls_51_and_53_the_norm_and_the_clipped_gradients_are_torchs",
        "test_data_parallel.py::test_gradients_are_those_of_one_process_on_the_global_batch",
        "test_grid.py::test_tensor_parallel_ranks_are_neighbours",
    ],
    6: [
        "test_bert.py::test_ten_steps_of_training_equal_the_reference",
        "test_bert.py::test_mlm_logits_and_their_gradients",
        "test_masking.py",
    ],
}


def certificate(arguments: list[str] | None = None) -> int:
    """Run the proofs, write the certificate; 1 if a proof failed, 2 if nothing is to be proved."""
    found, unreadable = all_standing()
    for line in unreadable:
        print(line)
    for standing in found:
        for outcome in standing.broken:
            print(f"{outcome.id} is left out: make check-step{standing.step} says what is wrong")
    found = [standing for standing in found if standing.finished]
    if not found:
        print("Nothing is finished yet, so there is nothing to certify: make check-step2")
        return 2
    lines, good = [], True
    for standing in found:
        print(f"step {standing.step}: its proofs with your {', '.join(standing.finished)} …")
        rows = run(standing, arguments or [])
        lines += ["", *table(standing, rows)]
        passed = bool(rows) and all(row["passed"] for row in rows)
        if not passed:
            lines += ["", f"(make test-step{standing.step} shows what failed)"]
        good &= passed
    path = WORK / "certificate.md"
    head = ["# Certificate", "", f"{time.strftime('%Y-%m-%d')}. {SAID}"]
    _write(path, "\n".join([*head, *lines]) + "\n")
    print("\n".join(lines))
    print(f"\nwritten to {shown(path)}")
    return 0 if good else 1


SAID = (
    "These are the steps' own tests, run on this machine with the functions of the learner named "
    "below in the places of the real ones. ✔ passed, ✘ failed, – not one of these functions was "
    "called, so nothing was proved; in an empty place the proof has no such number of ranks."
)


def run(standing: Standing, arguments: list[str]) -> list[dict[str, Any]]:
    folder = f"tests/step{standing.step:02d}/"
    proofs = [folder + proof for proof in PROOFS[standing.step]]
    return pytest_run([*proofs, *arguments], (standing.mine,), quiet=True)[1]


def table(standing: Standing, rows: list[dict[str, Any]]) -> list[str]:
    """A line a proof, a column for each number of ranks."""
    proofs: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for row in rows:
        name, ranks = proof_of(row["test"])
        proofs.setdefault(name, {}).setdefault(ranks, []).append(row)
    digests = ", ".join(f"{id} {standing.fingerprints[id][:8]}" for id in standing.finished)
    lines = [
        f"## Step {standing.step}: {digests}",
        "",
        "| proof | 1 | 2 | 4 | 8 | with your |",
        "|---|---|---|---|---|---|",
    ]
    for name, by_ranks in sorted(proofs.items()):
        marks = [_mark(by_ranks.get(n, [])) for n in WORLDS]
        called = sorted({id for rows in by_ranks.values() for row in rows for id in row["called"]})
        lines.append(f"| {name} | {' | '.join(marks)} | {', '.join(called)} |")
    if not proofs:
        lines.append(
            "| the tests did not run: make test-step" + str(standing.step) + " | | | | | |"
        )
    return lines


def proof_of(test: str) -> tuple[str, int]:
    """("the parallel mlp equals the whole one", 4) of a test's id: its whole numbers are the ranks,
    or the two sides of their grid. In step 1 there are none."""
    path, _, rest = test.partition("::")
    name, _, parameters = rest.partition("[")
    counts = [] if "/step01/" in path else re.findall(r"(?<![\w.])\d+(?![\w.])", parameters)
    return name.removeprefix("test_").replace("_", " "), math.prod(map(int, counts))


def _mark(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return ""
    if not all(row["passed"] for row in rows):
        return "✘"
    return "✔" if any(row["called"] for row in rows) else "–"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
