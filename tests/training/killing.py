"""Trains, is killed at random moments, goes on, and prints what differs from an unkilled run.

A script of its own: it forks, which is safe only where no other thread runs. Arguments: a folder,
how many moments, a seed, and the configuration's method and epochs.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import torch

from tests.children import was_killed
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
    was_killed(lambda: trained(config, folder / "whole" / "run"))
    lasts = time.monotonic() - began
    expected, ended, kills = bytes_of(folder / "whole" / "run"), 0, 0
    for index in range(moments):
        out = folder / f"killed{index}" / "run"
        moment = drawn.uniform(0, lasts)
        while was_killed(lambda out=out: trained(config, out, resume=True), after=moment):
            kills += 1
            assert_whole(out)
            moment = drawn.uniform(0, lasts)
        assert_whole(out)
        ended += bytes_of(out) == expected
        left = [path for path in out.rglob(".*") if path.is_file()]
        assert not left, f"left behind: {left}"
    assert kills >= moments / 2, f"only {kills} kills"
    print(f"{ended} of {moments} equal")


def assert_whole(out: Path) -> None:
    """Every file that has its name is whole."""
    from flipguard.run_document import RUN
    from flipguard.runs.folder import CHECKPOINT
    from flipguard.training import Run

    if (out / RUN).exists():
        Run.read(out)
    if (out / CHECKPOINT).exists():
        torch.load(out / CHECKPOINT, weights_only=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
