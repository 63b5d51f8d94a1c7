"""`bct` and `ract`: features that work with what was built on the old ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flipguard.errors import InputError
from flipguard.methods.base import (
    WEIGHT,
    Method,
    Objective,
    Option,
    Printed,
    Revision,
    Setting,
    Step,
    with_task,
)
from flipguard.methods.needs import Needs

if TYPE_CHECKING:
    from torch import Tensor

TEMPERATURE = Option(
    name="temperature",
    default=0.05,
    sentence="Of the similarities.",
    printed=Printed(value=0.05),
)
# Before, the gradient of the projection, which maps features to another width, was clipped together
# with the student's.
CLIPPING = Revision(
    words="clipping per model",
    where=frozenset({"clip", "other_model"}),
)


def _build_bct(setting: Setting) -> Objective:
    from flipguard.losses import BackwardCompatible
    from flipguard.models import head_of

    (old,) = setting.olds
    term = BackwardCompatible(head_of(old.model), width=head_of(setting.model).in_features)

    def pull(step: Step) -> Tensor:
        found: Tensor = term(new_features=_features(step), target=step.target)
        return found

    objective = with_task(setting, "compatible", pull)
    objective.trained, objective.needs_features = term, True
    return objective


def _build_ract(setting: Setting) -> Objective:
    import torch

    from flipguard.losses import RegressionAlleviating
    from flipguard.models import head_of, with_features

    (old,) = setting.olds
    term = RegressionAlleviating(
        setting.number("temperature"),
        width=head_of(setting.model).in_features,
        old_width=head_of(old.model).in_features,
    )
    seen_by_old = with_features(old.model)  # which is in eval mode, and stays so

    def pull(step: Step) -> Tensor:
        with torch.no_grad():
            old_features = seen_by_old(step.inputs).features
        found: Tensor = term(
            new_features=_features(step), old_features=old_features, target=step.target
        )
        return found

    objective = with_task(setting, "compatible", pull)
    objective.trained, objective.needs_features = term, True
    return objective


def _features(step: Step) -> Tensor:
    if step.features is None:
        raise InputError("Expected the model to give features, but got none.")
    return step.features


BCT = Method(
    name="bct",
    sentence="Old's classifier must work on new's features.",
    paper="BCT, Shen et al., 2020; ELODI, table 1",
    build=_build_bct,
    options=(WEIGHT,),
    needs=lambda _: Needs(old=True, one_old=True, same_classes=True),
    revisions=(CLIPPING,),
)
RACT = Method(
    name="ract",
    sentence="New features near their own old ones, and far from other classes'.",
    paper="RACT, Zhang et al., 2022; ELODI, table 1",
    build=_build_ract,
    options=(WEIGHT, TEMPERATURE),
    needs=lambda _: Needs(old=True, one_old=True),
    revisions=(CLIPPING,),
)
