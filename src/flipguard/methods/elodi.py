"""`elodi`: a student drawn to the mean logits of an ensemble of models like itself."""

from __future__ import annotations

from torch import Tensor

from flipguard.errors import InputError
from flipguard.losses import LogitDifferenceInhibition
from flipguard.methods.base import (
    Method,
    Objective,
    Old,
    Option,
    Parts,
    Printed,
    Setting,
    Step,
    over_olds,
    task,
)
from flipguard.methods.one_phase import one_phase
from flipguard.methods.views import VIEWS, VIEWS_DTYPE, VIEWS_TOP, views_of

MEMBERS = Option(
    name="members",
    default=8,
    key_default=8,
    sentence="How many models the ensemble has.",
    printed=Printed(value=8),
)
ALPHA = Option(
    name="alpha",
    default=0.8,
    key_default=0.8,
    sentence="Share of the pull in the loss.",
    printed=Printed(value=0.8),
)
TOP = Option(
    name="k",
    default=None,
    key_default=None,
    sentence="How many of the highest logits; all if none.",
    printed=Printed(value=10),
)
POWER = Option(
    name="p",
    default=2.0,
    key_default=2.0,
    sentence="Power of the difference.",
    printed=Printed(value=2.0),
)
RANK_BY = Option(
    name="rank_by",
    default="student",
    key_default="student",
    sentence="Whose logits are ranked.",
    choices=("student", "reference", "both"),
)
REDUCTION = Option(
    name="class_reduction",
    default="mean",
    key_default="mean",
    sentence="Mean or sum over the classes.",
    choices=("mean", "sum"),
    printed=Printed(
        value="sum",
        words="the mean over C classes is 1/C of the printed pull at the same alpha",
        formula=True,
    ),
)
LEGACY = Option(
    name="legacy",
    default=0.0,
    key_default=0.0,
    sentence="Share of a pull to an old model that was not trained so (equation 9).",
)


ONLINE = Option(
    name="online",
    default=True,
    key_default=True,
    sentence="Ask the ensemble at every step, on augmented inputs; else once, on plain ones.",
    printed=Printed(value=True),
)
GUIDE = Option(
    name="guide",
    default="homogeneous",
    key_default="homogeneous",
    sentence="Members like the student, given ones of any kind, or each at its best temperature.",
    choices=("homogeneous", "heterogeneous", "calibrated"),
    printed=Printed(value="homogeneous"),
)
ONE_PHASE = Option(
    name="one_phase",
    default=False,
    key_default=False,
    sentence="Train the members together with the student, in one loop; they end with it.",
    printed=Printed(value=False, words="the student follows members that are still learning"),
)
REUSE = Option(
    name="reuse",
    default=0,
    key_default=0,
    sentence="How many of the members are taken over from old's ensemble, instead of trained.",
    printed=Printed(value=0),
)


def _build(setting: Setting) -> Objective:
    if setting.members is None:
        raise InputError("Expected `elodi` to have an ensemble, but got none.")
    k, alpha, legacy = setting.options["k"], setting.number("alpha"), setting.number("legacy")
    if k is not None and (isinstance(k, bool) or not isinstance(k, int)):
        raise InputError(f"Expected `k` to be a whole number or none, but got {k!r}.")
    for name, value in (("alpha", alpha), ("legacy", legacy)):
        if not 0 <= value <= 1:
            raise InputError(f"Expected `{name}` to be a share from 0 to 1, but got {value:g}.")

    def inhibition(old: Old | None = None) -> LogitDifferenceInhibition:
        return LogitDifferenceInhibition(
            k=k,
            p=setting.number("p"),
            rank_by=setting.word("rank_by"),
            class_reduction=setting.word("class_reduction"),
            classes=None if old is None else old.classes,
        )

    to_ensemble, to_old = inhibition(), {old.name: inhibition(old) for old in setting.olds}

    def legacy_term(step: Step, old: Old) -> Tensor:
        found: Tensor = to_old[old.name](new=step.logits, reference=step.call(old.reference))
        return found

    def drawn(step: Step, says: Tensor) -> Parts:
        pull = to_ensemble(new=step.logits, reference=says)
        found = {
            "task": (1 - alpha) * task(setting, step.logits, step.target),
            "pull": alpha * (1 - legacy) * pull,
        }
        if legacy:
            found["legacy"] = alpha * legacy * over_olds(setting, legacy_term)(step)
        return found

    views = views_of(setting.options, classes=setting.classes)
    if setting.options["one_phase"]:
        return one_phase(setting, drawn)
    if views is not None:
        table = setting.views
        if table is None:
            raise InputError("Expected a way to store the ensemble's views, but got none.")
        return Objective(
            parts=lambda step: drawn(step, table(step.places)),
            views=table.views,
            # Rows of a file are read by the host, anew in every step.
            replayable=table.device is not None,
        )
    ensemble = setting.members()
    stored = None
    if not setting.options["online"]:
        if setting.stored is None:
            raise InputError("Expected a way to store the ensemble's logits, but got none.")
        stored = setting.stored(ensemble)

    def parts(step: Step) -> Parts:
        return drawn(step, step.call(ensemble) if stored is None else stored(step.places))

    return Objective(parts=parts)


ELODI = Method(
    name="elodi",
    sentence="Towards the mean logits of an ensemble of models like the new one.",
    paper="ELODI",
    build=_build,
    options=(
        MEMBERS,
        ALPHA,
        TOP,
        POWER,
        RANK_BY,
        REDUCTION,
        LEGACY,
        ONLINE,
        GUIDE,
        ONE_PHASE,
        REUSE,
        VIEWS,
        VIEWS_TOP,
        VIEWS_DTYPE,
    ),
    needs=frozenset({"members"}),
)
