"""`make doctor`: whether this machine is ready for a workshop. Offline, in less than 20 seconds.

One line a check, a fix for each failure, and at the end a text that can be handed on. Standard
library only: what needs torch runs in a process of its own that is given up on in time.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import multiprocessing
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from .exercises import ROOT

ROOM = 2 * 2**30  # bytes
PATIENCE = 14.0  # seconds for the ranks
SHORT = 2.0  # for names that have to be looked up
VPNS = ("tun", "tap", "utun", "wg", "ppp", "tailscale", "zt")
Result = tuple[bool, str, str]


def examine() -> int:
    """Run all checks and print; 0 if all is well."""
    failed, lines = 0, []
    for name, check in CHECKS.items():
        began = time.perf_counter()
        try:
            good, said, fix = check()
        except Exception as error:
            good, said = False, f"{type(error).__name__}: {error}"
            fix = "hand the text below to the instructor"
        said = " ".join(said.split())
        line = f"{'✔' if good else '✘'} {name:14} {said}"
        print(line, flush=True)
        if not good:
            failed += 1
            print(f"    → {fix}", flush=True)
        lines.append(f"{line}  [{time.perf_counter() - began:.1f} s]")
    if failed:
        print("\nFor the instructor:\n" + "\n".join([platform.platform(), *lines]))
    else:
        print("\nAll is well: make exercise-step2")
    return 1 if failed else 0


def _python() -> Result:
    good = (3, 11) <= sys.version_info[:2] <= (3, 14)
    fix = "install Python 3.11 to 3.14, then: make setup PYTHON=python3.11"
    return good, platform.python_version(), fix


def _venv() -> Result:
    inside = os.path.realpath(sys.prefix) == os.path.realpath(ROOT / ".venv")
    conda = os.environ.get("CONDA_PREFIX")
    said = f"{sys.prefix}" + (f", beside an active conda ({conda})" if conda and inside else "")
    return inside, said, "run make setup once; make uses .venv by itself, also inside conda"


def _torch() -> Result:
    fix = "make setup (on Linux without a GPU: make setup TORCH_INDEX=…, see the README)"
    if importlib.util.find_spec("torch") is None:
        return False, "not installed", fix
    version = importlib.metadata.version("torch")
    numbers = tuple(int(n) for n in version.split("+")[0].split(".")[:2])
    return numbers >= (2, 13), version, fix


def _forkserver() -> Result:
    """Started for real: a process without torch, there and back."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return True, "not on this system: ranks start by spawn, some seconds each", ""
    code = (
        "import multiprocessing as m; p = m.get_context('forkserver').Process(target=print);"
        "p.start(); p.join(); raise SystemExit(p.exitcode)"
    )
    fix = f"is {tempfile.gettempdir()} full or not writable? TMPDIR=/another/folder make doctor"
    status, said = _apart(["-c", f"if __name__ == '__main__':\n    {code}"], 8.0)
    return status == 0, "works" if status == 0 else said, fix


def add_one() -> float:
    """In a rank: 1 + 1, over the wire."""
    import torch
    import torch.distributed as dist

    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()


def two_ranks(timeout: float) -> None:
    """In a process of its own: print what two ranks make of 1 + 1."""
    from step02_mlp_parallel.launch import run_ranks

    print(f"{run_ranks(add_one, 2, timeout=timeout)[0]:g}")


def _ranks() -> Result:
    began = time.perf_counter()
    code = f"from workshop.doctor import two_ranks; two_ranks({PATIENCE - 2})"
    status, said = _apart(["-c", code], PATIENCE)
    seconds = time.perf_counter() - began
    fix = (
        "see the network line below; usually a VPN, or a firewall on the loopback interface. On a "
        "busy machine, or right after make setup, try once more: torch may have loaded slowly"
    )
    good = status == 0 and said == "2"
    return good, f"two ranks add 1 + 1 = {said} ({seconds:.1f} s)" if good else said, fix


def _apart(arguments: list[str], patience: float) -> tuple[int, str]:
    """Exit status and last line of a Python process, given up on after `patience` seconds."""
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        process.kill()  # its ranks watch it, and end too
        process.wait()
        if process.stdout is not None:
            process.stdout.close()  # not read to its end: a rank may still hold it open
        return -1, f"did not come back in {patience:g} s"
    lines = output.strip().splitlines()
    return process.returncode, lines[-1] if lines else ""


def _network() -> Result:
    """Ranks talk over the loopback interface; torchrun (make train) looks up the host name too."""
    wanted = os.environ.get("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    there = [wanted]
    if hasattr(socket, "if_nameindex") and sys.platform != "win32":
        there = [name for _, name in socket.if_nameindex()]
    if wanted not in there:
        fix = f"GLOO_SOCKET_IFNAME names no interface; choose one of {', '.join(there)}"
        return False, f"there is no interface {wanted}", fix
    vpn = [name for name in there if name.startswith(VPNS)]
    said = f"ranks talk over {wanted}" + (f"; VPN {', '.join(vpn)}" if vpn else "")
    if not _loopback():
        fix = "allow Python connections to 127.0.0.1 in the firewall" + (
            ", or switch the VPN off" if vpn else ""
        )
        return False, f"{said}; a connection to this machine itself fails", fix
    host = socket.gethostname()
    if not _within(SHORT, lambda: socket.gethostbyname(host)):
        fix = f"add the line `127.0.0.1 {host}` to /etc/hosts, or switch the VPN off; make train"
        return False, f"{said}; the host name {host} leads nowhere", f"{fix} needs it"
    return True, f"host {host}, {said}", ""


def _loopback() -> bool:
    """Whether this machine reaches itself over TCP."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = server.getsockname()
            with socket.create_connection(address, timeout=SHORT):
                return True
    except OSError:
        return False


def _within(seconds: float, ask: Callable[[], object]) -> bool:
    """Whether `ask` comes back without an OSError in that time."""
    done: list[bool] = []

    def asked() -> None:
        try:
            ask()
        except OSError:
            return
        done.append(True)

    thread = threading.Thread(target=asked, daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(done)


def _disk() -> Result:
    free = shutil.disk_usage(ROOT).free
    said, fix = f"{free / 2**30:.0f} GiB free", "free some: 2 GiB are needed"
    try:
        (ROOT / "workshop" / "work").mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=ROOT / "workshop" / "work"):
            pass
    except OSError as error:
        return (
            False,
            f"{said}, {Path('workshop/work')}: {error.strerror}",
            ("clone into a folder of your own"),
        )
    return free > ROOM, said, fix


def _cores() -> Result:
    count = os.cpu_count() or 1
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    said = f"{count}" + (f", busy with {busy:.0f} other jobs" if busy > 2 * count else "")
    return True, said, ""


CHECKS: dict[str, Callable[[], Result]] = {
    "Python": _python,
    ".venv": _venv,
    "torch": _torch,
    "start method": _forkserver,
    "gloo": _ranks,
    "network": _network,
    "disk": _disk,
    "cores": _cores,
}
