"""python -m workshop COMMAND …: the workshop's program. `python -m workshop` lists the commands.

Standard library only until torch is needed, so that it can say kindly that torch isn't there. Each
rank loads this file too: keep it light.
"""

from __future__ import annotations

import argparse
import os
import sys

COMMANDS = {
    "exercise": "STEP [--force]: write workshop/work/…py, a file with a step's exercises",
    "check": "STEP [IDS]: what is right in it, and what went wrong with the rest",
    "watch": "STEP: check again whenever the file is saved",
    "hint": "ID: a question; asked again, where to read; again, the shape of the code",
    "solution": "ID: the real code, after a pass or when asked for twice",
    "play": "ID: two ranks side by side, with what they hold and send",
    "progress": "a board of all steps",
    "doctor": "whether this machine is ready",
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m workshop", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="\n".join(f"  {name:10}{text}" for name, text in COMMANDS.items()),
    )  # fmt: skip
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("what", nargs="*", help="a step (2) or an exercise (2.4)")
    parser.add_argument("--force", action="store_true")
    options = parser.parse_args(arguments)
    try:
        return run(options.command, options.what, options.force)
    except ModuleNotFoundError as error:
        if error.name in ("torch", "numpy", "einops"):
            print(f"{error.name} is not installed here: run `make setup`, or use .venv/bin/python")
            return 2
        raise
    except (ValueError, OSError) as error:
        print(f"{error}" if isinstance(error, ValueError) else _about_file(error))
        return 2
    except KeyboardInterrupt:
        return 130


def run(command: str, what: list[str], force: bool) -> int:
    if command == "exercise":
        from .make_exercises import make

        print(make(_step(what), force=force or os.environ.get("FORCE") == "1"))
        return 0
    if command == "check":
        from .board import check_step

        return check_step(_step(what), what[1:])
    if command == "watch":
        from .board import watch

        return watch(_step(what))
    if command in ("hint", "solution"):
        from . import hints

        print(getattr(hints, command)(_id(what)))
        return 0
    if command == "play":
        from .play import play

        print(play(_id(what)))
        return 0
    if command == "progress":
        from .progress import board

        print(board())
        return 0
    from .doctor import examine

    return examine()


def _step(what: list[str]) -> int:
    text = what[0] if what else ""
    if not text.lstrip("0").isdigit():
        from .exercises import all_steps

        raise ValueError(f"{text!r} is not a step; say one of {', '.join(map(str, all_steps()))}")
    return int(text)


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
