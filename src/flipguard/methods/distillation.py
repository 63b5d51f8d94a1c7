"""Methods that train on the old model's predictions, from `naive` and `kd` to `label-mix`."""

from __future__ import annotations

import dataclasses

from flipguard.methods.base import WEIGHT, Method, Option, Printed, Revision
from flipguard.methods.needs import Needs
from flipguard.methods.objective import BuildContext, LossParts, Objective, Step, pull_to_old

# PCT, section 5.1: the lambda of equation 4.
PRINTED_WEIGHT = dataclasses.replace(WEIGHT, printed=Printed(value=1.0))
BASE = Option(
    name="base",
    default=1.0,
    key_default=1.0,
    sentence="Weight of every sample in the distillation term.",
    printed=Printed(value=1.0),
)
FOCUS = Option(
    name="focus",
    default=5.0,
    key_default=5.0,
    sentence="Extra weight of focused samples; by default those that the old model gets right.",
    printed=Printed(value=5.0),
)
TEMPERATURE = Option(
    name="temperature",
    default=100.0,
    key_default=100.0,
    sentence="Softmax temperature of both models.",
    printed=Printed(value=100.0),
)
DIRECTION = Option(
    name="direction",
    default="forward",
    key_default="forward",
    sentence="Direction of the divergence: forward is KL(old, new), reverse is KL(new, old).",
    choices=("forward", "reverse"),
    printed=Printed(
        value="reverse",
        words="KL(old, new), where PCT's equation 8 prints KL(new, old)",
        formula=True,
    ),
)
T_SQUARED = Option(
    name="t_squared",
    default=True,
    key_default=True,
    sentence="Multiply the divergence by the squared temperature.",
    printed=Printed(
        value=False,
        words="times the squared temperature, 10,000 at 100, which PCT's equation 8 does not have",
        weight=(
            "weight = w / T^2 for w in the paper, with the temperature T; the direction changes "
            "the pull by little at T = 100"
        ),
        formula=True,
    ),
)
REDUCTION = Option(
    name="class_reduction",
    default="mean",
    key_default="mean",
    sentence="Take the mean or the sum over the classes.",
    choices=("mean", "sum"),
    printed=Printed(
        value="sum",
        words="the mean over C classes is 1/C of the paper's pull at the same weight",
        weight="weight = C w for w in the paper, with C classes",
        formula=True,
    ),
)
FILTER = Option(
    name="filter",
    default="old_right",
    key_default="old_right",
    sentence="Samples that get the extra weight `focus`.",
    choices=("old_right", "all", "new_wrong", "negative_flip"),
    printed=Printed(value="old_right", formula=True),
)
# Earlier, samples of a class that the old model lacks had the weight 0.
GROWTH = Revision(
    words="samples of classes that the old model lacks get the base weight",
    where=frozenset({"new_classes"}),
)

SHARE = Option(
    name="share",
    default=0.5,
    key_default=0.5,
    sentence="Share of the old model's prediction in the target.",
)


def _build_kl(setting: BuildContext) -> Objective:
    from flipguard.losses import FocalDistillation

    # Plain distillation has neither option: every sample weighs the same.
    base = setting.number("base") if "base" in setting.options else 1.0
    focus = setting.number("focus") if "focus" in setting.options else 0.0
    temperature = setting.number("temperature")
    return pull_to_old(
        setting,
        "pull",
        lambda old: FocalDistillation(
            base=base,
            focus=focus,
            distance="kl",
            temperature=temperature,
            direction=setting.word("direction"),
            t_squared=setting.word("t_squared"),
            classes=old.classes,
        ),
    )


def _build_logits(setting: BuildContext) -> Objective:
    from flipguard.losses import FocalDistillation

    return pull_to_old(
        setting,
        "pull",
        lambda old: FocalDistillation(
            base=setting.number("base"),
            focus=setting.number("focus"),
            class_reduction=setting.word("class_reduction"),
            filter=setting.word("filter"),
            classes=old.classes,
        ),
    )


def _build_naive(setting: BuildContext) -> Objective:
    from flipguard.losses import NaiveCongruence

    return pull_to_old(setting, "pull", lambda old: NaiveCongruence(classes=old.classes))


NAIVE = Method(
    name="naive",
    sentence="Adds a second cross-entropy on the samples that the old model gets right.",
    paper="PCT, equation 6",
    build=_build_naive,
    options=(PRINTED_WEIGHT,),
    needs=lambda _: Needs(old=True),
)
KD = Method(
    name="kd",
    sentence="Distils the old model, with the same weight for every sample.",
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
    sentence="Distils the old model's probabilities, mostly where the old model is right.",
    paper="PCT, equations 7 and 8",
    build=_build_kl,
    options=(PRINTED_WEIGHT, BASE, FOCUS, TEMPERATURE, DIRECTION, T_SQUARED),
    needs=lambda _: Needs(old=True),
    revisions=(GROWTH,),
)
FD_LM = Method(
    name="fd-lm",
    sentence="Distils the old model's logits, mostly where the old model is right.",
    paper="PCT, equations 7 and 9",
    build=_build_logits,
    options=(PRINTED_WEIGHT, BASE, FOCUS, REDUCTION, FILTER),
    needs=lambda _: Needs(old=True),
    revisions=(GROWTH,),
)


def _build_new_error(setting: BuildContext) -> Objective:
    from flipguard.losses import NewError

    return pull_to_old(setting, "dissonance", lambda old: NewError(classes=old.classes))


def _build_strict_imitation(setting: BuildContext) -> Objective:
    from flipguard.losses import StrictImitation

    return pull_to_old(setting, "dissonance", lambda old: StrictImitation(classes=old.classes))


def _build_muscle(setting: BuildContext) -> Objective:
    from flipguard.losses import Muscle

    temperature = setting.number("temperature")
    return pull_to_old(
        setting, "pull", lambda old: Muscle(temperature=temperature, classes=old.classes)
    )


NEW_ERROR = Method(
    name="new-error",
    sentence="Adds the new model's loss again, on the samples that the old model gets right.",
    paper="Bansal et al., 2019",
    build=_build_new_error,
    options=(WEIGHT,),
    needs=lambda _: Needs(old=True),
)
STRICT_IMITATION = Method(
    name="strict-imitation",
    sentence="Pulls to the old model's probabilities on the samples that the old model gets right.",
    paper="Bansal et al., 2019",
    build=_build_strict_imitation,
    options=(WEIGHT,),
    needs=lambda _: Needs(old=True),
)
MUSCLE = Method(
    name="muscle",
    sentence="Pulls to the old model's probabilities on the samples that the new model gets wrong.",
    paper="MUSCLE, Echterhoff et al., 2024",
    build=_build_muscle,
    options=(
        WEIGHT,
        Option(
            name="temperature",
            default=1.0,
            key_default=1.0,
            sentence="Softmax temperature of both models.",
        ),
    ),
    needs=lambda _: Needs(old=True),
    unlike=("no pull on samples that new gets right; the paper pulls them towards a control",),
    revisions=(GROWTH,),
)


def _build(setting: BuildContext) -> Objective:
    import torch
    import torch.nn.functional as F

    from flipguard.losses.base import loss_precision
    from flipguard.losses.classes import shared_scores

    share = setting.number("share")
    (old,) = setting.olds

    def parts(step: Step) -> LossParts:
        _, scores = shared_scores(step.logits, step.call(old.reference), old.classes)
        says = torch.softmax(loss_precision(scores), -1)
        mixture = F.one_hot(step.target, setting.classes).to(says.dtype)
        if old.classes is not None:  # the old model gives 0 to classes that it lacks
            places = old.classes.on(mixture.device).shared_new
            says = torch.zeros_like(mixture).index_copy_(-1, places, says)
        mixed = (1 - share) * mixture + share * says
        return {
            "task": F.cross_entropy(step.logits, mixed, label_smoothing=setting.label_smoothing)
        }

    return Objective(parts=parts)


LABEL_MIX = Method(
    name="label-mix",
    sentence="Trains on a mixture of the true label and the old model's probabilities.",
    paper="Jiang et al., 2022; Cormier et al., 2016",
    build=_build,
    options=(SHARE,),
    needs=lambda _: Needs(old=True, one_old=True),
    revisions=(
        Revision(
            words="samples of classes that the old model lacks are mixed like all others",
            where=frozenset({"new_classes"}),
        ),
    ),
)
