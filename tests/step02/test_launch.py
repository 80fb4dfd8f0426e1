from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from step02_mlp_parallel import RankError, join_torchrun, run_ranks

from . import ranks

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("n", [1, 2, 8])
def test_values_come_back_in_rank_order(n: int) -> None:
    value = {"x": torch.arange(3), "y": (1, "two")}
    got = run_ranks(ranks.who, n, value)
    assert [(r, w) for r, w, _ in got] == [(i, n) for i in range(n)]
    assert all(torch.equal(v["x"], value["x"]) and v["y"] == (1, "two") for *_, v in got)
    assert run_ranks(ranks.summed, n) == [n * (n + 1) / 2] * n


def test_ranks_are_processes_with_their_own_thread_seed_and_environment() -> None:
    os.environ["SET_AFTER_THE_SERVER"] = "yes"
    try:
        got = run_ranks(
            ranks.surroundings, 3, ["SET_AFTER_THE_SERVER", "EXTRA"], env={"EXTRA": "7"}
        )
    finally:
        del os.environ["SET_AFTER_THE_SERVER"]
    assert len({row["pid"] for row in got} | {os.getpid()}) == 4
    assert [row["threads"] for row in got] == [1, 1, 1]
    assert len({row["random"] for row in got}) == 3, "equal global seeds would hide faults"
    assert {row["SET_AFTER_THE_SERVER"] for row in got} == {"yes"}
    assert {row["EXTRA"] for row in got} == {"7"}
    assert "EXTRA" not in os.environ


def test_nothing_is_shared_between_ranks() -> None:
    """A tensor that went through torch's own pickling would be one memory for all."""
    x = torch.zeros(3)
    got = run_ranks(ranks.add_in_place, 3, x)
    assert [row[0].item() for row in got] == [1.0, 2.0, 3.0]
    assert not x.any()


def test_a_rank_that_raises_is_named_with_its_traceback() -> None:
    run_ranks(ranks.summed, 2)  # warm
    start = time.monotonic()
    with pytest.raises(RankError, match=r"rank 2 of 4 raised") as caught:
        run_ranks(ranks.raise_on, 4, 2, "a message of its own")
    assert time.monotonic() - start < 5
    assert caught.value.rank == 2
    assert isinstance(caught.value.__cause__, KeyError)
    for part in ("Traceback", "raise_on", "ranks.py", "a message of its own"):
        assert part in str(caught.value)


@pytest.mark.parametrize("how", ["exit", "interrupt"])
def test_exit_inside_a_rank_is_an_error_too(how: str) -> None:
    with pytest.raises(RankError, match="rank 0 of 2 raised") as caught:
        run_ranks(ranks.leave, 2, how)
    assert ("SystemExit: 3" if how == "exit" else "KeyboardInterrupt") in str(caught.value)


def test_a_rank_that_hangs_is_named_with_where_it_stands() -> None:
    with pytest.raises(RankError) as caught:
        run_ranks(ranks.hang_on, 3, 1, timeout=1.0)
    message = str(caught.value)
    assert "after 1 s rank 1 of 3 had not come back" in message
    if hasattr(signal, "SIGUSR1"):
        assert "hang_on" in message


@pytest.mark.parametrize(("code", "how"), [(0, "exit code 0"), (3, "exit code 3"), (-9, "SIGKILL")])
def test_a_rank_that_dies_without_a_word_is_named(code: int, how: str) -> None:
    with pytest.raises(RankError, match=rf"rank 1 of 2 ended without an answer \({how}\)"):
        run_ranks(ranks.die_on, 2, 1, code)


@pytest.mark.parametrize("n", [0, -1, 2.0, True, "2"])
def test_a_world_size_that_is_none(n: object) -> None:
    with pytest.raises(ValueError, match=r"world_size is .*at least 1"):
        run_ranks(ranks.summed, n)  # type: ignore[arg-type]


def test_what_cannot_be_sent_is_named() -> None:
    with pytest.raises(ValueError, match=r"can't be sent .* top level of a module"):
        run_ranks(lambda: 1, 2)
    with pytest.raises(RankError, match="rank 0 of 1 raised"):
        run_ranks(ranks.unpicklable, 1)
    with pytest.raises(RankError, match="rank 0 of 1 returned what can't be unpickled"):
        run_ranks(ranks.half_picklable, 1)


def test_no_rank_outlives_a_killed_caller(tmp_path: Path) -> None:
    code = (
        "import os; from step02_mlp_parallel import run_ranks; from tests.step02 import ranks;"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()));"
        "run_ranks(ranks.hang_on, 2, 1)"
    )
    caller = subprocess.Popen(
        [sys.executable, "-"],  # from standard input: __main__ has no file
        stdin=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "MARK_OF_THIS_TEST": str(tmp_path)},
    )

    assert caller.stdin is not None
    caller.stdin.write(code.encode())
    caller.stdin.close()

    def alive() -> list[str]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environment = (folder / "environ").read_bytes()
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if str(tmp_path).encode() in environment and state != "Z":
                found.append(folder.name)
        return found

    if not Path("/proc/self/environ").exists():
        caller.kill()
        pytest.skip("needs /proc to look for processes")
    deadline = time.monotonic() + 60
    while len(alive()) < 5:  # the caller, the fork server, its tracker, two ranks
        assert time.monotonic() < deadline, "the ranks did not start"
        time.sleep(0.05)
    caller.kill()
    caller.wait()
    deadline = time.monotonic() + 10
    while left := alive():
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.05)


def test_pitfall_72_and_73_many_groups_at_once_and_again() -> None:
    """No port to collide on, and a fresh file for every group."""
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(run_ranks, ranks.summed, 2) for _ in range(8)]
        assert [call.result() for call in calls] == [[3.0, 3.0]] * 8


def test_the_same_functions_run_under_torchrun() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         "-m", "step02_mlp_parallel.demo"],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "rank 1 of 2" in result.stdout
    assert "equal to the unpartitioned MLP" in result.stdout


def test_join_torchrun_outside_of_it_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(ValueError, match="start with torchrun --nproc-per-node"):
        join_torchrun()
