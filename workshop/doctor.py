"""`make doctor`: whether this machine is ready for a workshop. Offline, standard library first.

One line a check, a fix for each failure, and at the end a text that can be handed on.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import platform
import shutil
import socket
import sys
import time
from collections.abc import Callable

from .exercises import ROOT

ROOM = 2 * 2**30  # bytes


def examine() -> int:
    """Run all checks and print; 0 if all is well."""
    failed, lines = 0, []
    for name, check in CHECKS.items():
        began = time.perf_counter()
        try:
            good, said, fix = check()
        except Exception as error:
            good, said, fix = (
                False,
                f"{type(error).__name__}: {error}",
                "hand the text to the instructor",
            )
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


Result = tuple[bool, str, str]


def _python() -> Result:
    good = (3, 11) <= sys.version_info[:2] <= (3, 14)
    return (
        good,
        platform.python_version(),
        "install Python 3.11 to 3.14, then: make setup PYTHON=python3.11",
    )


def _venv() -> Result:
    inside = os.path.realpath(sys.prefix) == os.path.realpath(ROOT / ".venv")
    return inside, sys.prefix, "run make setup once; make uses .venv by itself, also inside conda"


def _torch() -> Result:
    fix = "make setup (on Linux without a GPU: make setup TORCH_INDEX=…, see the README)"
    if importlib.util.find_spec("torch") is None:
        return False, "not installed", fix
    import torch

    version = tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2])
    return version >= (2, 13), torch.__version__, fix


def _forkserver() -> Result:
    methods = multiprocessing.get_all_start_methods()
    if "forkserver" in methods:
        return True, "there", ""
    return True, "not on this system: ranks start by spawn, some seconds each", ""


def add_one() -> float:
    """In a rank: 1 + 1, over the wire."""
    import torch
    import torch.distributed as dist

    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()


def _ranks() -> Result:
    from step02_mlp_parallel.launch import run_ranks

    got = run_ranks(add_one, 2, timeout=12.0)
    fix = "see the network line below; usually a VPN, or a firewall on the loopback interface"
    return got == [2.0, 2.0], f"two ranks add 1 + 1 = {got[0]:g}", fix


def _network() -> Result:
    name = socket.gethostname()
    wanted = os.environ.get("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    interfaces = (
        [n for _, n in socket.if_nameindex()] if hasattr(socket, "if_nameindex") else [wanted]
    )
    vpn = [n for n in interfaces if n.startswith(("tun", "tap", "utun", "wg", "ppp"))]
    said = f"host {name}, ranks talk over {wanted}" + (f"; VPN {', '.join(vpn)}" if vpn else "")
    fix = f"GLOO_SOCKET_IFNAME names no interface; choose one of {', '.join(interfaces)}"
    return wanted in interfaces, said, fix


def _disk() -> Result:
    free = shutil.disk_usage(ROOT).free
    writable = os.access(ROOT / "workshop", os.W_OK)
    said = f"{free / 2**30:.0f} GiB free" + ("" if writable else ", the folder can't be written to")
    return free > ROOM and writable, said, "make room (2 GiB), or clone into a folder of your own"


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
