"""Ctrl-C as a user gives it: a real signal to a real process, which finishes its epoch."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flipguard.runs.folder import CHECKPOINT, Run, read_lines
from flipguard.runs.history import TIMING
from flipguard.training import interrupting, train
from tests.children import finding_tests
from tests.training.tiny import bytes_of, tiny, trained

SAID = "interrupted: finishing this epoch first; press Ctrl-C again to stop at once\n"
TINY = ("--data", "mnist1d:train=200,test=100", "--model", "mlp:hidden=16")
# Epochs slow enough for a signal to come between the first and the last; those of members in
# processes of their own are not slowed, but there are more of them.
SLOW = """
ENDLESS = 1000000  # the first epoch that does not end
import sys, time
from flipguard.training import batches, pool_strategy
epoch_batches = batches.BatchSource.epoch_batches
def slowly(self, pieces, *, epoch):
    # In short naps: a signal that comes just before a long one would be noticed after it.
    for _ in range(1 if epoch < ENDLESS else 50000):
        time.sleep(0.02)
    return epoch_batches(self, pieces, epoch=epoch)
batches.BatchSource.epoch_batches = slowly
pool_strategy.WORTH, pool_strategy.TOLD_EVERY, pool_strategy.cores = -1.0, 0.0, lambda: 2
from flipguard.cli import main
main()
"""
QUICK = SLOW.replace("0.02", "0")
ENDLESS = SLOW.replace("1000000", "2")
STUDENT = ("--set", "recipe.epochs=60", "--set", "recipe.batch_size=50")
MEMBERS = ("--method", "ensemble", "--set", "options.members=2", *STUDENT)
WAYS = {
    "student": STUDENT,
    "side by side": (*MEMBERS, "--fuse", "auto", "--set", "recipe.epochs=250"),
    "fused": (*MEMBERS, "--fuse", "on"),
}


@pytest.fixture(autouse=True)
def as_in_a_terminal() -> Iterator[None]:
    """What is started in the background has the signal ignored, and so would all that follows."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def begun(
    folder: Path, out: str, *given: str, code: str = SLOW, alone: bool = False
) -> subprocess.Popen[str]:
    """`flipguard train`, as a user starts it; `alone`: with nothing said beside `--out`."""
    machine = ("--set", "machine.threads=1", "--set", "machine.device=cpu")
    said = () if alone else (*TINY, *machine)
    return subprocess.Popen(
        [sys.executable, "-c", code, "train", *said, "--out", out, *given],
        cwd=folder,
        env=finding_tests(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(process: subprocess.Popen[str], said: str) -> None:
    """Reads what it says, until it says this."""
    assert process.stdout is not None
    for line in process.stdout:
        if said in line:
            return
    raise AssertionError(f"{said!r} was never said: {process.stderr and process.stderr.read()}")


def ended(folder: Path) -> dict[str, dict[str, bytes]]:
    """What a run and its members ended in, to the byte."""
    runs = [folder / "run", *sorted((folder / "members").glob("[0-9a-f]*"))]
    return {run.name: bytes_of(run) for run in runs}


@pytest.mark.parametrize("way", WAYS)
def test_the_epoch_is_kept_and_it_ends_in_the_same_bytes(way: str, tmp_path: Path) -> None:
    (tmp_path / "stopped").mkdir()
    running = begun(tmp_path / "stopped", "run", *WAYS[way])
    wait_for(running, " of 500 epochs" if way == "side by side" else "epoch 3/60")
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to all of its processes
    _, said = running.communicate(timeout=300)
    assert running.returncode == 130, said
    assert said.startswith(SAID)
    out = tmp_path / "stopped" / "run"
    assert said.endswith("flipguard train --out run --resume\n")
    assert Run.read(out).status == "stopped"
    kept = [path.parents[1] for path in (tmp_path / "stopped").rglob(CHECKPOINT)]
    assert 1 <= len(kept) <= (2 if way == "side by side" else 1)
    if way == "student":
        assert 3 <= len(read_lines(out / TIMING)) < 60
        assert said == f"{SAID}run: interrupted; continue from the last checkpoint with: " + (
            "flipguard train --out run --resume\n"
        )
    else:
        assert "while members were trained, whose states are kept" in said
    if way == "side by side":  # more than the one epoch that is measured before the others start
        assert max(len(read_lines(run / TIMING)) for run in kept) > 1
    config = Run.read(out).config
    # Here, where it is quicker; fused members end in other last digits, and so stay fused.
    here = config.machine if way == "fused" else dataclasses.replace(config.machine, fuse="off")
    config = dataclasses.replace(config, machine=here)
    assert trained(config, out, resume=True).finished
    assert trained(config, tmp_path / "whole" / "run").finished
    assert ended(tmp_path / "stopped") == ended(tmp_path / "whole")
    assert len(ended(tmp_path / "whole")) == (1 if way == "student" else 3)


def test_a_second_one_stops_at_once(tmp_path: Path) -> None:
    running = begun(tmp_path, "run", *STUDENT, code=ENDLESS)
    wait_for(running, "epoch 2/60")
    running.send_signal(signal.SIGINT)
    assert running.stderr is not None
    assert running.stderr.readline() == SAID
    assert running.poll() is None
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=300)
    assert running.returncode == 130
    # Within `machine.save_seconds` of its start, and not told to keep anything.
    assert said == (
        "run: interrupted before an epoch was saved; start it again with: "
        "flipguard train --out run --resume\n"
    )
    assert trained(Run.read(tmp_path / "run").config, tmp_path / "run", resume=True).finished


def test_a_second_one_stops_members_at_once(tmp_path: Path) -> None:
    """Before there is a run: the same command goes on with them."""
    running = begun(tmp_path, "run", *MEMBERS, "--fuse", "off", code=ENDLESS)
    wait_for(running, "epoch 2/60")
    running.send_signal(signal.SIGINT)
    assert running.stderr is not None
    assert running.stderr.readline() == SAID
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=300)
    assert running.returncode == 130
    assert said == (
        "run: interrupted while members were trained; finished members are kept; run the same "
        "command again to continue\n"
    )
    refused = begun(tmp_path, "run", "--resume", alone=True)
    _, said = refused.communicate(timeout=300)
    assert refused.returncode == 2
    assert said == (
        "flipguard: Expected run to be a run, but there is no run.json in it; give a folder that "
        "`flipguard train --out` wrote. If members were being trained, repeat the same command "
        "without `--resume` to continue.\n"
    )


@pytest.mark.slow
def test_processes_that_share_batches_finish_the_epoch(tmp_path: Path) -> None:
    code = "if __name__ == '__main__':\n    " + QUICK.replace("\n", "\n    ")
    script = tmp_path / "guarded.py"
    script.write_text(code)
    given = ["--set", "machine.processes=2", "--set", "recipe.epochs=100000"]
    running = subprocess.Popen(
        [sys.executable, str(script), "train", *TINY, *given, "--set", "machine.threads=1",
         "--set", "machine.device=cpu", "--out", "run"],
        cwd=tmp_path,
        env=finding_tests(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )  # fmt: skip
    wait_for(running, "epoch 3/")
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=300)
    assert running.returncode == 130, said
    assert SAID in said
    assert "Traceback" not in said
    assert said.endswith(
        "continue from the last checkpoint with: flipguard train --out run --resume\n"
    )
    assert len(read_lines(tmp_path / "run" / TIMING)) >= 3


def test_the_handler_is_put_back_and_nothing_is_remembered() -> None:
    before = signal.getsignal(signal.SIGINT)
    said: list[int] = []
    with interrupting.finish_epoch_on_interrupt(lambda: said.append(1)):
        assert interrupting.is_waiting()
        os.kill(os.getpid(), signal.SIGINT)
        assert said == [1]
        assert interrupting.interrupted()
        assert interrupting.time_is_up(None)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    assert not interrupting.interrupted()
    assert not interrupting.is_waiting()
    with pytest.raises(KeyboardInterrupt):  # Python's own again
        os.kill(os.getpid(), signal.SIGINT)


def test_only_the_main_thread_waits_and_no_handler_of_others_is_replaced() -> None:
    found: list[bool] = []

    def within() -> None:
        with interrupting.finish_epoch_on_interrupt(lambda: None):
            found.append(interrupting.is_waiting())

    other = threading.Thread(target=within)
    other.start()
    other.join()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        within()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert found == [False, False]


def test_listeners_are_told_also_if_they_come_late() -> None:
    told: list[str] = []
    with interrupting.finish_epoch_on_interrupt(lambda: None):
        with interrupting.on_interrupt(lambda: told.append("early")):
            interrupting.interrupt()
        with interrupting.on_interrupt(lambda: told.append("late")):
            pass
        interrupting.interrupt()
    assert told == ["early", "late"]


def test_asked_before_an_epoch_was_under_way_it_trains_none(tmp_path: Path) -> None:
    config = tiny("ensemble")
    with interrupting.finish_epoch_on_interrupt(lambda: None):
        interrupting.interrupt()
        for name, one in {"student": tiny(), "members": config}.items():
            assert trained(one, tmp_path / name / "run").status == "stopped"
    assert not [*tmp_path.rglob(CHECKPOINT)]
    assert trained(config, tmp_path / "members" / "run", resume=True).finished
    trained(config, tmp_path / "whole" / "run")
    assert ended(tmp_path / "members") == ended(tmp_path / "whole")


def test_views_that_are_stored_are_kept(tmp_path: Path) -> None:
    config = tiny("elodi", options={"views": 2}, recipe={"augment": "shift-scale-noise"})
    lines: list[str] = []

    def report(line: str) -> None:
        lines.append(line)
        if line.startswith("storing"):
            interrupting.interrupt()

    with interrupting.finish_epoch_on_interrupt(lambda: None):
        assert train(config, tmp_path / "stopped" / "run", report=report).status == "stopped"
    (stored,) = (tmp_path / "stopped" / "views").glob("*/views.json")
    assert len(json.loads(stored.read_text())["done"]) == 1
    assert trained(config, tmp_path / "stopped" / "run", resume=True).finished
    assert len(json.loads(stored.read_text())["done"]) == 2
    trained(config, tmp_path / "whole" / "run")
    assert ended(tmp_path / "stopped") == ended(tmp_path / "whole")
