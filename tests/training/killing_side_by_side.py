"""Ends runs whose members train side by side at random moments, and compares how they end.

A script of its own, since its processes are killed. Arguments: a folder, how many moments, and a
seed. The run that is killed is a plain script, without a guard around anything.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.children import ROOT, finding_tests

RUN = """
import sys
from pathlib import Path
from flipguard.training import pool_strategy
from tests.training.tiny import tiny, trained

pool_strategy.WORTH, pool_strategy.cores = -1.0, lambda: 2
config = tiny("ensemble", epochs=40, options={"members": 3}, machine={"fuse": "auto"})
trained(config, Path(sys.argv[1]), resume=True)
"""


def begun(out: Path) -> subprocess.Popen[bytes]:
    """The run, in a process."""
    script = out.parents[1] / "plain.py"
    script.write_text(RUN)
    return subprocess.Popen(
        [sys.executable, str(script), str(out)],
        cwd=ROOT,
        env=finding_tests(),
        stderr=subprocess.DEVNULL,
    )


def children_of(process: int) -> list[int]:
    """The processes that a process has started, wherever its threads started them."""
    found: list[int] = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        found += [int(child) for child in path.read_text().split()]
    return found


def is_alive(process: int) -> bool:
    """Whether it runs: a dead one that nobody has asked about yet does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def main(folder: Path, moments: int, seed: int) -> None:
    from tests.training.tiny import bytes_of, tiny, trained

    drawn = random.Random(seed)
    config = tiny("ensemble", epochs=40, options={"members": 3}, machine={"fuse": "off"})
    trained(config, folder / "alone" / "run")
    expected = {run.name: bytes_of(run) for run in (folder / "alone" / "members").iterdir()}
    lasts = 0.0
    ended = with_children = 0
    for index in range(moments):
        out = folder / f"killed{index}" / "run"
        out.parent.mkdir()
        sent = (signal.SIGKILL, signal.SIGINT)[index % 2]
        run = begun(out)
        if index == 0:  # at least once where there are others to end
            while len(children_of(run.pid)) < 2 and run.poll() is None:
                time.sleep(0.01)
            time.sleep(drawn.uniform(0, 1))
        else:
            time.sleep(drawn.uniform(0.3, 1) * lasts)
        children = children_of(run.pid)
        with_children += len(children) > 0
        run.send_signal(sent)
        run.wait()
        until = time.monotonic() + 20
        while any(map(is_alive, children)) and time.monotonic() < until:
            time.sleep(0.01)
        assert not any(map(is_alive, children)), f"still there after {sent.name}: {children}"
        began = time.monotonic()
        assert begun(out).wait() == 0
        lasts = max(lasts, time.monotonic() - began)
        ended += expected == {run.name: bytes_of(run) for run in (out.parent / "members").iterdir()}
        left = [path for path in out.parent.rglob(".*") if path.is_file()]
        assert not left, f"left behind: {left}"
    assert with_children, "nothing was ended that had processes"
    print(f"{ended} of {moments} equal")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
