"""Methods that need no old model: `none`, `dropout`, `ensemble`, `entropy` and `skl`."""

from __future__ import annotations

import re
from dataclasses import replace

from flipguard.errors import InputError, listed
from flipguard.methods.base import Method, Option, Options, Printed
from flipguard.methods.needs import Members, Needs
from flipguard.methods.objective import (
    BuildContext,
    LossParts,
    Objective,
    Step,
    task_alone,
    task_loss,
    top_in,
)

RATE = Option(
    name="rate",
    default=0.1,
    key_default=0.1,
    sentence=(
        "Share of features that are dropped, before the last layer; in a model of torchvision or "
        "Transformers, where it has dropout."
    ),
    printed=Printed(value=0.2),
)

MEMBERS = Option(
    name="members",
    default=8,
    key_default=8,
    sentence="Number of models to average.",
    printed=Printed(value=16),
    counts="members",
)

ALPHA = Option(
    name="alpha",
    default=0.15,
    key_default=0.15,
    sentence="Weight of the regulariser; the task's loss has the weight 1 - alpha.",
    is_weight=True,
)
# Without the floor, the divergence from uniform has no bound, and a network that memorises its
# samples lowers its loss forever by growing its logits.
FLOOR = Option(
    name="floor",
    default=1e-7,
    key_default=1e-7,
    sentence=(
        "Added to probabilities before the logarithm; with 0, as in the paper, skl is unbounded."
    ),
    printed=Printed(
        value=0.0,
        words="added to probabilities under SKL's logarithm, which has no bound as printed",
        formula=True,
    ),
)
TOP = Option(
    name="k",
    default=None,
    key_default=None,
    sentence=(
        "Use only this many of the most probable classes, 10 in the paper on ImageNet; without "
        "it, all classes are used."
    ),
    counts="classes",
)


def _with_rate(model: str, given: Options, options: Options) -> tuple[str, Options]:
    """Return a model with dropout, before its last layer unless its library has it elsewhere.

    If the model's text already sets a rate, that rate is kept.
    """
    library = model.partition(":")[0]
    if library == "python":
        raise InputError(
            "Expected one of flipguard's networks or a model of a library for `dropout`, because "
            f"its rate can be set, but got {listed([model])}; choose such a model, or use `none` "
            "with a function whose model has dropout."
        )
    own = re.search(r"[:,]dropout=([^,]+)", model)
    if own is None:
        mark = "," if "=" in model and library not in ("timm", "torchvision", "hf") else ":"
        return f"{model}{mark}dropout={options[RATE.name]}", options
    try:
        has = float(own[1])
    except ValueError:  # building the model refuses it
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
    sentence="No treatment: the control that every other method is compared with.",
    paper="PCT, ELODI",
    build=task_alone,
)
DROPOUT = Method(
    name="dropout",
    sentence="No treatment, except for dropout.",
    paper="ELODI",
    build=task_alone,
    options=(RATE,),
    model_spec=_with_rate,
)


def _needs(options: Options) -> Needs:
    return Needs(members=Members(count=MEMBERS.whole(options), may_be_given=True))


def _build_ensemble(setting: BuildContext) -> Objective:  # noqa: ARG001
    raise InputError(
        "Expected the members of `ensemble` to be trained separately, as runs of `none`, but got "
        "one model to train."
    )


ENSEMBLE = Method(
    name="ensemble",
    sentence="Averages the logits of several models that are trained separately.",
    paper="PCT, section 4.3",
    build=_build_ensemble,
    is_mean=True,
    options=(MEMBERS,),
    needs=_needs,
)


def _build_entropy(setting: BuildContext) -> Objective:
    from flipguard.losses import EntropyRegularizer

    alpha, regularizer = setting.number("alpha"), EntropyRegularizer(k=top_in(setting.options))

    def parts(step: Step) -> LossParts:
        return {
            "task": (1 - alpha) * task_loss(setting, step.logits, step.target),
            "entropy": alpha * regularizer(new=step.logits),
        }

    return Objective(parts=parts)


def _build_skl(setting: BuildContext) -> Objective:
    from flipguard.losses import UniformDivergence

    alpha = setting.number("alpha")
    divergence = UniformDivergence(k=top_in(setting.options), floor=setting.number("floor"))

    def parts(step: Step) -> LossParts:
        return {
            "task": (1 - alpha) * task_loss(setting, step.logits, step.target),
            "skl": -alpha * divergence(new=step.logits),
        }

    return Objective(parts=parts)


ENTROPY = Method(
    name="entropy",
    sentence="Lowers the entropy of predictions, because confident predictions flip less.",
    paper="Reproducibility, equation 6",
    build=_build_entropy,
    options=(ALPHA, TOP),
)
SKL = Method(
    name="skl",
    sentence="Pushes predictions away from uniform; like entropy, with a symmetric KL divergence.",
    paper="Reproducibility, equation 7",
    build=_build_skl,
    options=(
        replace(ALPHA, default=0.05, key_default=0.05),
        TOP,
        FLOOR,
    ),
)
