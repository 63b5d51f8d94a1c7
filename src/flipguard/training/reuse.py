"""Members that are taken over from the ensemble of the model that is updated."""

from __future__ import annotations

from collections.abc import Sequence

from flipguard.data import DataSet
from flipguard.errors import InputError, listed
from flipguard.training.checkpoint import load_model
from flipguard.training.config import Config
from flipguard.training.folder import MODEL, RUN, Run
from flipguard.training.material import input_shape_of
from flipguard.training.members import member_count


def reuse_count(config: Config) -> int:
    """How many members are taken over; its method has checked that it is a count."""
    count = config.options.get("reuse", 0)
    return count if isinstance(count, int) else 0


def check_reuse(config: Config, olds: Sequence[Run]) -> None:
    """Refuses what cannot be taken over, as far as the old run tells."""
    count = reuse_count(config)
    if not count:
        return
    if count > member_count(config):
        raise InputError(
            f"Expected `reuse` to be at most `members`, {member_count(config)}, but got {count}; "
            "lower it, or have more members."
        )
    if config.guides:
        raise InputError(
            "Expected `reuse` without `guides`, which are the whole ensemble, but got both; leave "
            "one of them out."
        )
    if config.options["guide"] != "homogeneous":
        raise InputError(
            "Expected `reuse` with the guide 'homogeneous', but got "
            f"{config.options['guide']!r}; members taken over may have learned what it is "
            "calibrated on, so leave one of them out."
        )
    if len(olds) != 1:
        raise InputError(
            f"Expected `reuse` to be given one `--old`, but got {len(olds)}; name the run whose "
            "members are taken over."
        )
    there = olds[0].document.get("members", [])
    if not there:
        raise InputError(
            f"Expected {olds[0].folder} to have members to take over, but its {RUN} lists none; "
            "give an `--old` that was trained with members, or leave `reuse` out."
        )
    if len(there) < count:
        raise InputError(
            f"Expected {olds[0].folder} to have {count} members to take over, but it has "
            f"{len(there)}; lower `reuse`."
        )


def reused_members(config: Config, olds: Sequence[Run], data: DataSet) -> list[Run]:
    """The members that are taken over: the first that the old run lists, which are its newest."""
    count = reuse_count(config)
    if not count:
        return []
    old = olds[0]
    folders = [old.folder / path for path in old.document["members"][:count]]
    gone = [str(folder) for folder in folders if not (folder / RUN).exists()]
    if gone:
        raise InputError(
            f"Expected the members of {old.folder} to be there, but {listed(gone)} is gone; move "
            f"them along with it, or leave `reuse` out."
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
        what = "knows other classes"
    elif run.input_shape != input_shape_of(data):
        what = "takes other inputs"
    elif run.input_shape is None and run.config.model != config.model:
        what = "reads other tokens"  # texts are encoded once, as the student reads them
    if what is not None:
        raise InputError(
            "Expected members that are taken over to be finished runs on the same classes and "
            f"inputs, but {run.folder} {what}; leave `reuse` out, and new ones are trained."
        )
    load_model(run)  # which refuses damaged weights, before anything is trained
