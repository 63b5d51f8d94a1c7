"""`none` and `dropout`: the controls."""

from __future__ import annotations

from flipguard.methods.base import Method, Objective, Option, Parts, Printed, Setting, Step, task


def build(setting: Setting) -> Objective:
    """The task's own loss, and nothing else."""

    def parts(step: Step) -> Parts:
        return {"task": task(setting, step.logits, step.target)}

    return Objective(parts=parts)


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
    options=(
        Option(
            name="rate",
            default=0.1,
            key_default=0.1,
            sentence="The share of features that is dropped.",
            printed=Printed(value=0.2),
        ),
    ),
)
