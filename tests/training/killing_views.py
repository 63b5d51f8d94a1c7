"""Stores views, is killed at chosen moments, goes on, and prints what differs from the unkilled.

A script of its own: it forks, which is safe only where no other thread runs. Argument: a folder.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

from flipguard.training import view_table
from flipguard.training.view_table import DONE, TABLE, ViewStore
from tests.children import was_killed
from tests.training.tiny import bytes_of, tiny, trained

CONFIG = tiny("elodi", options={"views": 2}, recipe={"augment": "shift-scale-noise"})


def main(folder: Path) -> None:
    """Kills one run after another, each at other moments."""
    torch.set_num_threads(1)
    view_table.CHUNK, view_table.BETWEEN = 64, 0.0
    whole = trained(CONFIG, folder / "whole" / "run").folder
    expected = (bytes_of(whole), table_in(folder / "whole"))
    # In the middle of a chunk, before and after it is on disk, and when it is just recorded.
    moments = [("write", True), ("write", False), ("record", True), ("record", False)]
    for number, (method, before) in enumerate(moments):
        out = folder / f"killed{number}" / "run"
        for calls in (1, 3):
            killed = was_killed(lambda o=out, m=method, b=before, c=calls: dying(o, m, b, c))
            assert killed, f"{method} {before} {calls}"
        assert not was_killed(lambda out=out: trained(CONFIG, out, resume=True))
        same = (bytes_of(out), table_in(out.parent)) == expected
        print(f"{method} {'before' if before else 'after'}: {'equal' if same else 'different'}")
        left = [path for path in (out.parent / "views").rglob(".*") if path.is_file()]
        assert not left, f"left behind: {left}"


def dying(out: Path, method: str, before: bool, calls: int) -> None:
    """Trains until some call of a store's method, and is killed before or after it."""
    real, counted = getattr(ViewStore, method), [0]

    def patched(self: ViewStore, *given: object) -> None:
        counted[0] += 1
        if counted[0] == calls and before:
            if method == "write":
                with (self.folder / TABLE).open("r+b") as file:
                    file.seek(given[0].row * self.shape.row)  # type: ignore[attr-defined]
                    file.write(b"half of it")
            else:
                (self.folder / f".{DONE}.{os.getpid()}").write_text('{"half":')
            os.kill(os.getpid(), signal.SIGKILL)
        real(self, *given)
        if counted[0] == calls:
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(ViewStore, method, patched)
    trained(CONFIG, out, resume=True)


def table_in(folder: Path) -> bytes:
    """The one table below a folder."""
    (path,) = (folder / "views").glob(f"*/{TABLE}")
    return path.read_bytes()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
