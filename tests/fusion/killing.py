"""Kills runs whose members are one network at random moments, and compares how they end.

A script of its own, because it forks. Arguments: a folder, how many moments, and a seed.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import torch

from tests.children import was_killed
from tests.training.killing import assert_whole
from tests.training.tiny import bytes_of, tiny, trained


def ends_of(folder: Path) -> dict[str, dict[str, bytes]]:
    """What the run and its members ended in."""
    runs = [folder / "run", *sorted((folder / "members").iterdir())]
    return {run.name: bytes_of(run) for run in runs}


def main(folder: Path, moments: int, seed: int) -> None:
    torch.set_num_threads(1)
    drawn = random.Random(seed)
    config = tiny("elodi", epochs=12, options={"members": 3}, machine={"fuse": "on"})
    # Once in this process, so that no child has to import all of it.
    trained(config, folder / "first" / "run")
    began = time.monotonic()
    was_killed(lambda: trained(config, folder / "whole" / "run"))
    lasts = 0.7 * (time.monotonic() - began)  # a machine may be faster the next time
    expected, ended, kills = ends_of(folder / "whole"), 0, 0
    for index in range(moments):
        out = folder / f"killed{index}" / "run"
        moment = drawn.uniform(0, lasts)
        while was_killed(lambda out=out: trained(config, out, resume=True), after=moment):
            kills += 1
            for run in [out, *(out.parent / "members").glob("*")]:
                assert_whole(run)
            moment = drawn.uniform(0, lasts)
        ended += ends_of(out.parent) == expected
        left = list(out.parent.rglob(".*"))
        assert not left, f"left behind: {left}"
    assert kills, "nothing was killed"
    print(f"{ended} of {moments} equal")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
