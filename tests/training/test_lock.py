"""One process writes a folder at a time, and a process that has ended keeps nobody out."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flipguard import locks
from flipguard.errors import InputError
from flipguard.locks import LOCK, alone_in
from flipguard.runs.config import as_dict, from_dict
from flipguard.training import Run, predict, train
from flipguard.training.devices import fabric_of
from flipguard.training.members import member_config, member_folder
from flipguard.training.monitor import LineMonitor
from flipguard.training.train import train_with
from tests.training.test_refusals import refused, sentence, stopped_run
from tests.training.tiny import bytes_of, everything_in, tiny, trained

# Another process, which holds a folder's lock by flipguard's own code, loaded without torch.
HOLDS = f"""
import importlib.util, os, sys, time
from pathlib import Path

found = importlib.util.spec_from_file_location("lock", {locks.__file__!r})
lock = importlib.util.module_from_spec(found)
found.loader.exec_module(lock)
with lock.alone_in(Path(sys.argv[1]), report=print):
    if "fork" in sys.argv and os.fork() == 0:
        os.write(1, f"{{os.getpid()}}\\n".encode())
        time.sleep(60)
        os._exit(0)
    os.write(1, b"held\\n")
    sys.stdin.read()
"""

# A student in a process of its own, which begins when it is told to.
STUDENT = """
import json, sys
from pathlib import Path

from flipguard.training import train
from flipguard.runs.config import from_dict

config = from_dict(json.loads(Path(sys.argv[1]).read_text()))
print("ready", flush=True)
sys.stdin.read()
train(config, Path(sys.argv[2]))
"""


@contextmanager
def held(folder: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Another process that holds the lock of a folder, and what it said."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(folder), *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        try:
            yield other, [other.stdout.readline().strip() for _ in range(1 + len(more))]
        finally:
            other.kill()


def quiet(_: str) -> None:
    """Reports to nobody."""


def test_a_second_process_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with held(out) as (other, _):
        said = refused(tiny(), out)
        assert f"process {other.pid} on {socket.gethostname()} does" in said
        other.kill()
        other.wait()
        assert (out / LOCK).exists()  # it was killed, and could not remove it
        assert trained(tiny(), out).finished
    assert not (out / LOCK).exists()


def test_a_run_that_goes_on_is_locked_too(tmp_path: Path) -> None:
    config = stopped_run(tmp_path / "run")
    with held(tmp_path / "run"):
        assert "the only process" in refused(config, tmp_path / "run", resume=True)
    assert trained(config, tmp_path / "run", resume=True).finished


def test_a_finished_run_is_read_while_another_process_holds_its_lock(tmp_path: Path) -> None:
    trained(tiny(), tmp_path / "run")
    with held(tmp_path / "run"):
        assert trained(tiny(), tmp_path / "run", resume=True).finished
    assert (tmp_path / "run" / LOCK).exists()
    assert trained(tiny(), tmp_path / "run", resume=True).finished
    assert not (tmp_path / "run" / LOCK).exists()


@pytest.mark.parametrize("fuse", ["off", "on", "auto"])
def test_members_of_another_process_are_waited_for(fuse: str, tmp_path: Path) -> None:
    config = tiny("elodi", epochs=1, options={"members": 2}, machine={"fuse": fuse})
    whole = trained(config, tmp_path / "whole" / "run")
    member = Path(whole.document["members"][1]).name
    lines: list[str] = []
    with held(tmp_path / "members" / member) as (other, _):

        def report(line: str) -> None:
            lines.append(line)
            if "waiting for" in line:
                other.kill()

        run = train(config, tmp_path / "run", report=report)
        (waited,) = [line for line in lines if "waiting for" in line]
        assert f"waiting for process {other.pid} on {socket.gethostname()}, which" in waited
        assert member in waited
    assert bytes_of(run.folder) == bytes_of(whole.folder)
    assert not list(tmp_path.rglob(LOCK))


@pytest.mark.parametrize("fuse", ["off", "on", "auto"])
def test_a_run_stops_in_time_that_waits_for_members(fuse: str, tmp_path: Path) -> None:
    config = tiny("elodi", options={"members": 2}, machine={"fuse": fuse, "minutes": 0.0})
    whole, _ = trained(config, tmp_path / "run"), shutil.rmtree(tmp_path / "members")
    places = [member_folder(member_config(config, i), whole.folder) for i in range(2)]
    with held(places[0]), held(places[1]):
        assert trained(config, tmp_path / "run", resume=True).status == "stopped"


@pytest.mark.parametrize(
    "fuse", ["auto", *(pytest.param(x, marks=pytest.mark.slow) for x in ("on", "off"))]
)
def test_two_students_train_their_members_between_them(fuse: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"options": {"members": 3}, "machine": {"fuse": fuse}}
    config = tiny("elodi", epochs=60, **changes)
    alone = trained(config, tmp_path / "whole" / "run")
    (tmp_path / "config.json").write_text(json.dumps(as_dict(config)))
    others = [
        subprocess.Popen(
            [sys.executable, "-c", STUDENT, str(tmp_path / "config.json"), str(tmp_path / name)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "two")
    ]
    for other in others:  # both have loaded torch
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
    for other in others:
        assert other.stdin is not None
        other.stdin.close()
    assert [other.wait(timeout=300) for other in others] == [0, 0]
    told = ""
    for other in others:
        assert other.stdout is not None
        told += other.stdout.read()
        other.stdout.close()
    assert "waiting for process" in told
    for name in ("one", "two"):
        assert bytes_of(tmp_path / name) == bytes_of(alone.folder)
    assert len(list((tmp_path / "members").glob("*/model.safetensors"))) == 3


def refused_in(fabric: Any, config: dict[str, Any], out: Path, told: Path) -> None:
    """Writes what a process of a run is refused with."""
    try:
        train_with(fabric, from_dict(config), out, monitor=LineMonitor(print))
    except InputError as problem:
        (told / str(fabric.global_rank)).write_text(str(problem))


def test_all_processes_of_a_run_are_refused_where_the_first_one_is(tmp_path: Path) -> None:
    config = tiny(machine={"processes": 2})
    told = tmp_path / "told"
    told.mkdir()
    with held(tmp_path / "run"):
        fabric_of(config.machine).launch(refused_in, as_dict(config), tmp_path / "run", told)
    said = [path.read_text() for path in sorted(told.iterdir())]
    assert len(said) == 2
    assert all("the only process" in one for one in said)


def test_predictions_into_a_run(tmp_path: Path) -> None:
    run = trained(tiny(epochs=1), tmp_path / "run")
    place = run.folder / "predictions" / "train.npz"
    with held(run.folder):
        with pytest.raises(InputError) as problem:
            predict(run, split="train", out=place)
        assert "the only process" in sentence(problem)
        predict(run, split="train", out=tmp_path / "train.npz")
    predict(run, split="train", out=place)
    assert place.read_bytes() == (tmp_path / "train.npz").read_bytes()


def test_several_processes_of_one_run(tmp_path: Path) -> None:
    config = tiny(epochs=1, machine={"processes": 2})
    with held(tmp_path / "run"):
        assert "the only process" in refused(config, tmp_path / "run")
    assert trained(config, tmp_path / "run").finished
    assert not (tmp_path / "run" / LOCK).exists()


def test_a_forked_child_keeps_no_lock_of_a_parent_that_was_killed(tmp_path: Path) -> None:
    with held(tmp_path / "run", "fork") as (other, told):
        child = next(int(line) for line in told if line.isdecimal())
        try:
            other.kill()
            other.wait()
            with alone_in(tmp_path / "run", report=quiet):
                os.kill(child, 0)  # it is still there
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_lock_of_a_folder_leaves_nothing(tmp_path: Path) -> None:
    with alone_in(tmp_path / "a" / "b", report=quiet):
        assert (tmp_path / "a" / "b" / LOCK).exists()
        with pytest.raises(InputError), alone_in(tmp_path / "a" / "b", report=quiet):
            pass
    assert list(tmp_path.iterdir()) == []


def raising(number: int) -> Callable[..., None]:
    """What a file system says that has no locks, which cannot be mounted here."""

    def flock(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    return flock


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_told_of(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", raising(number))
    lines: list[str] = []
    run: Run = train(tiny(epochs=1), tmp_path / "run", report=lines.append)
    assert run.finished
    assert "cannot be locked" in lines[0]
    assert LOCK not in everything_in(tmp_path / "run")
