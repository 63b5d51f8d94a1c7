"""`label-mix`: targets mixed with old's predictions, for any learner that takes soft targets."""

from __future__ import annotations

from flipguard.methods.base import Method, Objective, Option, Parts, Revision, Setting, Step
from flipguard.methods.needs import Needs

SHARE = Option(name="share", default=0.5, sentence="Share of old's prediction in the target.")


def _build(setting: Setting) -> Objective:
    import torch
    import torch.nn.functional as F

    from flipguard.losses.classes import shared_scores
    from flipguard.losses.inputs import computed

    share = setting.number("share")
    (old,) = setting.olds

    def parts(step: Step) -> Parts:
        _, scores = shared_scores(step.logits, step.call(old.reference), old.classes)
        says = torch.softmax(computed(scores), -1)
        mixture = F.one_hot(step.target, setting.classes).to(says.dtype)
        if old.classes is not None:  # old's share of classes that it lacks is 0
            places = old.classes.on(mixture.device).shared_new
            says = torch.zeros_like(mixture).index_copy_(-1, places, says)
        mixed = (1 - share) * mixture + share * says
        return {
            "task": F.cross_entropy(step.logits, mixed, label_smoothing=setting.label_smoothing)
        }

    return Objective(parts=parts)


LABEL_MIX = Method(
    name="label-mix",
    sentence="Targets mixed with old's predictions.",
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
