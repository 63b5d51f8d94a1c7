"""`elodi`: a student drawn to the mean logits of an ensemble of models like itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flipguard.errors import InputError
from flipguard.methods.base import (
    Method,
    Objective,
    Old,
    Option,
    Options,
    Parts,
    Printed,
    Setting,
    Step,
    number_in,
    over_olds,
    task,
    top_in,
)
from flipguard.methods.needs import Members, Needs, RunFacts
from flipguard.methods.views import VIEWS, VIEWS_DTYPE, VIEWS_TOP, Views, views_of

if TYPE_CHECKING:
    from torch import Tensor

    from flipguard.losses import LogitDifferenceInhibition
    from flipguard.references import Reference, StoredLogits

MEMBERS = Option(
    name="members",
    default=8,
    sentence="How many models the ensemble has.",
    printed=Printed(value=8),
    counts="members",
)
ALPHA = Option(
    name="alpha",
    default=0.8,
    sentence="Share of the pull in the loss.",
    printed=Printed(value=0.8),
)
TOP = Option(
    name="k",
    default=None,
    sentence="How many of the highest logits; all if none.",
    printed=Printed(value=10),
    counts="classes",
)
POWER = Option(
    name="p", default=2.0, sentence="Power of the difference.", printed=Printed(value=2.0)
)
RANK_BY = Option(
    name="rank_by",
    default="student",
    sentence="Whose logits are ranked.",
    choices=("student", "reference", "both"),
)
REDUCTION = Option(
    name="class_reduction",
    default="mean",
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
    sentence="Share of a pull to an old model that was not trained so (equation 9).",
)


ONLINE = Option(
    name="online",
    default=True,
    sentence="Ask the ensemble at every step, on augmented inputs; else once, on plain ones.",
    printed=Printed(value=True),
)
GUIDE = Option(
    name="guide",
    default="homogeneous",
    sentence="Members like the student, given ones of any kind, or each at its best temperature.",
    choices=("homogeneous", "heterogeneous", "calibrated"),
    printed=Printed(value="homogeneous"),
)
REUSE = Option(
    name="reuse",
    default=0,
    sentence="How many of the members are taken over from old's ensemble, instead of trained.",
    printed=Printed(value=0),
)


def _needs(options: Options) -> Needs:
    calibrated = GUIDE.of(options) == "calibrated"
    return Needs(
        old=bool(LEGACY.of(options)),
        members=Members(
            count=MEMBERS.whole(options),
            reused=REUSE.whole(options),
            calibrated=calibrated,
            may_be_given=True,
        ),
        held_out=calibrated,
    )


def _check(options: Options, facts: RunFacts) -> None:
    """Refuse what cannot be built, before any member is trained."""
    _shares(options)
    _inhibition(options)
    if LEGACY.of(options) and not facts.olds:
        raise InputError(
            "Expected `legacy` to be given an old run with `--old`, but got none; leave it at 0 "
            "to follow the ensemble alone."
        )
    if GUIDE.of(options) == "heterogeneous" and not facts.guides:
        raise InputError(
            "Expected a heterogeneous guide to be given as `guides`, but got none; name finished "
            "runs of other architectures."
        )
    if REUSE.of(options):
        _check_reuse(options, facts)


def _check_reuse(options: Options, facts: RunFacts) -> None:
    """Refuse members that cannot be taken over, as far as the old run says."""
    count, members, guide = REUSE.whole(options), MEMBERS.whole(options), GUIDE.of(options)
    if count > members:
        raise InputError(
            f"Expected `reuse` to be at most `members`, {members}, but got {count}; lower it, or "
            "have more members."
        )
    if facts.guides:
        raise InputError(
            "Expected `reuse` without `guides`, which are the whole ensemble, but got both; leave "
            "one of them out."
        )
    if guide != "homogeneous":
        raise InputError(
            f"Expected `reuse` with the guide 'homogeneous', but got {guide!r}; members taken over "
            "may have learned what it is calibrated on, so leave one of them out."
        )
    if len(facts.olds) != 1:
        raise InputError(
            f"Expected `reuse` to be given one `--old`, but got {len(facts.olds)}; name the run "
            "whose members are taken over."
        )
    old = facts.olds[0]
    if not old.members:
        raise InputError(
            f"Expected {old.folder} to have members to take over, but its run.json lists none; "
            "give an `--old` that was trained with members, or leave `reuse` out."
        )
    if old.members < count:
        raise InputError(
            f"Expected {old.folder} to have {count} members to take over, but it has "
            f"{old.members}; lower `reuse`."
        )


def _shares(options: Options) -> tuple[float, float]:
    """Return the shares `alpha` and `legacy`."""
    alpha, legacy = number_in(options, ALPHA.name), number_in(options, LEGACY.name)
    for name, value in ((ALPHA.name, alpha), (LEGACY.name, legacy)):
        if not 0 <= value <= 1:
            raise InputError(f"Expected `{name}` to be a share from 0 to 1, but got {value:g}.")
    return alpha, legacy


def _inhibition(options: Options, old: Old | None = None) -> LogitDifferenceInhibition:
    """Return the term that draws the student to the ensemble, or to an old model."""
    from flipguard.losses import LogitDifferenceInhibition

    rank_by: Any = options[RANK_BY.name]
    reduction: Any = options[REDUCTION.name]
    return LogitDifferenceInhibition(
        top_in(options),
        number_in(options, POWER.name),
        rank_by,
        reduction,
        classes=None if old is None else old.classes,
    )


def _build(setting: Setting) -> Objective:
    options, table = setting.options, setting.views
    alpha, legacy = _shares(options)
    to_ensemble = _inhibition(options)
    to_old = {old.name: _inhibition(options, old) for old in setting.olds}

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

    if views_of(options, classes=setting.classes) is not None:
        if table is None:
            raise InputError("Expected a way to store the ensemble's views, but got none.")
        return Objective(
            parts=lambda step: drawn(step, table(step.places)),
            views=table.views,
            # Rows of a file are read by the host, anew in every step.
            replayable=table.device is not None,
        )
    ensemble, stored = _ensemble(setting)

    def parts(step: Step) -> Parts:
        return drawn(step, step.call(ensemble) if stored is None else stored(step.places))

    return Objective(parts=parts)


def _ensemble(setting: Setting) -> tuple[Reference, StoredLogits | None]:
    """Return the ensemble, and what it says about the samples if it is asked only once."""
    if setting.members is None:
        raise InputError("Expected `elodi` to have an ensemble, but got none.")
    ensemble = setting.members()
    if ONLINE.of(setting.options):
        return ensemble, None
    if setting.stored is None:
        raise InputError("Expected a way to store the ensemble's logits, but got none.")
    return ensemble, setting.stored(ensemble)


def _views(options: Options, classes: int) -> Views | None:
    return views_of(options, classes=classes)


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
        REUSE,
        VIEWS,
        VIEWS_TOP,
        VIEWS_DTYPE,
    ),
    needs=_needs,
    check=_check,
    views=_views,
    retired={"one_phase": False},
)
