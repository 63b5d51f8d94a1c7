"""Who trains what and when, with workers that only answer."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from flipguard.errors import InputError
from flipguard.studies import executor, tasks
from flipguard.studies.executor import TRAIN_SEVERAL_JOB, Crew, train_all
from flipguard.studies.graph import Node
from flipguard.studies.planning import Plan, plan_of
from flipguard.studies.reading import study_of
from flipguard.studies.scales import scale_of
from flipguard.training.side_by_side import TRAIN_JOB
from flipguard.training.worker import DIVERGED, ENDED, FAILED, LINE, READY, REFUSED, STOPPED
from flipguard.training.workforce import GONE

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
    environments: ClassVar[list[Mapping[str, str] | None]]
    threads: ClassVar[list[int]]
    minutes: ClassVar[list[float | None]]
    answers: ClassVar[dict[str, tuple[str, str]]]
    ended: ClassVar[int]

    def __init__(
        self,
        said: queue.SimpleQueue[Any],
        *,
        threads: int,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._said = said
        Obedient.environments.append(environment)
        Obedient.threads.append(threads)
        said.put((self, READY, ""))

    def tell(self, job: dict[str, Any]) -> None:
        assert job["call"] == (TRAIN_SEVERAL_JOB if "runs" in job["arguments"] else TRAIN_JOB)
        together = job["arguments"].get("runs", [job["arguments"]])
        folders = [one["folder"] for one in together]
        Obedient.jobs.append(folders)
        Obedient.minutes += [one["config"]["machine"]["minutes"] for one in together]
        answer = next((self.answers[f] for f in folders if f in self.answers), None)
        if answer is not None and answer[0] == DIVERGED:
            for folder in folders:
                if folder not in self.answers:  # which the worker trains alone then
                    Path(folder).mkdir(parents=True)
                    (Path(folder) / "run.json").write_text(FINISHED_RUN)
        if answer is None:
            self._said.put((self, LINE, "epoch 1/2  loss 1.0"))
            self._said.put((self, ENDED, "finished"))
        else:
            self._said.put((self, *answer))

    def end(self) -> None:
        Obedient.ended += 1


@pytest.fixture(autouse=True)
def obedient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "Worker", Obedient)
    Obedient.jobs, Obedient.environments, Obedient.answers, Obedient.ended = [], [], {}, 0
    Obedient.minutes, Obedient.threads = [], []


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return plan_of(
        study_of("elodi.table1"),
        scale_of("mnist1d"),
        seeds=range(2),
        out=tmp_path,
        machine={"device": "cpu", "threads": 1},
        most_members=3,
    )


def one(_: Node) -> float:
    return 1.0


def test_every_run_once_and_after_those_that_it_needs(plan: Plan) -> None:
    told: list[tuple[int, int]] = []
    count = train_all(plan.nodes, Crew(processes=3), cost=one, progress=lambda *t: told.append(t))
    order = [Path(folder) for (folder,) in Obedient.jobs]
    assert count == len(order) == len(set(order)) == len(plan.nodes)
    for node in plan.nodes:
        assert all(order.index(needed) < order.index(node.folder) for needed in node.after)
    assert Obedient.ended == 3
    assert told == sorted(told)
    assert told[-1] == (1000 * len(plan.nodes), 1000 * len(plan.nodes))


def test_finished_runs_are_told_while_others_are_under_way(plan: Plan) -> None:
    told: list[Path] = []
    begun: list[int] = []

    def finished(folders: Collection[Path]) -> None:
        told.extend(folders)
        begun.append(len(Obedient.jobs))

    train_all(plan.nodes, Crew(processes=1), cost=one, finished=finished)
    assert told == [Path(folder) for (folder,) in Obedient.jobs]
    # The next one is begun before.
    assert begun == [*range(2, len(plan.nodes) + 1), len(plan.nodes)]


def test_no_more_processes_than_runs(plan: Plan) -> None:
    train_all(plan.nodes[:2], Crew(processes=8), cost=one)
    assert Obedient.ended == 2


def test_workers_take_gpus_in_turn(plan: Plan) -> None:
    train_all(plan.nodes, Crew(processes=3, devices=("0", "2")), cost=one)
    assert [e and e["CUDA_VISIBLE_DEVICES"] for e in Obedient.environments] == ["0", "2", "0"]


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
    monkeypatch.setattr(tasks, "cores", lambda: 16)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    task = tasks.prepared(
        ["pct.table3"], scale="mnist1d", out=tmp_path, device=device, processes=processes
    )
    assert {node.config.machine.threads for node in task.nodes} == {threads[device]}
    train_all(task.nodes, task.crew, cost=one)
    assert set(Obedient.threads) == {threads[device]}
    many = tasks.prepared(
        ["pct.table3"], scale="mnist1d", out=tmp_path, device=device, processes=20
    )
    assert many.crew.threads == 1


def test_untreated_runs_that_differ_by_seed_become_one_job(plan: Plan) -> None:
    train_all(plan.nodes, Crew(fuse=True), cost=one)
    nodes = {str(node.folder): node for node in plan.nodes}
    large = [job for job in Obedient.jobs if len(job) > 1]
    # Old and new; of each two seeds with three members and an untreated model.
    assert [len(job) for job in large] == [2 * (3 + 1), 2 * (3 + 1)]
    for job in large:
        assert {nodes[folder].config.method for folder in job} == {"none"}
        assert len({nodes[folder].config.model for folder in job}) == 1
    assert sorted(folder for job in Obedient.jobs for folder in job) == sorted(nodes)
    Obedient.jobs = []
    train_all(plan.nodes, Crew(processes=2, devices=("0", "1"), fuse=True), cost=one)
    assert max(len(job) for job in Obedient.jobs) == 4


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((REFUSED, "Expected this, but got that."), "could not be trained: Expected this"),
        ((FAILED, "Traceback …\nValueError: odd"), "could not be trained (ValueError: odd)"),
        ((GONE, "signal 9"), "ended from outside (signal 9), perhaps for want of memory"),
    ],
)
def test_a_process_that_fails_is_named_and_nothing_new_is_begun(
    plan: Plan, answer: tuple[str, str], says: str
) -> None:
    bad = plan.nodes[4]
    Obedient.answers = {str(bad.folder): answer}
    with pytest.raises(InputError) as refused:
        train_all(plan.nodes, Crew(processes=2), cost=one)
    assert str(refused.value).startswith(f"{bad.name} ({bad.folder}) could not be trained")
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(Obedient.jobs) <= 6
    assert Obedient.ended == 2


@pytest.mark.parametrize("several", [False, True])
def test_a_run_that_diverges_is_named_and_the_others_go_on(plan: Plan, several: bool) -> None:
    needed = {folder for node in plan.nodes for folder in node.after}
    bad = [node.folder for node in plan.nodes if node.folder in needed][: 2 if several else 1]
    Obedient.answers = {str(folder): (DIVERGED, "Expected this, but got that.") for folder in bad}
    told: list[str] = []
    done: list[tuple[int, int]] = []
    with pytest.raises(InputError) as refused:
        train_all(
            plan.nodes,
            Crew(processes=2),
            cost=one,
            report=told.append,
            progress=lambda *shares: done.append(shares),
        )
    assert done[-1] == (1000 * len(plan.nodes), 1000 * len(plan.nodes))
    assert f"({bad[0]}) could not be trained: Expected this, but" in str(refused.value)
    assert ("So it was with 1 other run." in str(refused.value)) == several
    assert len(told) == len(bad)
    assert all("the others go on" in line for line in told)
    begun = {Path(folder) for job in Obedient.jobs for folder in job}
    lost = _with_all_that_need_them(plan, set(bad))
    assert begun == {node.folder for node in plan.nodes} - (lost - set(bad))
    assert Obedient.ended == 2


def test_of_runs_that_were_one_network_only_those_that_diverged_are_lost(plan: Plan) -> None:
    train_all(plan.nodes, Crew(fuse=True), cost=one)
    network = max(Obedient.jobs, key=len)
    Obedient.jobs, Obedient.answers = [], {network[0]: (DIVERGED, "Expected finite losses.")}
    with pytest.raises(InputError) as refused:
        train_all(plan.nodes, Crew(fuse=True), cost=one)
    (lost_run,) = [node for node in plan.nodes if str(node.folder) == network[0]]
    told = f"{lost_run.name} ({network[0]}) could not be trained: Expected finite losses."
    assert str(refused.value) == told
    begun = {Path(folder) for job in Obedient.jobs for folder in job}
    lost = _with_all_that_need_them(plan, {Path(network[0])}) - {Path(network[0])}
    assert begun == {node.folder for node in plan.nodes} - lost


def _with_all_that_need_them(plan: Plan, lost: set[Path]) -> set[Path]:
    more = lost | {node.folder for node in plan.nodes if node.after & lost}
    return lost if more == lost else _with_all_that_need_them(plan, more)


def test_a_folder_with_something_else_is_refused_before_any_work(plan: Plan) -> None:
    folder = plan.nodes[3].folder / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "last.pt").write_bytes(b"what is this")
    with pytest.raises(InputError, match="to be a new folder or a run"):
        train_all(plan.nodes, Crew(), cost=one)
    assert Obedient.jobs == []


# -- time that is up -----------------------------------------------------------------------------


def test_without_a_deadline_runs_take_their_time(plan: Plan) -> None:
    train_all(plan.nodes, Crew(), cost=one)
    assert set(Obedient.minutes) == {None}


def test_runs_are_told_how_much_time_is_left(plan: Plan) -> None:
    train_all(plan.nodes, Crew(processes=2), cost=one, deadline=time.monotonic() + 600)
    assert len(Obedient.minutes) == len(plan.nodes)
    assert all(minutes is not None and 9 < minutes <= 10 for minutes in Obedient.minutes)


def test_after_the_deadline_nothing_is_begun(plan: Plan) -> None:
    train_all(plan.nodes, Crew(processes=2), cost=one, deadline=time.monotonic() - 1)
    assert Obedient.jobs == []
    assert Obedient.ended == 2


@pytest.mark.parametrize("seconds", [None, 600.0])
def test_what_needs_a_stopped_run_is_not_begun(plan: Plan, seconds: float | None) -> None:
    needed = {folder for node in plan.nodes for folder in node.after}
    stopped = next(node.folder for node in plan.nodes if node.folder in needed)
    Obedient.answers = {str(stopped): (ENDED, STOPPED)}
    deadline = None if seconds is None else time.monotonic() + seconds
    train_all(plan.nodes, Crew(processes=2), cost=one, deadline=deadline)
    begun = {Path(folder) for job in Obedient.jobs for folder in job}
    assert stopped in begun
    assert not [node for node in plan.nodes if node.folder in begun and stopped in node.after]
    assert begun >= {node.folder for node in plan.nodes if not node.after}


def test_an_epoch_that_is_too_long_is_not_waited_for(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "GRACE", 0.05)
    slow = str(plan.nodes[0].folder)
    Obedient.answers = {slow: (LINE, "epoch 1/100  loss 1.0")}  # and no word more
    train_all(plan.nodes[:1], Crew(), cost=one, deadline=time.monotonic() + 0.05)
    assert Obedient.jobs == [[slow]]
    assert Obedient.ended == 1
