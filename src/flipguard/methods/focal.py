"""`naive`, `kd`, `fd-kl` and `fd-lm`: towards the old model, and more so where it is right."""

from __future__ import annotations

from flipguard.losses import FocalDistillation, NaiveCongruence
from flipguard.methods.base import WEIGHT, Method, Objective, Option, Setting, beside_old

BASE = Option(name="base", default=1.0, sentence="Weight of every sample.")
FOCUS = Option(name="focus", default=5.0, sentence="Further weight of what old gets right.")
TEMPERATURE = Option(name="temperature", default=100.0, sentence="Of the softmax on both sides.")
REDUCTION = Option(
    name="class_reduction",
    default="mean",
    sentence="Mean or sum over the classes.",
    choices=("mean", "sum"),
)
FILTER = Option(
    name="filter",
    default="old_right",
    sentence="What gets the focus.",
    choices=("old_right", "all", "new_wrong", "negative_flip"),
)


def _build_kl(setting: Setting) -> Objective:
    # Plain distillation has neither option: every sample weighs the same.
    base = setting.number("base") if "base" in setting.options else 1.0
    focus = setting.number("focus") if "focus" in setting.options else 0.0
    temperature = setting.number("temperature")
    return beside_old(
        setting,
        "pull",
        lambda old: FocalDistillation(
            base, focus, distance="kl", temperature=temperature, classes=old.classes
        ),
    )


def _build_logits(setting: Setting) -> Objective:
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
    return beside_old(setting, "pull", lambda old: NaiveCongruence(classes=old.classes))


NAIVE = Method(
    name="naive",
    sentence="Cross-entropy again on what old gets right.",
    paper="PCT, equation 6",
    build=_build_naive,
    options=(WEIGHT,),
    needs=frozenset({"old"}),
)
KD = Method(
    name="kd",
    sentence="Distillation from old, on every sample alike.",
    paper="Hinton et al., 2015; PCT",
    build=_build_kl,
    options=(WEIGHT, TEMPERATURE),
    needs=frozenset({"old"}),
)
FD_KL = Method(
    name="fd-kl",
    sentence="Focal distillation of old's softened probabilities.",
    paper="PCT, equations 7 and 8",
    build=_build_kl,
    options=(WEIGHT, BASE, FOCUS, TEMPERATURE),
    needs=frozenset({"old"}),
)
FD_LM = Method(
    name="fd-lm",
    sentence="Focal distillation of old's logits.",
    paper="PCT, equations 7 and 9",
    build=_build_logits,
    options=(WEIGHT, BASE, FOCUS, REDUCTION, FILTER),
    needs=frozenset({"old"}),
)
