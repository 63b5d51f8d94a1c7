"""Who trains what and when, with workers that only answer."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from flipguard import worker_pool
from flipguard.errors import InputError
from flipguard.studies import job as job_module
from flipguard.studies.plan import StudyPlan, plan_study
from flipguard.studies.read_study import study_of
from flipguard.studies.run_graph import PlannedRun
from flipguard.studies.scales import scale_of
from flipguard.studies.train import train_runs
from flipguard.training.jobs import TRAIN_JOB, TRAIN_SEVERAL_JOB, run_of_job
from flipguard.worker_pool import PoolSettings

FINISHED_RUN = json.dumps(
    {
        "schema": "flipguard.run/1",
        "status": "finished",
        "config": {},
        "data": {"class_names": ["a", "b"], "input_shape": [40]},
    }
)


class Obedient:
    """A worker that has done at once what it is told, unless `answers` say otherwise."""

    jobs: ClassVar[list[list[str]]]
    environments: ClassVar[list[Mapping[str, str]]]
    threads: ClassVar[list[int]]
    minutes: ClassVar[list[float | None]]
    answers: ClassVar[dict[str, dict[str, Any]]]
    ended: ClassVar[int]

    def __init__(
        self,
        messages: queue.SimpleQueue[Any],
        *,
        threads: int,
        environment: Mapping[str, str],
    ) -> None:
        self._messages = messages
        Obedient.environments.append(environment)
        Obedient.threads.append(threads)
        messages.put((self, {"ready": True}))

    def send(self, message: dict[str, Any]) -> None:
        arguments = message["arguments"]
        assert message["call"] == (TRAIN_SEVERAL_JOB if "runs" in arguments else TRAIN_JOB)
        together = arguments.get("runs", [arguments])
        folders = [one["folder"] for one in together]
        Obedient.jobs.append(folders)
        for one in together:
            config, _ = run_of_job(one, arguments["deadline"])
            Obedient.minutes.append(config.machine.minutes)
        answer = next((self.answers[f] for f in folders if f in self.answers), None)
        if answer is not None and "diverged" in answer:
            for folder in folders:
                if folder not in self.answers:  # which the worker trains alone then
                    Path(folder).mkdir(parents=True)
                    (Path(folder) / "run.json").write_text(FINISHED_RUN)
        key = message["job"]
        if answer is None:
            self._messages.put((self, {"job": key, "epoch": 1, "of": 2}))
            answer = {"ended": "finished"}
        self._messages.put((self, answer if "gone" in answer else {"job": key, **answer}))

    def end(self) -> None:
        Obedient.ended += 1


@pytest.fixture(autouse=True)
def obedient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "Worker", Obedient)
    Obedient.jobs, Obedient.environments, Obedient.answers, Obedient.ended = [], [], {}, 0
    Obedient.minutes, Obedient.threads = [], []


@pytest.fixture
def plan(tmp_path: Path) -> StudyPlan:
    return plan_study(
        study_of("elodi.table1"),
        scale_of("mnist1d"),
        seeds=range(2),
        out=tmp_path,
        machine={"device": "cpu", "threads": 1},
        most_members=3,
    )


def one(_: PlannedRun) -> float:
    return 1.0


def test_every_run_once_and_after_those_that_it_needs(plan: StudyPlan) -> None:
    told: list[tuple[int, int]] = []
    count = train_runs(
        plan.nodes, PoolSettings(processes=3), cost=one, progress=lambda *t: told.append(t)
    )
    order = [Path(folder) for (folder,) in Obedient.jobs]
    assert count == len(order) == len(set(order)) == len(plan.nodes)
    for node in plan.nodes:
        assert all(order.index(needed) < order.index(node.folder) for needed in node.after)
    assert Obedient.ended == 3
    assert told == sorted(told)
    assert told[-1] == (1000 * len(plan.nodes), 1000 * len(plan.nodes))


def test_finished_runs_are_told_while_others_are_under_way(plan: StudyPlan) -> None:
    told: list[Path] = []
    begun: list[int] = []

    def finished(folders: Collection[Path]) -> None:
        told.extend(folders)
        begun.append(len(Obedient.jobs))

    train_runs(plan.nodes, PoolSettings(processes=1), cost=one, finished=finished)
    assert told == [Path(folder) for (folder,) in Obedient.jobs]
    # The next one is begun before.
    assert begun == [*range(2, len(plan.nodes) + 1), len(plan.nodes)]


def test_no_more_processes_than_runs(plan: StudyPlan) -> None:
    train_runs(plan.nodes[:2], PoolSettings(processes=8), cost=one)
    assert Obedient.ended == 2


def test_workers_take_gpus_in_turn(plan: StudyPlan) -> None:
    train_runs(plan.nodes, PoolSettings(processes=3, gpus=("0", "2")), cost=one)
    assert [e["CUDA_VISIBLE_DEVICES"] for e in Obedient.environments] == ["0", "2", "0"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("processes", "threads"),
    # On a CPU always one: what a run becomes must not depend on how many are trained at once.
    [(None, {"cpu": 1, "cuda": 8}), (3, {"cpu": 1, "cuda": 5}), (1, {"cpu": 1, "cuda": 16})],
)
def test_processes_share_the_cores_of_a_gpu_alone(
    device: str,
    processes: int | None,
    threads: dict[str, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_module, "cores", lambda: 16)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    task = job_module.prepare_job(
        ["pct.table3"], scale="mnist1d", out=tmp_path, device=device, processes=processes
    )
    assert {node.config.machine.threads for node in task.nodes} == {threads[device]}
    train_runs(task.nodes, task.pool, cost=one)
    assert set(Obedient.threads) == {threads[device]}
    many = job_module.prepare_job(
        ["pct.table3"], scale="mnist1d", out=tmp_path, device=device, processes=20
    )
    assert many.pool.threads == 1


def test_untreated_runs_that_differ_by_seed_become_one_job(plan: StudyPlan) -> None:
    train_runs(plan.nodes, PoolSettings(), fuse=True, cost=one)
    nodes = {str(node.folder): node for node in plan.nodes}
    large = [job for job in Obedient.jobs if len(job) > 1]
    # Old and new; of each two seeds with three members and an untreated model.
    assert [len(job) for job in large] == [2 * (3 + 1), 2 * (3 + 1)]
    for job in large:
        assert {nodes[folder].config.method for folder in job} == {"none"}
        assert len({nodes[folder].config.model for folder in job}) == 1
    assert sorted(folder for job in Obedient.jobs for folder in job) == sorted(nodes)
    Obedient.jobs = []
    train_runs(plan.nodes, PoolSettings(processes=2, gpus=("0", "1")), fuse=True, cost=one)
    assert [len(job) for job in Obedient.jobs if len(job) > 1] == [4, 4, 4, 4]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"refused": "Expected this, but got that."}, "could not be trained: Expected this"),
        ({"crashed": "Traceback …\nValueError: odd"}, "could not be trained (ValueError: odd)"),
        ({"gone": "signal 9"}, "was killed (signal 9), perhaps because memory ran out"),
    ],
)
def test_a_process_that_fails_is_named_and_nothing_new_is_begun(
    plan: StudyPlan, answer: dict[str, str], says: str
) -> None:
    bad = plan.nodes[4]
    Obedient.answers = {str(bad.folder): answer}
    with pytest.raises(InputError) as refused:
        train_runs(plan.nodes, PoolSettings(processes=2), cost=one)
    assert str(refused.value).startswith(f"{bad.name} ({bad.folder}) could not be trained")
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(Obedient.jobs) <= 6
    assert Obedient.ended == 2


@pytest.mark.parametrize("several", [False, True])
def test_a_run_that_diverges_is_named_and_the_others_go_on(plan: StudyPlan, several: bool) -> None:
    needed = {folder for node in plan.nodes for folder in node.after}
    bad = [node.folder for node in plan.nodes if node.folder in needed][: 2 if several else 1]
    Obedient.answers = {str(folder): {"diverged": "Expected this, but got that."} for folder in bad}
    told: list[str] = []
    done: list[tuple[int, int]] = []
    with pytest.raises(InputError) as refused:
        train_runs(
            plan.nodes,
            PoolSettings(processes=2),
            cost=one,
            report=told.append,
            progress=lambda *shares: done.append(shares),
        )
    assert done[-1] == (1000 * len(plan.nodes), 1000 * len(plan.nodes))
    assert f"({bad[0]}) could not be trained: Expected this, but" in str(refused.value)
    assert ("1 other run diverged as well." in str(refused.value)) == several
    assert len(told) == len(bad)
    assert all("others continue" in line for line in told)
    begun = {Path(folder) for job in Obedient.jobs for folder in job}
    lost = _with_all_that_need_them(plan, set(bad))
    assert begun == {node.folder for node in plan.nodes} - (lost - set(bad))
    assert Obedient.ended == 2


def test_of_runs_that_were_one_network_only_those_that_diverged_are_lost(plan: StudyPlan) -> None:
    train_runs(plan.nodes, PoolSettings(), fuse=True, cost=one)
    network = max(Obedient.jobs, key=len)
    Obedient.jobs, Obedient.answers = [], {network[0]: {"diverged": "Expected finite losses."}}
    with pytest.raises(InputError) as refused:
        train_runs(plan.nodes, PoolSettings(), fuse=True, cost=one)
    (lost_run,) = [node for node in plan.nodes if str(node.folder) == network[0]]
    told = f"{lost_run.name} ({network[0]}) could not be trained: Expected finite losses."
    assert str(refused.value) == told
    begun = {Path(folder) for job in Obedient.jobs for folder in job}
    lost = _with_all_that_need_them(plan, {Path(network[0])}) - {Path(network[0])}
    assert begun == {node.folder for node in plan.nodes} - lost


def _with_all_that_need_them(plan: StudyPlan, lost: set[Path]) -> set[Path]:
    more = lost | {node.folder for node in plan.nodes if node.after & lost}
    return lost if more == lost else _with_all_that_need_them(plan, more)


def test_a_folder_with_something_else_is_refused_before_any_work(plan: StudyPlan) -> None:
    folder = plan.nodes[3].folder / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "last.pt").write_bytes(b"what is this")
    with pytest.raises(InputError, match="to be a new folder or a run"):
        train_runs(plan.nodes, PoolSettings(), cost=one)
    assert Obedient.jobs == []


# -- time that is up -----------------------------------------------------------------------------


def test_without_a_deadline_runs_take_their_time(plan: StudyPlan) -> None:
    train_runs(plan.nodes, PoolSettings(), cost=one)
    assert set(Obedient.minutes) == {None}


def test_runs_are_told_how_much_time_is_left(plan: StudyPlan) -> None:
    train_runs(plan.nodes, PoolSettings(processes=2), cost=one, deadline=time.monotonic() + 600)
    assert len(Obedient.minutes) == len(plan.nodes)
    assert all(minutes is not None and 9 < minutes <= 10 for minutes in Obedient.minutes)


def test_after_the_deadline_nothing_is_begun(plan: StudyPlan) -> None:
    train_runs(plan.nodes, PoolSettings(processes=2), cost=one, deadline=time.monotonic() - 1)
    assert Obedient.jobs == []
    assert Obedient.ended == 2


@pytest.mark.parametrize("seconds", [None, 600.0])
def test_what_needs_a_stopped_run_is_not_begun(plan: StudyPlan, seconds: float | None) -> None:
    needed = {folder for node in plan.nodes for folder in node.after}
    stopped = next(node.folder for node in plan.nodes if node.folder in needed)
    Obedient.answers = {str(stopped): {"ended": "stopped"}}
    deadline = None if seconds is None else time.monotonic() + seconds
    train_runs(plan.nodes, PoolSettings(processes=2), cost=one, deadline=deadline)
    begun = {Path(folder) for job in Obedient.jobs for folder in job}
    assert stopped in begun
    assert not [node for node in plan.nodes if node.folder in begun and stopped in node.after]
    assert begun >= {node.folder for node in plan.nodes if not node.after}


def test_an_epoch_that_is_too_long_is_not_waited_for(
    plan: StudyPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "GRACE", 0.05)
    slow = str(plan.nodes[0].folder)
    Obedient.answers = {slow: {"epoch": 1, "of": 100}}  # and no word more
    train_runs(plan.nodes[:1], PoolSettings(), cost=one, deadline=time.monotonic() + 0.05)
    assert Obedient.jobs == [[slow]]
    assert Obedient.ended == 1
