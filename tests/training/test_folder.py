"""What killed processes leave in a run folder, and what is somebody else's."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from flipguard.run_document import RUN
from flipguard.runs.folder import remove_leftovers
from tests.children import script
from tests.training.tiny import tiny, trained

GONE = 2**22 + 1  # no process has this number: it is above what Linux gives


def test_what_killed_processes_leave_is_removed(tmp_path: Path) -> None:
    run = trained(tiny(), tmp_path / "run").folder
    left = [
        run / f".{RUN}.{GONE}",
        run / "checkpoints" / f".last.pt.{GONE}",
        run / "predictions" / f".test.npz.{GONE}.0123abcd.partial",
        run / ".tmpAb3x9Z",  # as safetensors calls what it has not written to its end
    ]
    theirs = [
        run / f".{RUN}.{os.getppid()}",  # somebody is writing it
        run / ".tmp",
        run / ".tmpfile",
        run / ".tmpAb3x9Z.txt",
        run / "tmpAb3x9Z",
        run / "predictions" / ".tmpAb3x9Z",
    ]
    for path in [*left, *theirs]:
        path.write_text("x")
    (run / ".tmpfolder").mkdir()
    (run / ".tmpabcdef").symlink_to(theirs[0])
    remove_leftovers(run)
    assert not [path for path in left if path.exists()]
    assert all(path.exists() for path in [*theirs, run / ".tmpfolder", run / ".tmpabcdef"])


def test_a_folder_without_a_run_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / ".tmpAb3x9Z").write_text("x")
    remove_leftovers(tmp_path)
    assert (tmp_path / ".tmpAb3x9Z").exists()


def test_a_resumed_run_removes_them(tmp_path: Path) -> None:
    config = tiny(epochs=2)
    hurried = dataclasses.replace(config, machine=dataclasses.replace(config.machine, minutes=1e-9))
    assert trained(hurried, tmp_path / "run").status == "stopped"
    (tmp_path / "run" / ".tmp012abc").write_text("x")
    assert trained(config, tmp_path / "run", resume=True).finished
    assert not (tmp_path / "run" / ".tmp012abc").exists()


@pytest.mark.parametrize(
    ("fuse", "stride"),
    [
        ("on", 29),
        pytest.param("on", 1, marks=pytest.mark.slow),
        pytest.param("off", 1, marks=pytest.mark.slow),
    ],
)
def test_a_run_may_die_before_any_of_its_file_operations(
    fuse: str, stride: int, tmp_path: Path
) -> None:
    assert script("tests.training.crashing", tmp_path, fuse, str(stride)) == "0 differ\n"
