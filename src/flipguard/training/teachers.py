"""Finished members as the teachers of a student."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn

from flipguard.errors import InputError
from flipguard.fusion import teachers
from flipguard.references import Ensemble, Reference
from flipguard.training.checkpoint import load_model
from flipguard.training.config import Machine
from flipguard.training.devices import input_type, placed
from flipguard.training.folder import Run
from flipguard.training.fused_group import APART, fills_gpu, fuses


class TeacherLayout(NamedTuple):
    """How teachers answer: on how many streams, and as one network or each by itself."""

    streams: int = 1
    apart: bool = False


def teacher_layout(
    machine: Machine, device: torch.device, models: Sequence[nn.Module]
) -> TeacherLayout | None:
    """Return how models answer together; None if they answer one after the other."""
    if len(models) < 2 or not fuses(machine, device):
        return None
    # A compiler of the whole keeps to one stream.
    streams = 1 if machine.compile == "whole" else machine.streams
    if machine.fuse == "on" or not fills_gpu(models[0]):
        return TeacherLayout(streams or 1)
    return None if streams == 1 else TeacherLayout(streams or APART, apart=True)


def load_teachers(
    runs: Sequence[Run],
    *,
    machine: Machine,
    device: Any,
    held_out: Callable[[], Iterable[Any]] | None,
    batch_size: int | None = None,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Callable[[], Reference]:
    """Return a function that loads the ensemble of finished members.

    It is calibrated if there are samples to calibrate it on.
    """

    def load() -> Reference:
        models = [placed(load_model(run, machine).eval(), device) for run in runs]
        ensemble = Ensemble(models)
        if held_out is not None:
            ensemble = ensemble.calibrate(held_out())
        layout = teacher_layout(machine, device, models)
        if layout is None:
            return ensemble
        shape = runs[0].input_shape
        example = None if shape is None else torch.zeros(1, *shape, dtype=input_type(machine))
        try:
            return teachers(
                models,
                example=example,
                temperatures=ensemble.temperatures,
                streams=layout.streams,
                apart=layout.apart,
                compiled=machine.compile,
                batch_size=batch_size,
                autocast=autocast,
            )
        except InputError:
            return ensemble  # of several architectures, or of one that cannot be fused

    return load
