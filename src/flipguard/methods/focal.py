"""`naive`, `kd`, `fd-kl` and `fd-lm`: towards the old model, and more so where it is right."""

from __future__ import annotations

import dataclasses

from flipguard.methods.base import (
    WEIGHT,
    Method,
    Objective,
    Option,
    Printed,
    Revision,
    Setting,
    beside_old,
)
from flipguard.methods.needs import Needs

# PCT, section 5.1: lambda of equation 4.
PRINTED_WEIGHT = dataclasses.replace(WEIGHT, printed=Printed(value=1.0))
BASE = Option(
    name="base", default=1.0, sentence="Weight of every sample.", printed=Printed(value=1.0)
)
FOCUS = Option(
    name="focus",
    default=5.0,
    sentence="Further weight of what old gets right.",
    printed=Printed(value=5.0),
)
TEMPERATURE = Option(
    name="temperature",
    default=100.0,
    sentence="Of the softmax on both sides.",
    printed=Printed(value=100.0),
)
DIRECTION = Option(
    name="direction",
    default="forward",
    sentence="Forward is KL(old, new), reverse is KL(new, old).",
    choices=("forward", "reverse"),
    printed=Printed(
        value="reverse",
        words="KL(old, new), where PCT's equation 8 prints KL(new, old)",
        formula=True,
    ),
    added=True,
)
T_SQUARED = Option(
    name="t_squared",
    default=True,
    sentence="Multiply by the squared temperature.",
    printed=Printed(
        value=False,
        words="times the squared temperature, 10,000 at 100, which PCT's equation 8 does not have",
        formula=True,
    ),
    added=True,
)
REDUCTION = Option(
    name="class_reduction",
    default="mean",
    sentence="Mean or sum over the classes.",
    choices=("mean", "sum"),
    printed=Printed(
        value="sum",
        words="the mean over C classes is 1/C of the printed pull at the same weight",
        formula=True,
    ),
)
FILTER = Option(
    name="filter",
    default="old_right",
    sentence="What gets the focus.",
    choices=("old_right", "all", "new_wrong", "negative_flip"),
    printed=Printed(value="old_right", formula=True),
)
# Before, a sample of a class that old lacks had the weight 0.
GROWTH = Revision(
    words="samples of classes that the old model lacks get the base weight",
    where=frozenset({"new_classes"}),
)


def _build_kl(setting: Setting) -> Objective:
    from flipguard.losses import FocalDistillation

    # Plain distillation has neither option: every sample weighs the same.
    base = setting.number("base") if "base" in setting.options else 1.0
    focus = setting.number("focus") if "focus" in setting.options else 0.0
    temperature = setting.number("temperature")
    return beside_old(
        setting,
        "pull",
        lambda old: FocalDistillation(
            base,
            focus,
            distance="kl",
            temperature=temperature,
            direction=setting.word("direction"),
            t_squared=setting.word("t_squared"),
            classes=old.classes,
        ),
    )


def _build_logits(setting: Setting) -> Objective:
    from flipguard.losses import FocalDistillation

    return beside_old(
        setting,
        "pull",
        lambda old: FocalDistillation(
            setting.number("base"),
            setting.number("focus"),
            class_reduction=setting.word("class_reduction"),
            filter=setting.word("filter"),
            classes=old.classes,
        ),
    )


def _build_naive(setting: Setting) -> Objective:
    from flipguard.losses import NaiveCongruence

    return beside_old(setting, "pull", lambda old: NaiveCongruence(classes=old.classes))


NAIVE = Method(
    name="naive",
    sentence="Cross-entropy again on what old gets right.",
    paper="PCT, equation 6",
    build=_build_naive,
    options=(PRINTED_WEIGHT,),
    needs=lambda _: Needs(old=True),
)
KD = Method(
    name="kd",
    sentence="Distillation from old, on every sample alike.",
    paper="Hinton et al., 2015; for PCT take fd-kl with focus=0 and preset=paper",
    build=_build_kl,
    # Hinton et al. state this direction and this factor, but no weight and no temperature. PCT
    # names them as the source of its equation 8, but prints another direction and no factor.
    options=(
        WEIGHT,
        dataclasses.replace(TEMPERATURE, printed=None),
        dataclasses.replace(DIRECTION, printed=Printed(value="forward", formula=True)),
        dataclasses.replace(T_SQUARED, printed=Printed(value=True, formula=True)),
    ),
    needs=lambda _: Needs(old=True),
    revisions=(GROWTH,),
)
FD_KL = Method(
    name="fd-kl",
    sentence="Focal distillation of old's softened probabilities.",
    paper="PCT, equations 7 and 8",
    build=_build_kl,
    options=(PRINTED_WEIGHT, BASE, FOCUS, TEMPERATURE, DIRECTION, T_SQUARED),
    needs=lambda _: Needs(old=True),
    revisions=(GROWTH,),
)
FD_LM = Method(
    name="fd-lm",
    sentence="Focal distillation of old's logits.",
    paper="PCT, equations 7 and 9",
    build=_build_logits,
    options=(PRINTED_WEIGHT, BASE, FOCUS, REDUCTION, FILTER),
    needs=lambda _: Needs(old=True),
    revisions=(GROWTH,),
)
