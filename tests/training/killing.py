"""Trains, is killed at random moments, goes on, and prints what differs from an unkilled run.

A script of its own: it forks, which is safe only where no other thread runs. Arguments: a folder,
how many moments, a seed, and the configuration's method and epochs.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from tests.training.tiny import bytes_of, make_old, needs_old, tiny, trained, with_old


def main(folder: Path, moments: int, seed: int, method: str, epochs: int) -> None:
    """Kills one run after another."""
    torch.set_num_threads(1)
    drawn = random.Random(seed)
    old = make_old(folder / "old")
    config = tiny(method, epochs=epochs)
    if needs_old(method):
        config = with_old(config, old)
    began = time.monotonic()
    _child(lambda: trained(config, folder / "whole" / "run"), kill_after=None)
    lasts = time.monotonic() - began
    expected, ended, kills = bytes_of(folder / "whole" / "run"), 0, 0
    for index in range(moments):
        out = folder / f"killed{index}" / "run"
        moment = drawn.uniform(0, lasts)
        while _child(lambda out=out: trained(config, out, resume=True), kill_after=moment):
            kills += 1
            _whole(out)
            moment = drawn.uniform(0, lasts)
        _whole(out)
        ended += bytes_of(out) == expected
        left = [path for path in out.rglob(".*") if path.is_file()]
        assert not left, f"left behind: {left}"
    assert kills >= moments / 2, f"only {kills} kills"
    print(f"{ended} of {moments} equal")


def _child(work, *, kill_after: float | None) -> bool:
    """Whether the child that does the work was killed."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as problem:
            print(f"{type(problem).__name__}: {problem}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0, "the run failed"
    return False


def _whole(out: Path) -> None:
    """Every file that has its name is whole."""
    from flipguard.training import Run
    from flipguard.training.folder import CHECKPOINT, RUN

    if (out / RUN).exists():
        Run.read(out)
    if (out / CHECKPOINT).exists():
        torch.load(out / CHECKPOINT, weights_only=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
