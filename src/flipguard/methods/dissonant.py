"""`new-error`, `strict-imitation` and `muscle`: other ways to weigh what old says."""

from __future__ import annotations

from flipguard.methods.base import WEIGHT, Method, Objective, Option, Setting, beside_old
from flipguard.methods.focal import GROWTH
from flipguard.methods.needs import Needs


def _build_new_error(setting: Setting) -> Objective:
    from flipguard.losses import NewError

    return beside_old(setting, "dissonance", lambda old: NewError(classes=old.classes))


def _build_strict_imitation(setting: Setting) -> Objective:
    from flipguard.losses import StrictImitation

    return beside_old(setting, "dissonance", lambda old: StrictImitation(classes=old.classes))


def _build_muscle(setting: Setting) -> Objective:
    from flipguard.losses import Muscle

    temperature = setting.number("temperature")
    return beside_old(setting, "pull", lambda old: Muscle(temperature, classes=old.classes))


NEW_ERROR = Method(
    name="new-error",
    sentence="New's loss once more on what old gets right.",
    paper="Bansal et al., 2019",
    build=_build_new_error,
    options=(WEIGHT,),
    needs=lambda _: Needs(old=True),
)
STRICT_IMITATION = Method(
    name="strict-imitation",
    sentence="Old's probabilities, where old is right.",
    paper="Bansal et al., 2019",
    build=_build_strict_imitation,
    options=(WEIGHT,),
    needs=lambda _: Needs(old=True),
)
MUSCLE = Method(
    name="muscle",
    sentence="Towards old where the new model is wrong.",
    paper="MUSCLE, Echterhoff et al., 2024",
    build=_build_muscle,
    options=(WEIGHT, Option(name="temperature", default=1.0, sentence="Of the softmax.")),
    needs=lambda _: Needs(old=True),
    unlike=("no pull on samples that new gets right; the paper pulls them towards a control",),
    revisions=(GROWTH,),
)
