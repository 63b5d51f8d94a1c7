"""Choose the members of a run, and train them: as one network, in a pool, or one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flipguard.data import DataSet
from flipguard.errors import InputError, listed, printable
from flipguard.locks import InUseError, alone_in
from flipguard.run_document import RUN
from flipguard.runs.config import Config, Machine
from flipguard.runs.folder import CHECKPOINT, Run, is_finished
from flipguard.training.batches import data_of, input_shape_of
from flipguard.training.checkpoint import load_for
from flipguard.training.fused import train_group
from flipguard.training.fused_group import (
    CannotFuse,
    FusedGroup,
    begun_groups,
    fuses,
    listed_groups,
)
from flipguard.training.interrupting import stop_reason, time_is_up
from flipguard.training.jobs import until
from flipguard.training.members import (
    load_guides,
    member_config,
    member_count,
    member_folder,
)
from flipguard.training.monitor import LineMonitor, Monitor, Report
from flipguard.training.outcomes import Declined, Done, Outcome, Stopped
from flipguard.training.pool_strategy import PoolStrategy, apart, own_threads, threads_of
from flipguard.training.record import check_follows
from flipguard.training.reuse import reused_members, start_runs
from flipguard.training.strategy import Member, Strategy, TrainingContext


class GroupStrategy(Strategy):
    """Members as one network: groups that were begun before, then new ones."""

    def train(self, members: Sequence[Member], context: TrainingContext) -> Outcome:
        """Train members in groups; decline if a network cannot be fused and `fuse` is ``auto``.

        Members that are not begun yet are trained as many at once as can be fused and fit.
        """
        fabric, machine = context.fabric, members[0].config.machine
        if fabric.world_size > 1 and machine.fuse != "on":
            return Declined()  # every process takes its share of a batch, member after member
        stops = partial(time_is_up, context.deadline)
        with ExitStack() as stack:
            # In an order that all processes share, so that no two wait for each other.
            ours = self._to_lock(machine, fabric, [member.folder for member in members])
            for folder in sorted(ours):
                try:
                    stack.enter_context(alone_in(folder, report=context.monitor.note, stops=stops))
                except InUseError:
                    return Stopped(stop_reason(context.deadline) or "deadline")
            outcome = self._resume_groups(members, ours, context)
            if isinstance(outcome, Stopped) or not fuses(machine, fabric.device):
                return outcome
            fresh = [member for member in members if _is_fresh(member.folder)]
            if len(fresh) < 2:
                return Declined()
            if (why := _why_not_fused(fabric, machine)) is not None:
                if machine.fuse == "on":
                    raise CannotFuse(why)
                return Declined(why)
            size, streams = machine.fuse_chunk or len(fresh), machine.streams or 1
            while len(fresh) > 1 and size > 1:
                group = FusedGroup(
                    configs=tuple(member.config for member in fresh[:size]),
                    folders=tuple(member.folder for member in fresh[:size]),
                    streams=streams,
                )
                try:
                    outcome = train_group(group, context)
                except CannotFuse as problem:
                    if machine.fuse == "on":
                        raise
                    if not (1 < problem.fitting < size or problem.streams > streams):
                        return Declined(str(problem))
                    size, streams = min(size, problem.fitting), max(streams, problem.streams)
                    context.monitor.note(f"at most {size} members at once: {problem}")
                    continue
                if isinstance(outcome, Stopped):
                    return outcome
                fresh = fresh[size:]
            return Done() if not fresh else Declined()

    def _to_lock(self, machine: Machine, fabric: Any, folders: Sequence[Path]) -> set[Path]:
        """Return the members to train together; other processes may train the rest."""
        if fabric.world_size > 1:
            return set()  # which is refused
        names = {folder.name: folder for folder in folders}
        begun = [set(told["members"]) for told in listed_groups(folders[0].parent)]
        wanted = {names[name] for group in begun if group <= set(names) for name in group}
        if fuses(machine, fabric.device):
            fresh = {folder for folder in folders if _is_fresh(folder)}
            wanted |= fresh if len(fresh) > 1 else set()
        return {folder for folder in wanted if not is_finished(folder)}

    def _resume_groups(
        self, members: Sequence[Member], ours: set[Path], context: TrainingContext
    ) -> Outcome:
        """Finish the groups that were begun before."""
        if context.fabric.world_size > 1:
            return Declined()
        configs = [member.config for member in members]
        folders = [member.folder for member in members]
        for group in list(begun_groups(configs, folders, ours)):
            outcome = train_group(group, context)
            if isinstance(outcome, Stopped):
                return outcome
        return Declined()


def _why_not_fused(fabric: Any, machine: Machine) -> str | None:
    """Return why no members can be trained as one network here; None if some can."""
    if fabric.world_size > 1:
        what = f"{fabric.world_size} processes; use one"
    elif machine.precision == "16-mixed":
        what = "precision 16-mixed, which scales all gradients alike; use bf16-mixed or 32-true"
    else:
        return None
    return f"Expected members to be trained as one network, but got {what}, or `machine.fuse=off`."


def _is_fresh(folder: Path) -> bool:
    """Return whether a member is neither finished nor begun alone."""
    if (folder / CHECKPOINT).exists():
        return False
    return not is_finished(folder)


class OneByOneStrategy(Strategy):
    """One member after the other, each as an ordinary run."""

    def __init__(self, told: Mapping[int, Sequence[str]] | None = None) -> None:
        self._told = told or {}  # what members have reported before, by their index

    def train(self, members: Sequence[Member], context: TrainingContext) -> Done | Stopped:
        """Train what is not finished; a finished member is checked and reported."""
        report = context.monitor.note
        for index, member in enumerate(members):
            finished = is_finished(member.folder)
            ending = " is finished" * finished
            report(f"member {index + 1} of {len(members)}: {member.folder}{ending}")
            for line in self._told.get(index, ()):
                report(f"  {line}")

            def tell(line: str, finished: bool = finished) -> None:
                if not finished:
                    report(f"  {line}")

            try:
                run = context.train_one(
                    context.fabric,
                    until(member.config, context.deadline),
                    member.folder,
                    resume=True,
                    waits=True,
                    monitor=LineMonitor(tell),
                )
            except InUseError:  # time was up before another process had trained it
                return Stopped(stop_reason(context.deadline) or "deadline")
            if not run.finished:
                return Stopped(stop_reason(context.deadline) or "deadline")
        return Done()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPlan:
    """The members of a run, and the strategies that train them, in their order.

    Each strategy trains what the ones before it left. The number of threads belongs to the plan: a
    member must end in the same bytes in a pool and alone.
    """

    members: tuple[Member, ...] = ()  # those that the run trains
    given: tuple[Run, ...] = ()  # finished runs: `guides`, or members of the old run

    def run(self, context: TrainingContext) -> Done | Stopped:
        """Train all members that are not finished."""
        if not self.members:
            return Done()
        members, machine = self.members, self.members[0].config.machine
        for member in members:
            if is_finished(member.folder):
                # It may have started from what the old model was before.
                check_follows(Run.read(member.folder))
        outcome = GroupStrategy().train(members, context)
        if isinstance(outcome, Stopped):
            return outcome
        explain(outcome, context.monitor)
        if not apart(machine, context.fabric):
            return OneByOneStrategy().train(members, context)
        members = tuple(
            dataclasses.replace(
                member,
                config=dataclasses.replace(
                    member.config, machine=own_threads(member.config.machine)
                ),
            )
            for member in members
        )
        with threads_of(members[0].config.machine):
            outcome = PoolStrategy().train(members, context)
            if isinstance(outcome, Stopped):
                return outcome
            explain(outcome, context.monitor)
            told = outcome.told if isinstance(outcome, Declined) else None
            return OneByOneStrategy(told).train(members, context)

    def runs(self) -> list[Run]:
        """Return all members, once they are finished.

        Reused ones come last: the next update reuses the first ones, which are the newest.
        """
        return [*(Run.read(member.folder) for member in self.members), *self.given]


def explain(outcome: Done | Declined, monitor: Monitor) -> None:
    """Report why a strategy does not apply."""
    if isinstance(outcome, Declined) and outcome.reason is not None:
        monitor.note(f"members one by one: {outcome.reason}")


def plan_members(
    config: Config, out: Path, data: DataSet, old_runs: Sequence[Run], *, report: Report
) -> MemberPlan:
    """Return which members a run trains, and which finished runs it uses as members."""
    if config.guides:
        guides = load_guides(config, data.class_names)
        for run in guides:
            if run.input_shape != input_shape_of(data):
                load_for(run, config.machine, data, role="`guides`")  # raises if it cannot
        return MemberPlan(given=tuple(guides))
    reused = reused_members(config, old_runs, data)
    starts = start_runs(config, old_runs[0]) if config.fine_tune else ()
    if starts:  # a member that starts from another member's weights is never a reused one
        wanted = [member_config(config, index, start) for index, start in enumerate(starts)]
    else:
        count = member_count(config)
        # A member's folder name identifies it, wherever the folder is; none may be used twice.
        taken = {run.folder.resolve().name for run in reused}
        every = (member_config(config, index) for index in range(count + len(reused)))
        fresh = [one for one in every if member_folder(one, out).name not in taken]
        wanted = fresh[: count - len(reused)]
    if reused:
        report(f"{len(reused)} members taken over, {len(wanted)} of this run's own")
    members = tuple(Member(config=one, folder=member_folder(one, out)) for one in wanted)
    _check_data(members, config, data)
    return MemberPlan(members=members, given=tuple(reused))


def _check_data(members: Sequence[Member], config: Config, data: DataSet) -> None:
    """Raise if members that were begun before saw other data; their keys have only its name."""
    begun = [member for member in members if (member.folder / RUN).exists()]
    if not begun:
        return
    own = begun[0].config  # calibrated members see fewer samples than the run
    fingerprint = (data if own.scope == config.scope else data_of(own)).fingerprint
    others = [
        member.folder
        for member in begun
        if Run.read(member.folder).document["data"].get("fingerprint") != fingerprint
    ]
    if others:
        raise InputError(
            f"Expected the members in {printable(str(others[0].parent))} to be trained on the data "
            f"of this run, but {config.data} has changed since {listed(f.name for f in others)} "
            "began; choose another parent folder for `out=`, or remove these members."
        )
