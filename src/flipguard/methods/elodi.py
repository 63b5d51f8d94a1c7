"""`elodi`: a model is trained towards the mean logits of an ensemble, which may be stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    from flipguard.references.stored_logits import StoredDtype, StoredViews


VIEWS = Option(
    name="views",
    default=None,
    key_default=None,
    sentence=(
        "Number of augmented views per sample for which the ensemble's logits are stored once; the "
        "epochs use the views in turn. Without it, the ensemble is run at every step."
    ),
    printed=Printed(value=None, words="stored logits, where ELODI asks the ensemble at every step"),
)
VIEWS_TOP = Option(
    name="views_top",
    default=None,
    key_default=None,
    sentence=(
        "Store only this many of the highest logits, and the mean of the others; without it, all "
        "logits are stored."
    ),
    printed=Printed(value=None),
)
VIEWS_DTYPE = Option(
    name="views_dtype",
    default="float16",
    key_default="float16",
    sentence="Number format of the stored logits.",
    choices=("float16", "float32"),
)
MOST_CLASSES = 2**16  # class indices are stored in two bytes

MEMBERS = Option(
    name="members",
    default=8,
    key_default=8,
    sentence="Number of models in the ensemble.",
    printed=Printed(value=8),
    counts="members",
)
ALPHA = Option(
    name="alpha",
    default=0.8,
    key_default=0.8,
    sentence="Weight of the pull to the ensemble; the task's loss has the weight 1 - alpha.",
    printed=Printed(value=0.8),
    is_weight=True,
)
TOP = Option(
    name="k",
    default=None,
    key_default=None,
    sentence="Use only this many of the highest logits; without it, all logits are used.",
    printed=Printed(value=10),
    counts="classes",
)
POWER = Option(
    name="p",
    default=2.0,
    key_default=2.0,
    sentence="Power to which the differences of logits are raised.",
    printed=Printed(value=2.0),
)
MARGIN = Option(
    name="margin",
    default=0.0,
    key_default=0.0,
    sentence="Differences of logits up to this size have no cost.",
    printed=Printed(
        value=0.0,
        words="a margin as in ELODI's ICLR version; equations 7 and 8 have none",
        formula=True,
    ),
)
RANK_BY = Option(
    name="rank_by",
    default="student",
    key_default="student",
    sentence="Model whose logits decide which `k` are the highest; reference is the ensemble.",
    choices=("student", "reference", "both"),
)
REDUCTION = Option(
    name="class_reduction",
    default="mean",
    key_default="mean",
    sentence="Take the mean or the sum over the classes.",
    choices=("mean", "sum"),
    printed=Printed(
        value="sum",
        words="the mean over C classes is 1/C of the paper's pull at the same alpha",
        weight=(
            "alpha = n a / (1 - a + n a) for a in the paper, with n classes that are used (k, or "
            "all), and the learning rate times 1 - a + n a"
        ),
        formula=True,
    ),
)
LEGACY = Option(
    name="legacy",
    default=0.0,
    key_default=0.0,
    sentence=(
        "Share of the pull that goes to the old model instead of the ensemble; for an old model "
        "that was not trained with elodi (equation 9)."
    ),
)


ONLINE = Option(
    name="online",
    default=True,
    key_default=True,
    sentence=(
        "Run the ensemble at every step, on the augmented inputs; if false, once on the inputs "
        "without augmentation."
    ),
    printed=Printed(value=True),
)
GUIDE = Option(
    name="guide",
    default="homogeneous",
    key_default="homogeneous",
    sentence=(
        "Kind of ensemble: homogeneous members have the student's architecture; heterogeneous ones "
        "are finished runs given as guides; calibrated ones each get a fitted temperature."
    ),
    choices=("homogeneous", "heterogeneous", "calibrated"),
    printed=Printed(value="homogeneous"),
)
REUSE = Option(
    name="reuse",
    default=0,
    key_default=0,
    sentence="Number of members to take from the old run's ensemble instead of training them.",
    printed=Printed(value=0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewOptions:
    """The number of stored views, and what is stored per view."""

    count: int
    top: int | None
    kept: StoredDtype


def views_of(options: Mapping[str, Scalar], *, classes: int) -> ViewOptions | None:
    """Return the checked options of stored views, or None if no views are stored."""
    count, top = options.get("views"), options.get("views_top")
    kept = cast("StoredDtype", options.get("views_dtype", VIEWS_DTYPE.default))
    if count is None:
        for name, text in (("views_top", top), ("views_dtype", kept)):
            if text not in (None, VIEWS_DTYPE.default):
                raise InputError(
                    f"Expected `{name}` together with `views`, but got it alone; set `views`, or "
                    f"leave `{name}` out."
                )
        return None
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InputError(
            f"Expected `views` to be a whole number of at least 1 or none, but got {count!r}."
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
    """Raise an error for options that cannot be used, before any member is trained."""
    _shares(options)
    _inhibition(options)
    if LEGACY.of(options) and not facts.olds:
        raise InputError(
            "Expected an old run for `legacy`, but got none; name one with `old=`, or leave "
            "`legacy` at 0 to follow the ensemble alone."
        )
    if GUIDE.of(options) == "heterogeneous" and not facts.guides:
        raise InputError(
            "Expected `guides` for the option guide=heterogeneous, but got none; name finished "
            "runs of other architectures."
        )
    if REUSE.of(options):
        _check_reuse(options, facts)


def _check_reuse(options: Options, facts: RunFacts) -> None:
    """Raise an error if the old run has no members that can be reused."""
    count, members, guide = REUSE.whole(options), MEMBERS.whole(options), GUIDE.of(options)
    if count > members:
        raise InputError(
            f"Expected `reuse` to be at most `members`, {members}, but got {count}; lower "
            "`reuse`, or raise `members`."
        )
    if facts.guides:
        raise InputError(
            "Expected `reuse` without `guides`, which are the whole ensemble, but got both; leave "
            "one of them out."
        )
    if guide != "homogeneous":
        raise InputError(
            f"Expected guide=homogeneous with `reuse`, but got {guide!r}; reused members may have "
            "been trained on the samples that calibration needs, so leave one of them out."
        )
    if len(facts.olds) != 1:
        raise InputError(
            f"Expected one `old=` with `reuse`, but got {len(facts.olds)}; name the run whose "
            "members are reused."
        )
    old = facts.olds[0]
    if not old.members:
        raise InputError(
            f"Expected {old.folder} to have members to reuse, but its run.json lists none; "
            "give an `old=` that was trained with members, or leave `reuse` out."
        )
    if old.members < count:
        raise InputError(
            f"Expected {old.folder} to have {count} members to reuse, but it has "
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
    """Return the loss that pulls the student to the ensemble, or to an old model."""
    from flipguard.losses import LogitDifferenceInhibition

    rank_by: Any = options[RANK_BY.name]
    reduction: Any = options[REDUCTION.name]
    return LogitDifferenceInhibition(
        k=top_in(options),
        p=number_in(options, POWER.name),
        margin=number_in(options, MARGIN.name),
        rank_by=rank_by,
        class_reduction=reduction,
        classes=None if old is None else old.classes,
    )


def _build(setting: BuildContext) -> Objective:
    options = setting.options
    alpha, legacy = _shares(options)
    to_ensemble = _inhibition(options)
    to_old = {old.name: _inhibition(options, old) for old in setting.olds}
    table = _views_table(setting)
    ensemble_logits = _ensemble_logits(setting, table)

    def legacy_term(step: Step, old: OldModelInfo) -> Tensor:
        found: Tensor = to_old[old.name](new=step.logits, reference=step.call(old.reference))
        return found

    def parts(step: Step) -> LossParts:
        pull = to_ensemble(new=step.logits, reference=ensemble_logits(step))
        found = {
            "task": (1 - alpha) * task_loss(setting, step.logits, step.target),
            "pull": alpha * (1 - legacy) * pull,
        }
        if legacy:
            found["legacy"] = alpha * legacy * mean_over_old_models(setting, legacy_term)(step)
        return found

    return Objective(
        parts=parts,
        views=None if table is None else table.views,
        # Rows of a file are read by the CPU in every step, so such steps cannot be replayed.
        replayable=table is None or table.device is not None,
    )


def _views_table(setting: BuildContext) -> StoredViews | None:
    """Return the stored views of the ensemble's logits, or None if no views are stored."""
    if views_of(setting.options, classes=setting.classes) is None:
        return None
    if setting.views is None:
        raise InputError("Expected a way to store the ensemble's views, but got none.")
    return setting.views


def _ensemble_logits(setting: BuildContext, table: StoredViews | None) -> Callable[[Step], Tensor]:
    """Return a function that computes the ensemble's logits for a step, or looks them up."""
    if table is not None:
        return lambda step: table(step.places)
    if setting.members is None:
        raise InputError("Expected `elodi` to have an ensemble, but got none.")
    ensemble = setting.members()
    if ONLINE.of(setting.options):
        return lambda step: step.call(ensemble)
    if setting.stored is None:
        raise InputError("Expected a way to store the ensemble's logits, but got none.")
    stored = setting.stored(ensemble)
    return lambda step: stored(step.places)


def _views(options: Options, classes: int) -> ViewOptions | None:
    return views_of(options, classes=classes)


ELODI = Method(
    name="elodi",
    sentence="Pulls the new model to the mean logits of an ensemble of models like it.",
    paper="ELODI",
    build=_build,
    options=(
        MEMBERS,
        ALPHA,
        TOP,
        POWER,
        MARGIN,
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
