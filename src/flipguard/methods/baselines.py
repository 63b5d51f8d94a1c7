"""`bct`, `ract` and `bu-cr`: published methods of backward compatibility."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flipguard.errors import InputError
from flipguard.methods.base import WEIGHT, Method, Option, Printed, Revision
from flipguard.methods.needs import Needs
from flipguard.methods.objective import BuildContext, LossParts, Objective, Step, task_plus_term

if TYPE_CHECKING:
    from torch import Tensor, nn


TEMPERATURE = Option(
    name="temperature",
    default=0.05,
    key_default=0.05,
    sentence="Temperature that the similarities of features are divided by.",
    printed=Printed(value=0.05),
)
# Earlier, the gradient of the projection, which maps features to another width, was clipped
# together with the student's gradient.
CLIPPING = Revision(
    words="clipping per model",
    where=frozenset({"clip", "other_model"}),
)

COST_RATIO = Option(
    name="cost_ratio",
    default=2.5,
    key_default=2.5,
    sentence="Cost of a negative flip, relative to the gain from a positive flip.",
)


def _build_bct(setting: BuildContext) -> Objective:
    from flipguard.losses import BackwardCompatible
    from flipguard.models import head_of

    (old,) = setting.olds
    term = BackwardCompatible(head_of(old.model), width=head_of(setting.model).in_features)

    def pull(step: Step) -> Tensor:
        found: Tensor = term(new_features=_features(step), target=step.target)
        return found

    objective = task_plus_term(setting, "compatible", pull)
    objective.trained, objective.needs_features = term, True
    return objective


def _build_ract(setting: BuildContext) -> Objective:
    import torch

    from flipguard.losses import RegressionAlleviating
    from flipguard.models import head_of, with_features

    (old,) = setting.olds
    term = RegressionAlleviating(
        setting.number("temperature"),
        width=head_of(setting.model).in_features,
        old_width=head_of(old.model).in_features,
    )
    seen_by_old = with_features(old.model)  # stays in eval mode

    def pull(step: Step) -> Tensor:
        with torch.no_grad():
            old_features = seen_by_old(step.inputs).features
        found: Tensor = term(
            new_features=_features(step), old_features=old_features, target=step.target
        )
        return found

    objective = task_plus_term(setting, "compatible", pull)
    objective.trained, objective.needs_features = term, True
    return objective


def _features(step: Step) -> Tensor:
    if step.features is None:
        raise InputError("Expected the model to return features, but got none.")
    return step.features


BCT = Method(
    name="bct",
    sentence="Adds the loss of the old model's classifier on the new model's features.",
    paper="BCT, Shen et al., 2020; ELODI, table 1",
    build=_build_bct,
    options=(WEIGHT,),
    needs=lambda _: Needs(old=True, one_old=True, same_classes=True),
    revisions=(CLIPPING,),
)
RACT = Method(
    name="ract",
    sentence=(
        "Pulls each new feature to the old model's feature of the same sample, and away from those "
        "of other classes."
    ),
    paper="RACT, Zhang et al., 2022; ELODI, table 1",
    build=_build_ract,
    options=(WEIGHT, TEMPERATURE),
    needs=lambda _: Needs(old=True, one_old=True),
    revisions=(CLIPPING,),
)


def _build(setting: BuildContext) -> Objective:
    import torch

    from flipguard.losses import BayesianImitation

    (old,) = setting.olds
    old_confusion = _confusion(setting, old.model)
    term = BayesianImitation(
        old_confusion=old_confusion,
        # Before training, the new model's predictions carry no information.
        new_confusion=torch.full_like(old_confusion, 1 / setting.classes),
        cost_ratio=setting.number("cost_ratio"),
    )

    def parts(step: Step) -> LossParts:
        return {"imitation": term(new=step.logits, old=step.call(old.reference))}

    def after_epoch() -> None:
        term.new_confusion.copy_(_confusion(setting, setting.model))

    return Objective(parts=parts, trained=term, after_epoch=after_epoch)


def _confusion(setting: BuildContext, model: nn.Module) -> Tensor:
    import torch

    from flipguard.losses import estimate_confusion
    from flipguard.models import classify

    if setting.held_out is None:
        raise InputError(
            "Expected held-out samples to estimate the confusion matrix, but got none."
        )
    training = model.training
    model.eval()
    with torch.no_grad():
        votes = [
            (classify(model, inputs).argmax(-1), target) for inputs, target in setting.held_out()
        ]
    model.train(training)
    predicted, target = (torch.cat(parts) for parts in zip(*votes, strict=True))
    return estimate_confusion(predicted=predicted, target=target, classes=setting.classes)


BU_CR = Method(
    name="bu-cr",
    sentence=(
        "Trains on the predictions of a Bayesian update, which corrects the old prediction only if "
        "the expected gain exceeds the cost of a negative flip."
    ),
    paper="ELODI, table 1; after Träuble et al., 2021",
    build=_build,
    options=(COST_RATIO,),
    needs=lambda _: Needs(old=True, one_old=True, same_classes=True, held_out=True),
)
