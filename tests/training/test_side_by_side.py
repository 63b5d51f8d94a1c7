"""Members that are trained side by side, against the same members alone."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flipguard import worker_pool, worker_process
from flipguard.errors import InputError
from flipguard.models import build_model
from flipguard.runs.folder import CHECKPOINT, read_lines
from flipguard.runs.history import TIMING
from flipguard.training import Config, Run, pool_strategy, train
from flipguard.training.checks import complete_config
from flipguard.training.members import member_config, member_folder
from flipguard.training.outcomes import Stopped
from flipguard.training.pool_strategy import MemberMonitor, train_in_pool
from flipguard.worker_pool import Ending, Job, PoolSettings, WorkerPool
from tests.training.tiny import bytes_of, tiny, trained

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def code_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some configurations name networks of this module."""
    monkeypatch.setenv("FLIPGUARD_ALLOW_CODE", "1")


class Moody(nn.Module):
    """A perceptron that comes to harm in a process which trains for another."""

    def __init__(self, inner: nn.Module, mood: str) -> None:
        super().__init__()
        self.inner, self.mood = inner, mood

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if not self.training:
            print("a model may print")
        if self.mood == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.mood == "fails":
            raise ZeroDivisionError("of no use")
        found: torch.Tensor = self.inner(inputs) * (float("nan") if self.mood == "diverges" else 1)
        return found


def moody(*, classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    within = Path(sys.argv[0]).name == "worker_process.py"
    inner = build_model("mlp:hidden=8", classes=classes, input_shape=input_shape, seed=0)
    return Moody(inner, os.environ.get("MOOD", "") if within else "")


def apart(fuse: str = "auto", **changes: Any) -> Config:
    return tiny("ensemble", options={"members": 3}, machine={"fuse": fuse}, **changes)


def members_in(folder: Path) -> dict[str, dict[str, bytes]]:
    return {run.name: bytes_of(run) for run in sorted((folder / "members").iterdir())}


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores, and a start of processes that is always worth it."""
    monkeypatch.setattr(pool_strategy, "cores", lambda: 2)
    monkeypatch.setattr(pool_strategy, "WORTH", -1.0)


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("a process was started")

    monkeypatch.setattr(worker_pool, "Worker", refuse)


@pytest.mark.usefixtures("two_cores")
def test_members_are_those_that_are_trained_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A factory in a module that only this process knows where to find.
    (tmp_path / "own_nets.py").write_text(
        "from tests.training.test_side_by_side import moody\nfactory = moody\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    changes: dict[str, Any] = {"model": "python:own_nets:factory", "epochs": 3}
    lines: list[str] = []
    threads = torch.get_num_threads()
    config = apart(**changes)
    config = dataclasses.replace(config, machine=dataclasses.replace(config.machine, threads=None))
    assert train(config, tmp_path / "beside" / "run", report=lines.append).finished
    assert torch.get_num_threads() == threads
    trained(apart("off", **changes), tmp_path / "alone" / "run")
    assert members_in(tmp_path / "beside") == members_in(tmp_path / "alone")
    assert bytes_of(tmp_path / "beside" / "run") == bytes_of(tmp_path / "alone" / "run")
    assert lines[0] == "3 members side by side: 2 processes, one thread each"
    ends = [line for line in lines if re.fullmatch(r"  member \d of 3: epoch 3/3  test .*%", line)]
    assert len(ends) == 3
    others = [line for line in lines if not re.fullmatch(r"  \d of 9 epochs  \d+ s left", line)]
    assert len(others) == 1 + 3 + 3  # and where each lies
    for run in (tmp_path / "beside" / "members").iterdir():
        assert Run.read(run).config.machine.threads == 1


def begun(config: Config, out: Path) -> tuple[list[Config], list[Path]]:
    """Members and their folders."""
    _, whole = complete_config(config)
    configs = [member_config(whole, index) for index in range(3)]
    return configs, [member_folder(one, out) for one in configs]


def test_time_is_up_for_all_and_they_go_on(tmp_path: Path) -> None:
    config = apart(epochs=3)
    configs, folders = begun(config, tmp_path / "run")
    outcome = train_in_pool(
        configs, folders, range(3), processes=2, deadline=time.monotonic(), report=lambda _: None
    )
    assert isinstance(outcome, Stopped)
    stopped = [folder for folder in folders if (folder / CHECKPOINT).exists()]
    assert 1 <= len(stopped) <= 2
    for folder in stopped:
        assert Run.read(folder).status == "stopped"
        assert len(read_lines(folder / TIMING)) == 1
    assert trained(config, tmp_path / "run").finished
    trained(apart("off", epochs=3), tmp_path / "alone" / "run")
    assert members_in(tmp_path) == members_in(tmp_path / "alone")


@pytest.mark.usefixtures("two_cores", "no_process")
def test_time_that_is_up_before_starts_nothing(tmp_path: Path) -> None:
    config = apart(epochs=3)
    hurried = dataclasses.replace(config.machine, minutes=1e-9)
    run = trained(dataclasses.replace(config, machine=hurried), tmp_path / "run")
    assert run.status == "stopped"
    (first,) = (tmp_path / "members").iterdir()
    assert len(read_lines(first / TIMING)) == 1


MOODS = [
    (
        "diverges",
        InputError,
        r"Expected finite losses and weights, but got task = nan in epoch 1; lower .*\.",
    ),
    pytest.param("fails", RuntimeError, r"In the process of member \d:\n", marks=pytest.mark.slow),
    pytest.param(
        "dies",
        InputError,
        r"Expected the process of member \d to finish, but it was killed \(signal 9\), .*"
        r"; resume with `resume=True`, or with `machine\.fuse=off`, which trains one member at a "
        r"time\.",
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize(("mood", "kind", "said"), MOODS)
def test_what_goes_wrong_in_one_is_told_by_all(
    mood: str, kind: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOOD", mood)
    config = apart(model="python:tests.training.test_side_by_side:moody")
    configs, folders = begun(config, tmp_path / "run")
    # One of them is there already, and stays as it is.
    trained(configs[2], folders[2])
    before = bytes_of(folders[2])
    with pytest.raises(kind) as refusal:
        train_in_pool(configs, folders, range(2), processes=2, deadline=None, report=lambda _: None)
    assert re.match(said, str(refusal.value))
    if kind is InputError:
        assert "\n" not in str(refusal.value)
    else:
        assert "ZeroDivisionError: of no use" in str(refusal.value)
    assert bytes_of(folders[2]) == before
    monkeypatch.delenv("MOOD")
    assert trained(config, tmp_path / "run").finished


def test_little_work_is_done_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_process: None
) -> None:
    """And so is all work of one of several processes, on one core, or where memory is short."""
    monkeypatch.setattr(pool_strategy, "cores", lambda: 2)
    assert trained(apart(), tmp_path / "little").finished
    monkeypatch.setattr(pool_strategy, "WORTH", -1.0)
    for name, change in {
        "cores": lambda: 1,
        "_fitting": lambda: 1,
        "multiprocessing": type("", (), {"parent_process": staticmethod(lambda: "a pool")}),
    }.items():
        with monkeypatch.context() as patch:
            patch.setattr(pool_strategy, name, change)
            assert trained(apart(), tmp_path / name / "run").finished
    assert trained(apart("off"), tmp_path / "off" / "run").finished
    # More threads for each leave no core for another.
    config = apart()
    machine = dataclasses.replace(config.machine, threads=2)
    assert trained(dataclasses.replace(config, machine=machine), tmp_path / "t" / "run").finished
    torch.set_num_threads(1)


def test_what_auto_decides_is_said_and_no_epoch_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_process: None
) -> None:
    monkeypatch.setattr(pool_strategy, "cores", lambda: 2)
    lines: list[str] = []
    assert train(apart(), tmp_path / "run", report=lines.append).finished
    assert re.fullmatch(
        r"members one by one: about \d+ s for all of them; more processes would save less than "
        r"their start takes",
        lines[0],
    )
    assert [line.split()[:2] for line in lines[1:10]] == [
        ["member", "1"], ["epoch", "1/2"], ["epoch", "2/2"],
        ["member", "2"], ["epoch", "1/2"], ["epoch", "2/2"],
        ["member", "3"], ["epoch", "1/2"], ["epoch", "2/2"],
    ]  # fmt: skip
    lines = []
    monkeypatch.setattr(pool_strategy, "cores", lambda: 1)
    assert train(apart(), tmp_path / "one" / "run", report=lines.append).finished
    assert lines[0] == "members one by one: one core"
    assert sum(line.startswith("  epoch 1/2") for line in lines) == 3


def test_the_time_left_is_told_once_there_is_something_to_tell_it_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_strategy, "TOLD_EVERY", 0.0)
    configs, folders = begun(apart(epochs=100), tmp_path / "run")
    lines: list[str] = []
    monitor = MemberMonitor(
        WorkerPool(PoolSettings()), configs, folders, range(3), report=lines.append
    )
    job = Job(key=str(folders[0]), call="", arguments={})
    monitor.begun(job)
    for epoch in (1, 14, 15):
        monitor.epoch(job, epoch, 100)
    assert lines[:2] == ["  1 of 300 epochs", "  14 of 300 epochs"]
    assert re.fullmatch(r"  15 of 300 epochs  \d+ s left", lines[2])


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("executable", ["/bin/false", "/nowhere/python"])
def test_where_no_process_starts_members_are_trained_here(
    executable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    lines: list[str] = []
    assert train(apart(), tmp_path / "run", report=lines.append).finished
    assert any(
        "members one by one: no more processes can be started here (" in line for line in lines
    )


def test_an_idle_process_that_is_killed_later_is_no_failed_start(tmp_path: Path) -> None:
    """Processes could be started, so training the rest one by one would hide what happened."""
    configs, folders = begun(apart(), tmp_path / "run")
    monitor = MemberMonitor(WorkerPool(PoolSettings()), configs, folders, range(3), report=print)
    monitor.begun(Job(key=str(folders[0]), call="", arguments={}))
    for kind in ("gone", "crashed"):
        with pytest.raises(
            InputError, match=r"a process to finish, but it was killed \(signal 9\)"
        ):
            monitor.ended(None, Ending(kind, "signal 9"))  # type: ignore[arg-type]


def test_a_process_ends_with_its_input() -> None:
    """Also where the kernel does not end it together with its parent."""
    began = subprocess.Popen([sys.executable, "-P", worker_process.__file__], stdin=subprocess.PIPE)
    assert began.stdin is not None
    began.stdin.close()
    assert began.wait(timeout=300) == 0


def kill(folder: Path, moments: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.killing_side_by_side", folder, str(moments), "0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{moments} of {moments} equal\n", done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux which processes there are")
def test_killed_at_ten_moments(tmp_path: Path) -> None:
    kill(tmp_path, 10)
