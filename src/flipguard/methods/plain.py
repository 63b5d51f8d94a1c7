"""`none` and `dropout`: the controls."""

from __future__ import annotations

import re

from flipguard.errors import InputError, listed
from flipguard.methods.base import (
    Method,
    Objective,
    Option,
    Options,
    Parts,
    Printed,
    Setting,
    Step,
    task,
)

RATE = Option(
    name="rate",
    default=0.1,
    sentence="The share of features that is dropped.",
    printed=Printed(value=0.2),
)


def build(setting: Setting) -> Objective:
    """The task's own loss, and nothing else."""

    def parts(step: Step) -> Parts:
        return {"task": task(setting, step.logits, step.target)}

    return Objective(parts=parts)


def _with_rate(model: str, given: Options, options: Options) -> tuple[str, Options]:
    """Return a model with dropout before its last layer; its own rate counts if it has one."""
    if model.partition(":")[0] in ("hf", "torchvision", "python"):
        raise InputError(
            "Expected `dropout` with a net of flipguard's own or of timm, whose rate can be set, "
            f"but got {listed([model])}; choose such a net, or use `none` with a model that has "
            "dropout of itself."
        )
    own = re.search(r"[:,]dropout=([^,]+)", model)
    if own is None:
        return f"{model}{',' if '=' in model else ':'}dropout={options[RATE.name]}", options
    try:
        has = float(own[1])
    except ValueError:  # which the model refuses
        return model, options
    wanted = given.get(RATE.name)
    if wanted is not None and wanted != has:
        raise InputError(
            f"Expected one rate of `dropout`, but {model} has {has:g}, and `options.rate` is "
            f"{wanted}; leave one of them out."
        )
    return model, {**options, RATE.name: has}


NONE = Method(
    name="none",
    sentence="Untreated: the control that every treated model is measured against.",
    paper="PCT, ELODI",
    build=build,
)
DROPOUT = Method(
    name="dropout",
    sentence="Untreated, with dropout before the last layer.",
    paper="ELODI",
    build=build,
    options=(RATE,),
    model_spec=_with_rate,
)
