"""Run a command and write which functions of flipguard it calls, each with its first caller.

`python -m tests.tracing OUT ARGUMENTS` runs `flipguard ARGUMENTS` in this process and writes JSON:
a table from each function to the function that called it first, in the order of these calls.
"""

from __future__ import annotations

import inspect
import json
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType

import flipguard
from flipguard.cli import main

SOURCE = str(Path(flipguard.__file__).parent) + "/"

names: dict[CodeType, str] = {}
callers: dict[str, str] = {}


def name_of(code: CodeType) -> str:
    """The module and name of a function of flipguard; empty for all other code.

    Bodies of classes and modules, lambdas and comprehensions are no functions to open.
    """
    name = names.get(code)
    if name is None:
        name = ""
        path, qualified = code.co_filename, code.co_qualname.replace(".<locals>", "")
        is_function = code.co_flags & inspect.CO_OPTIMIZED and "<" not in qualified
        if path.startswith(SOURCE) and is_function:
            module = path.removeprefix(SOURCE).removesuffix(".py").removesuffix("/__init__")
            name = f"{module.replace('/', '.')}.{qualified}"
        names[code] = name
    return name


def note(frame: FrameType, event: str, _: object) -> None:
    if event != "call" or not (name := name_of(frame.f_code)) or name in callers:
        return
    caller = frame.f_back
    while caller is not None and not name_of(caller.f_code):
        caller = caller.f_back
    callers[name] = "" if caller is None else name_of(caller.f_code)


if __name__ == "__main__":
    out, *arguments = sys.argv[1:]
    sys.argv = ["flipguard", *arguments]
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        main()
    finally:
        sys.setprofile(None)
        Path(out).write_text(json.dumps(callers), encoding="utf-8")
