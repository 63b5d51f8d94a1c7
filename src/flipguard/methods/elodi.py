"""`elodi`: a student drawn to the mean logits of an ensemble, and its stored views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from flipguard.errors import InputError
from flipguard.methods.base import Method, Option, Options, Printed, Scalar
from flipguard.methods.needs import Members, Needs, RunFacts
from flipguard.methods.objective import (
    BuildContext,
    LossParts,
    Objective,
    OldModelInfo,
    Step,
    mean_over_old_models,
    number_in,
    task_loss,
    top_in,
)

if TYPE_CHECKING:
    from torch import Tensor

    from flipguard.losses import LogitDifferenceInhibition
    from flipguard.references import Reference, StoredLogits
    from flipguard.references.stored_logits import StoredDtype


VIEWS = Option(
    name="views",
    default=None,
    key_default=None,
    sentence=(
        "Store the ensemble's logits for so many augmented views of every sample, which the epochs "
        "take in turn (one view where nothing is augmented); ask at every step if none."
    ),
    printed=Printed(value=None, words="stored logits, where ELODI asks the ensemble at every step"),
)
VIEWS_TOP = Option(
    name="views_top",
    default=None,
    key_default=None,
    sentence="Store so many of the highest logits, and the mean of the others; all if none.",
    printed=Printed(value=None),
)
VIEWS_DTYPE = Option(
    name="views_dtype",
    default="float16",
    key_default="float16",
    sentence="How exact stored logits are.",
    choices=("float16", "float32"),
)
MOST_CLASSES = 2**16  # that two bytes can name

MEMBERS = Option(
    name="members",
    default=8,
    key_default=8,
    sentence="How many models the ensemble has.",
    printed=Printed(value=8),
    counts="members",
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
    counts="classes",
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
REUSE = Option(
    name="reuse",
    default=0,
    key_default=0,
    sentence="How many of the members are taken over from old's ensemble, instead of trained.",
    printed=Printed(value=0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewOptions:
    """How many views are stored, and what of each."""

    count: int
    top: int | None
    kept: StoredDtype


def views_of(options: Mapping[str, Scalar], *, classes: int) -> ViewOptions | None:
    """What options say about stored views, checked; None if none are to be stored."""
    count, top = options.get("views"), options.get("views_top")
    kept = cast("StoredDtype", options.get("views_dtype", VIEWS_DTYPE.default))
    if count is None:
        for name, told in (("views_top", top), ("views_dtype", kept)):
            if told not in (None, VIEWS_DTYPE.default):
                raise InputError(
                    f"Expected `{name}` beside `views`, but got it alone; say how many `views` are "
                    "stored, or leave it out."
                )
        return None
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InputError(
            f"Expected `views` to be a whole number from 1 on or none, but got {count!r}."
        )
    if not options.get("online", True):
        raise InputError(
            "Expected `views` with an ensemble that sees augmented inputs, but got `online=false`; "
            "leave one of them out."
        )
    if top is not None:
        if isinstance(top, bool) or not isinstance(top, int) or not 1 <= top < classes:
            raise InputError(
                f"Expected `views_top` to be a whole number from 1 to {classes - 1} or none, but "
                f"got {top!r}; leave it out to store the logits of all {classes} classes."
            )
        if kept == "float16" and classes > MOST_CLASSES:
            raise InputError(
                f"Expected `views_top` in float16 with up to {MOST_CLASSES:,} classes, but got "
                f"{classes:,}; set `views_dtype=float32`."
            )
    return ViewOptions(count=count, top=top, kept=kept)


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


def _inhibition(options: Options, old: OldModelInfo | None = None) -> LogitDifferenceInhibition:
    """Return the term that draws the student to the ensemble, or to an old model."""
    from flipguard.losses import LogitDifferenceInhibition

    rank_by: Any = options[RANK_BY.name]
    reduction: Any = options[REDUCTION.name]
    return LogitDifferenceInhibition(
        k=top_in(options),
        p=number_in(options, POWER.name),
        rank_by=rank_by,
        class_reduction=reduction,
        classes=None if old is None else old.classes,
    )


def _build(setting: BuildContext) -> Objective:
    options, table = setting.options, setting.views
    alpha, legacy = _shares(options)
    to_ensemble = _inhibition(options)
    to_old = {old.name: _inhibition(options, old) for old in setting.olds}

    def legacy_term(step: Step, old: OldModelInfo) -> Tensor:
        found: Tensor = to_old[old.name](new=step.logits, reference=step.call(old.reference))
        return found

    def drawn(step: Step, says: Tensor) -> LossParts:
        pull = to_ensemble(new=step.logits, reference=says)
        found = {
            "task": (1 - alpha) * task_loss(setting, step.logits, step.target),
            "pull": alpha * (1 - legacy) * pull,
        }
        if legacy:
            found["legacy"] = alpha * legacy * mean_over_old_models(setting, legacy_term)(step)
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

    def parts(step: Step) -> LossParts:
        return drawn(step, step.call(ensemble) if stored is None else stored(step.places))

    return Objective(parts=parts)


def _ensemble(setting: BuildContext) -> tuple[Reference, StoredLogits | None]:
    """Return the ensemble, and what it says about the samples if it is asked only once."""
    if setting.members is None:
        raise InputError("Expected `elodi` to have an ensemble, but got none.")
    ensemble = setting.members()
    if ONLINE.of(setting.options):
        return ensemble, None
    if setting.stored is None:
        raise InputError("Expected a way to store the ensemble's logits, but got none.")
    return ensemble, setting.stored(ensemble)


def _views(options: Options, classes: int) -> ViewOptions | None:
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
