"""Members that come from old runs: reused unchanged, or started from old members' weights."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from flipguard.data import DataSet
from flipguard.errors import InputError, listed
from flipguard.methods import Method, method_of
from flipguard.run_document import RUN
from flipguard.runs.config import Config
from flipguard.runs.folder import MODEL, Run, is_finished
from flipguard.training.batches import input_shape_of
from flipguard.training.checkpoint import load_model
from flipguard.training.members import member_count, reuse_count


def reused_members(config: Config, olds: Sequence[Run], data: DataSet) -> list[Run]:
    """Return the reused members: the first that the old run lists, which are its newest."""
    count = reuse_count(config)
    if not count:
        return []
    old = olds[0]
    folders = [old.folder / path for path in old.document["members"][:count]]
    gone = [str(folder) for folder in folders if not (folder / RUN).exists()]
    if gone:
        raise InputError(
            f"Expected the members of {old.folder} to exist, but {listed(gone)} is missing; move "
            "them along with it, or leave `reuse` out."
        )
    runs = [Run.read(folder) for folder in folders]
    for run in runs:
        _refuse_member(config, run, data)
    return runs


def _refuse_member(config: Config, run: Run, data: DataSet) -> None:
    what = None
    if not run.finished or not (run.folder / MODEL).exists():
        what = "is not finished"
    elif run.class_names != data.class_names:
        what = "has other classes"
    elif run.input_shape != input_shape_of(data):
        what = "takes other inputs"
    elif run.input_shape is None and run.config.model != config.model:
        what = "reads other tokens"  # texts are encoded once, as the student reads them
    if what is not None:
        raise InputError(
            "Expected reused members to be finished runs on the same classes and inputs, but "
            f"{run.folder} {what}; leave `reuse` out to train new members."
        )
    load_model(run)  # raises if the weights are damaged, before any training


def start_runs(config: Config, old: Run) -> tuple[str, ...]:
    """Return the runs that members start from, in order; none if all start from the old run."""
    # Runs that were given to the old run as `guides` may have any architecture.
    named = () if old.config.guides else old.document.get("members", ())
    # Their paths are relative to the folder itself, not to a link to it.
    folder = Path(os.path.realpath(old.folder))
    starts = start_paths(config, old.folder, [folder / name for name in named])
    gone = [os.path.relpath(one, folder) for one in starts if not is_finished(Path(one))]
    if gone:
        raise InputError(
            f"Expected the members of {old.folder} to be finished runs for new ones to start from, "
            f"but found none in {listed(gone)} (paths relative to it); move them along with it, or "
            "leave `fine_tune` out."
        )
    return starts


def start_paths(config: Config, old: Path, members: Sequence[Path]) -> tuple[str, ...]:
    """Return the same from the folders of old members, which need not be trained yet."""
    if not members:
        return ()
    count = member_count(config)
    if len(members) < count:
        raise InputError(
            f"Expected {old} to have {count} members for as many new ones to start from, but it "
            f"has {len(members)}; set `options.members` to {len(members)} or less, or leave "
            "`fine_tune` out."
        )
    # The first old members are reused unchanged; new members start from the others.
    return tuple(os.path.normpath(path) for path in members[reuse_count(config) : count])


def refuse_start(method: Method, old: Run) -> None:
    """Raise if one model would start from the weights of an ensemble."""
    if method.is_mean or not method_of(old.config.method)[0].is_mean:
        return
    otherwise = "" if method.default_needs().same_layout else ", or leave `fine_tune` out"
    raise InputError(
        f"Expected `{method.name}` to start from one model's weights, but {old.folder} is an "
        f"ensemble; give one of its members as `old=`{otherwise}."
    )
