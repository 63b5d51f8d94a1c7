"""`bu-cr`: towards what the Bayesian update would answer, given both models' votes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flipguard.errors import InputError
from flipguard.methods.base import Method, Objective, Option, Parts, Setting, Step
from flipguard.methods.needs import Needs

if TYPE_CHECKING:
    from torch import Tensor, nn

COST_RATIO = Option(
    name="cost_ratio",
    default=2.5,
    sentence="How much worse a negative flip is than a positive one is good.",
)


def _build(setting: Setting) -> Objective:
    import torch

    from flipguard.losses import BayesianImitation

    (old,) = setting.olds
    old_confusion = _confusion(setting, old.model)
    term = BayesianImitation(
        old_confusion=old_confusion,
        # Before it has learned, new's vote says nothing.
        new_confusion=torch.full_like(old_confusion, 1 / setting.classes),
        cost_ratio=setting.number("cost_ratio"),
    )

    def parts(step: Step) -> Parts:
        return {"imitation": term(new=step.logits, old=step.call(old.reference))}

    def after_epoch() -> None:
        term.new_confusion.copy_(_confusion(setting, setting.model))

    return Objective(parts=parts, trained=term, after_epoch=after_epoch)


def _confusion(setting: Setting, model: nn.Module) -> Tensor:
    import torch

    from flipguard.losses import estimate_confusion
    from flipguard.models import classify

    if setting.held_out is None:
        raise InputError("Expected held-out samples to count confusions on, but got none.")
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
    sentence="Towards what a Bayesian update with a cost ratio would answer.",
    paper="ELODI, table 1; after Träuble et al., 2021",
    build=_build,
    options=(COST_RATIO,),
    needs=lambda _: Needs(old=True, one_old=True, same_classes=True, held_out=True),
)
