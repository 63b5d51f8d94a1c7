"""Members that are taken over from the ensemble of the model that is updated."""

from __future__ import annotations

from collections.abc import Sequence

from flipguard.data import DataSet
from flipguard.errors import InputError, listed
from flipguard.training.checkpoint import load_model
from flipguard.training.config import Config
from flipguard.training.folder import MODEL, RUN, Run
from flipguard.training.material import input_shape_of
from flipguard.training.members import reuse_count


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
