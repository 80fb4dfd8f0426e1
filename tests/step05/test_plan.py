"""The planner: its counts against real ranks, its rates against the paper, its answers."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
import time
from pathlib import Path

import pytest

from step01_single_gpu import PAPER_MODELS, GPTConfig
from step01_single_gpu.machine import training_flops
from step02_mlp_parallel import run_ranks
from step04_embeddings_loss.vocab import padded_vocab_size
from step05_hybrid_dp.cost_model import Layout, memory, own_words, parameters_per_gpu
from step05_hybrid_dp.machines import FITTED, MACHINES, Machine
from step05_hybrid_dp.plan import Options, main
from step05_hybrid_dp.sizes import paper_models
from step05_hybrid_dp.time_model import iteration, times, work

from . import plan_ranks

V100, CPU = MACHINES["v100-32gb"], MACHINES["cpu-2core"]
BIG, SMALL = PAPER_MODELS["gpt2-8.3b"], PAPER_MODELS["gpt2-1.2b"]
ROOT = Path(__file__).parents[2]


def shown(**options: object) -> str:
    return main(Options(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [1, 4])
def test_parameters_of_a_rank(n: int) -> None:
    config = GPTConfig(600, 16, hidden_size=24, num_layers=1, num_heads=4)
    real = run_ranks(plan_ranks.parameters, n, config)
    rest = (config.seq_length + 2) * config.hidden_size  # positions, the last norm
    assert {parameters_per_gpu(config, n) - rest} == set(real)


def test_the_models_are_step_1s() -> None:
    own = paper_models()
    assert own == PAPER_MODELS
    for config in own.values():
        even = dataclasses.replace(config, vocab_size=padded_vocab_size(config.vocab_size, 1))
        assert parameters_per_gpu(even, 1) == even.num_parameters
        for n in (1, 2, 8, 16):
            assert own_words(config, n) * n == padded_vocab_size(config.vocab_size, n)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("dropout", [0.1, 0.0])
def test_what_a_block_keeps_and_sends(n: int, dropout: float) -> None:
    """Bytes for backward within 1 % of what autograd holds; all-reduces exactly."""
    config = GPTConfig(128, 64, 48, num_layers=1, num_heads=4, dropout=dropout)
    kinds = ["fp32", "fp32 recompute", "bf16", "bf16 recompute", "half", "half recompute"]
    real = run_ranks(plan_ranks.kept_and_sent, n, config, 3, kinds)[0]
    stacked = dataclasses.replace(config, num_layers=2)
    for kind, (kept, sums, reduced) in zip(kinds, real, strict=True):
        name = {"half": "fp16"}.get(kind.split()[0], kind.split()[0])
        machine = dataclasses.replace(CPU, peak=dict.fromkeys(("fp32", "bf16", "fp16"), 1e12))
        layout = Layout(n, 1, 3, 3, name, "recompute" in kind)
        one, two = (memory(c, layout, machine).activations for c in (config, stacked))
        assert two - one == pytest.approx(kept, rel=0.01), kind
        one_work, two_work = (work(c, layout, machine) for c in (config, stacked))
        more = two_work.all_reduces - one_work.all_reduces
        assert more == (sums if n > 1 else 0), kind
        wire = two_work.wire_bytes - one_work.wire_bytes
        assert wire == (reduced * 2 * (n - 1) / n if n > 1 else 0.0), kind


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize(("tp", "dp", "micro"), [(1, 1, 8), (4, 1, 8), (8, 2, 2), (2, 4, 1)])
def test_operations_are_step_1s_formula(tp: int, dp: int, micro: int, recompute: bool) -> None:
    even = dataclasses.replace(BIG, vocab_size=51200)
    layout = Layout(tp, dp, micro, 8, recompute=recompute)
    whole = training_flops(even, 8 * even.seq_length, recompute=recompute)
    assert work(even, layout, V100).flops == pytest.approx(whole / (tp * dp), rel=1e-12)


def test_bytes_a_parameter() -> None:
    """fp16: 2 + 2 and masters, their gradients and two moments; else 4 + 4 + 8."""
    for precision, each in (("fp16", (2, 2, 16)), ("fp32", (4, 4, 8))):
        held = memory(SMALL, Layout(2, 1, 1, 1, precision), V100)
        count = parameters_per_gpu(SMALL, 2)
        got = (held.parameters, held.gradients, held.optimizer)
        assert got == tuple(count * size for size in each)


def test_the_peak_counts_gradients_that_stay() -> None:
    once = memory(SMALL, Layout(1, 1, 8, 8, recompute=False), V100)
    twice = memory(SMALL, Layout(1, 1, 8, 16, recompute=False), V100)
    spread = memory(SMALL, Layout(1, 2, 8, 16, recompute=False), V100)
    assert once.activations > once.gradients
    assert twice.peak == spread.peak == once.peak + once.gradients
    passing = max(once.logits, once.block)
    assert once.peak == (
        once.parameters + once.optimizer + once.activations + once.loss + passing + once.outside
    )


def test_a_chunk_of_logits_and_a_block_run_again_are_never_there_together() -> None:
    held = memory(SMALL, Layout(1, 2, 8, 16, recompute=True), V100)
    always = held.parameters + held.optimizer + held.gradients + held.outside
    assert held.block > held.logits > 0
    assert held.peak == always + held.activations + held.loss + held.block


def test_recompute_and_smaller_micro_batches_save_memory() -> None:
    peaks = [
        memory(BIG, Layout(8, 1, micro, 8, recompute=again), V100).peak
        for micro, again in ((8, False), (4, False), (4, True), (1, True))
    ]
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == 4


def test_fused_attention_writes_no_scores() -> None:
    fused = dataclasses.replace(V100, fused_attention=True)
    layout = Layout(1, 1, 8, 8, recompute=False)
    gap = (
        memory(SMALL, layout, V100).activations - memory(SMALL, layout, fused).activations
    ) / SMALL.num_layers
    scores = 8 * 16 * 1024 * 1024
    assert gap == pytest.approx(scores * 8, rel=0.01)  # softmax in float32, mask, what is left
    slow, fast = (iteration(SMALL, layout, machine) for machine in (V100, fused))
    assert slow.memory_bound > fast.memory_bound
    assert slow.gemm > fast.gemm


def test_times_from_counted_work() -> None:
    """Each part by hand, on a machine with round figures."""
    rates = dataclasses.replace(
        FITTED, gemm=0.5, half_width=0.0, wait=0.1, start=0.01, memory=1.0, link=0.5
    )
    machine = dataclasses.replace(
        V100, peak={"fp16": 100e12}, memory_bandwidth=1e12, link=100e9, rates=rates
    )
    layout = Layout(4, 1, 8, 8)
    done = work(SMALL, layout, machine)
    got = times(done, layout, machine)
    assert got.gemm == pytest.approx(done.flops / 50e12 + done.gemm_bytes / 1e12)
    assert got.memory_bound == pytest.approx(done.memory_bytes / 1e12)
    assert done.all_reduces == 6 * 40 + 2
    sent = 242 * 8 * 1024 * 1536 * 2 * 1.5  # numbers, bytes, 2 (n - 1) / n
    assert got.tp_comm == pytest.approx(2.42 + sent / 50e9)
    assert got.waiting == pytest.approx(0.1 * (got.gemm + got.memory_bound))
    assert got.dp_comm == 0.0
    assert got.total == pytest.approx(
        got.gemm + got.memory_bound + got.tp_comm + got.waiting + got.optimizer
    )
    narrow = dataclasses.replace(machine, rates=dataclasses.replace(rates, half_width=96.0))
    attention = SMALL.num_layers * 4 * 4 * 1024 * 1536 * 8192 / 4
    extra = times(done, layout, narrow).gemm - got.gemm
    assert extra == pytest.approx(attention / 50e12), "heads of 96 run at half the rate"


def test_what_a_second_micro_batch_adds() -> None:
    """The same tokens in two halves: gradients added up, weights cast to bfloat16 once more."""
    once, twice = (
        work(SMALL, Layout(1, 1, micro, 8, "bf16"), MACHINES["a100-80gb"]) for micro in (8, 4)
    )
    count = parameters_per_gpu(SMALL, 1)
    casts = 2 * 6 * count  # forward and recompute: read 4 bytes, write 2
    assert twice.memory_bytes - once.memory_bytes == pytest.approx(3 * 4 * count + casts)
    assert twice.flops == once.flops
    assert twice.backward == once.backward / 2, "only the last one's backward hides the sums"


def test_alone_nothing_is_sent_or_waited_for() -> None:
    got = iteration(SMALL, Layout(1, 1, 8, 8), V100)
    assert (got.tp_comm, got.dp_comm, got.waiting) == (0.0, 0.0, 0.0)


def slowed(machine: Machine, **change: float) -> Machine:
    return dataclasses.replace(machine, **change)  # type: ignore[arg-type]


def test_backward_hides_the_sum_of_gradients_until_it_is_too_long() -> None:
    layout = Layout(8, 64, 8, 512)
    done = work(BIG, layout, V100)
    assert done.gradient_bytes == pytest.approx(2 * 63 / 64 * 2 * parameters_per_gpu(BIG, 8))
    fast, slow = (
        iteration(BIG, layout, slowed(V100, server_link=rate)).dp_comm for rate in (100e9, 4e9)
    )
    ring = 0.8 * 100e9 / 8  # eight rings leave a server by its cards
    last = 2 * 63 / 64 * 2 * own_words(BIG, 8) * 3072 / ring
    assert fast == pytest.approx(last + FITTED.start)
    one = iteration(BIG, layout, V100)
    hidden = 3 / 4 * (one.gemm + one.memory_bound + one.tp_comm)
    assert slow == pytest.approx(done.gradient_bytes / (ring / 25) - hidden + FITTED.start)


def test_inside_a_server_gradients_take_the_fast_link() -> None:
    near, far = (
        iteration(SMALL, Layout(1, dp, 8, 8 * dp), slowed(V100, server_link=1e8)).dp_comm
        for dp in (16, 32)
    )
    assert near < 0.02
    assert far > 1.0


def test_the_papers_layout_is_first_among_512() -> None:
    start = time.process_time()
    text = shown(search=True)
    assert time.process_time() - start < 10
    assert "tp 8 x dp 64, micro-batch 8, recompute is number 1." in text


def test_a_layout_that_is_not_first_is_told_why() -> None:
    text = shown(search=True, tp=16, dp=32)
    assert "tp 16 x dp 32, micro-batch 16, recompute is number" in text
    assert "Number 1 is 2" in text
    assert "tensor-parallel all-reduces -" in text


def test_the_answer_adds_up() -> None:
    lines = {line.split("  ")[1]: line for line in shown().splitlines() if line.startswith("  ")}
    layout = Layout(8, 64, 8, 512)
    held, taken = memory(BIG, layout, V100), iteration(BIG, layout, V100)
    assert f"{held.peak / 2**30:.2f}" in lines["at the peak"]
    assert f"{taken.total:.3f}" in lines["in all"]
    rate = 512 * 1024 / taken.total
    flops = work(BIG, layout, V100).flops / taken.total
    assert f"{flops / 1e12:.1f} TFLOP/s a GPU ({flops / 130e12:.0%} of its peak)" in shown()
    assert f"{512 * flops / 1e15:.1f} PFLOP/s in all" in shown()
    assert f"{rate:,.0f} tokens/s" in shown()
    assert f"{1e9 / rate / 86400:,.1f} days for 1 billion tokens" in shown(tokens=1e9)


def test_the_fastest_micro_batch_that_fits_is_taken() -> None:
    assert "micro-batch 8, recompute" in shown()
    assert "micro-batch 1, no recompute" in shown(recompute=False)
    assert "micro-batch 4, recompute" in shown(micro_batch=4)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"model": "gpt2-83b"}, ["model 'gpt2-83b'", "gpt2-8.3b"]),
        ({"machine": "v100-32"}, ["machine 'v100-32'", "v100-32gb"]),
        ({"tp": 3}, ["tp 3 does not divide 32 heads", "1, 2, 4, 8, 16, 32"]),
        ({"tp": 0}, ["tp is 0"]),
        ({"dp": -1}, ["dp is -1"]),
        ({"model": "gpt2-2.5b", "tp": 5}, ["tp 5", "servers of 16"]),
        ({"global_batch": 100}, ["global batch 100", "dp 64", "128 would"]),
        ({"micro_batch": 3}, ["micro-batch 3", "576 would"]),
        ({"precision": "bf16"}, ["no 'bf16'", "fp16, fp32"]),
        ({"precision": "int8", "machine": "h100"}, ["no 'int8'"]),
    ],
)
def test_bad_input_is_named(options: dict[str, object], parts: list[str]) -> None:
    with pytest.raises(ValueError, match=r"\w") as error:
        shown(**options)
    assert all(part in str(error.value) for part in parts), error.value


def test_a_model_that_fits_nowhere_is_told_what_it_needs() -> None:
    text = shown(tp=1, dp=1, global_batch=8, search=True)
    assert "It does not fit" in text
    assert "tp 8 (8 GPUs with dp 1)" in text
    assert "a100" not in text, "158 GiB are too many for any GPU here"
    half = shown(tp=4, dp=128)
    assert "at least 41.0 GiB" in half
    assert "a100-80gb (80 GiB, fp16)" in half
    kept = shown(micro_batch=8, recompute=False)
    assert "It would fit with: micro-batch 8 with recompute" in kept
    assert "v100-32gb (32 GiB" not in kept, "that is the machine it doesn't fit"


@pytest.mark.parametrize("machine", MACHINES)
def test_every_machine_answers(machine: str) -> None:
    text = shown(model="gpt2-mini", machine=machine, tp=2, dp=1, global_batch=16)
    assert "tokens/s" in text
    assert not any(word in text for word in ("nan", "inf "))
    assert math.isfinite(MACHINES[machine].rates.gemm)


def test_it_answers_without_loading_torch() -> None:
    command = (
        "import sys; from step05_hybrid_dp.plan import Options, main; main(Options());"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", command], check=True, cwd=ROOT)


def test_the_command_line() -> None:
    command = [sys.executable, "-m", "step05_hybrid_dp.plan", "--model", "gpt2-9b"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: there is no model 'gpt2-9b'; near it: gpt2-")
    assert "Traceback" not in done.stderr
