"""Dies before each of its file operations in turn, goes on, and compares with a run that did not.

Where random moments find a gap only by luck, this visits all of them. A script of its own, because
it forks. Arguments: a folder, the value of `machine.fuse`, and how many operations to go on by.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.children import forked
from tests.fusion.killing import ends_of
from tests.training.tiny import tiny, trained

CHANGES = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree"}
DIED = 9


def main(folder: Path, fuse: str, stride: int) -> None:
    torch.set_num_threads(1)
    config = tiny("elodi", epochs=2, options={"members": 3}, machine={"fuse": fuse})
    # Once in this process, so that no child has to import all of it.
    trained(config, folder / "whole" / "run")
    expected, equal, visited = ends_of(folder / "whole"), 0, 0
    at = 0
    while True:
        out = folder / f"died{at}" / "run"

        def work(out: Path = out) -> None:
            trained(config, out, resume=True)

        if _child(work, out.parent, at) == 0:
            break
        # And again somewhere on the way, if it goes so far.
        _child(work, out.parent, at * 7 % 13)
        assert _child(work, out.parent, None) == 0, f"could not go on from {at}"
        left = list(out.parent.rglob(".*"))
        assert not left, f"left behind: {left}"
        equal += ends_of(out.parent) == expected
        visited += 1
        at += stride
    assert visited > 50 / stride, f"only {visited} operations"
    print(f"{visited - equal} differ")


def _child(work: Callable[[], None], folder: Path, at: int | None) -> int:
    """How a process ends that does the work, but dies before an operation in the folder."""

    def dying() -> None:
        if at is not None:
            sys.addaudithook(_dying(str(folder), at))
        work()

    child = forked(dying)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, DIED), "the run failed"
    return code


def _dying(folder: str, at: int) -> Callable[[str, tuple[Any, ...]], None]:
    left = at

    def hook(event: str, given: tuple[Any, ...]) -> None:
        nonlocal left
        if event not in CHANGES or not str(given[0]).startswith(folder):
            return
        if event == "open" and not given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        if left == 0:
            os._exit(DIED)  # as abrupt as a signal: nothing is written or removed any more
        left -= 1

    return hook


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
