"""python -m workshop COMMAND …: the workshop's program. `python -m workshop` lists the commands.

Standard library only until torch is needed, so that it can say kindly that torch isn't there. Each
rank loads this file too: keep it light.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Callable
from pathlib import Path

COMMANDS = {
    "exercise": "STEP [--force]: write workshop/work/…py, a file with a step's exercises",
    "check": "STEP [IDS]: what is right in it, and what went wrong with the rest",
    "watch": "STEP: check again whenever the file is saved",
    "hint": "ID: a question; asked again, where to read; again, the shape of the code",
    "solution": "ID: the real code, after a pass or when asked for twice",
    "play": "ID: two ranks side by side, with what they hold and send",
    "test": "STEP [pytest's options]: the step's own tests, with what you have finished in place",
    "train": "[--steps --tp --dp --corpus]: train with your functions, beside the reference",
    "certificate": "which of the steps' proofs your code passed",
    "progress": "a board of all steps",
    "doctor": "whether this machine is ready",
    "log": "[on | off]: a log of your own, for `room`",
    "room": "FILES: what the learners of these logs are stuck on",
    "offline": "FOLDER [--platform P --python V]: all that set-up needs, for a stick",
}


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options, and what is for pytest. Exits, as argparse does, if they are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m workshop", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="\n".join(f"  {name:12}{text}" for name, text in COMMANDS.items()),
        allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("command", help="one of the above")
    parser.add_argument("what", nargs="*", help="a step (2), an exercise (2.4), files")
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--dp", type=int, default=1)
    parser.add_argument("--corpus", default="")
    parser.add_argument("--run", type=Path)
    parser.add_argument("--platform", default="")
    parser.add_argument("--python", default="")
    options, others = parser.parse_known_args(arguments)
    if options.command not in COMMANDS:
        near = difflib.get_close_matches(options.command, COMMANDS, cutoff=0.4) or COMMANDS
        parser.error(f"there is no command {options.command!r}; near it: {', '.join(near)}")
    if others and options.command != "test":  # those are for pytest
        parser.error(f"{options.command} doesn't know {' '.join(others)}")
    return options, others


def main(arguments: list[str]) -> int:
    options, others = parse(arguments)
    try:
        return RUN[options.command](options, others)
    except ModuleNotFoundError as error:
        if error.name in ("torch", "numpy", "einops", "pytest"):
            print(f"{error.name} is not installed here: run `make setup`, or use .venv/bin/python")
            return 2
        raise
    except (ValueError, OSError) as error:
        print(f"{error}" if isinstance(error, ValueError) else _about_file(error))
        return 2
    except KeyboardInterrupt:
        return 130


def _exercise(options: argparse.Namespace, _: list[str]) -> int:
    from .make_exercises import make

    print(make(_step(options.what), force=options.force or os.environ.get("FORCE") == "1"))
    return 0


def _check(options: argparse.Namespace, _: list[str]) -> int:
    from .board import check_step
    from .warm import ranks_from_here

    ranks_from_here()
    return check_step(_step(options.what), options.what[1:])


def _watch(options: argparse.Namespace, _: list[str]) -> int:
    from .board import watch
    from .warm import ranks_from_here

    ranks_from_here()
    return watch(_step(options.what))


def _hint(options: argparse.Namespace, _: list[str]) -> int:
    from .hints import hint

    print(hint(_id(options.what)))
    return 0


def _solution(options: argparse.Namespace, _: list[str]) -> int:
    from .hints import solution

    print(solution(_id(options.what)))
    return 0


def _play(options: argparse.Namespace, _: list[str]) -> int:
    from .play import play

    print(play(_id(options.what)))
    return 0


def _test(options: argparse.Namespace, others: list[str]) -> int:
    from .own_tests import run_tests

    return run_tests(_step(options.what), [*options.what[1:], *others])


def _train(options: argparse.Namespace, _: list[str]) -> int:
    from .train_mine import Wanted, train_mine

    corpus, run = options.corpus, options.run
    return train_mine(Wanted(options.steps, options.tp, options.dp, corpus, run=run))


def _certificate(options: argparse.Namespace, _: list[str]) -> int:
    from .certificate import certificate

    return certificate()


def _progress(options: argparse.Namespace, _: list[str]) -> int:
    from .progress import board

    print(board())
    return 0


def _doctor(options: argparse.Namespace, _: list[str]) -> int:
    from .doctor import examine

    return examine()


def _log(options: argparse.Namespace, _: list[str]) -> int:
    from .room import switch

    print(switch(options.what))
    return 0


def _room(options: argparse.Namespace, _: list[str]) -> int:
    from .room import room

    print(room(options.what))
    return 0


def _offline(options: argparse.Namespace, _: list[str]) -> int:
    from .offline import make_stick

    if len(options.what) != 1 or not options.what[0]:
        raise ValueError("say which folder: make setup-offline TO=/media/stick")
    print(make_stick(Path(options.what[0]), options.platform, options.python))
    return 0


RUN: dict[str, Callable[[argparse.Namespace, list[str]], int]] = {
    "exercise": _exercise, "check": _check, "watch": _watch, "hint": _hint, "solution": _solution,
    "play": _play, "test": _test, "train": _train, "certificate": _certificate,
    "progress": _progress, "doctor": _doctor, "log": _log, "room": _room, "offline": _offline,
}  # fmt: skip


def _step(what: list[str]) -> int:
    text = what[0] if what else ""
    number = text.removeprefix("step")
    if not number.isdecimal():
        from .exercises import all_steps

        raise ValueError(f"{text!r} is not a step; say one of {', '.join(map(str, all_steps()))}")
    return int(number)


def _id(what: list[str]) -> str:
    if not what:
        raise ValueError("say which exercise, such as 2.1 (make hint EX=2.1)")
    return what[0]


def _about_file(error: OSError) -> str:
    reason = (
        "no permission to write there" if isinstance(error, PermissionError) else error.strerror
    )
    return f"{error.filename}: {reason}. Is the folder yours, and is there room on the disk?"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
