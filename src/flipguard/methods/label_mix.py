"""`label-mix`: targets mixed with old's predictions, for any learner that takes soft targets."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from flipguard.losses.inputs import computed
from flipguard.methods.base import Method, Objective, Option, Parts, Setting, Step

SHARE = Option(name="share", default=0.5, sentence="Share of old's prediction in the target.")


def _build(setting: Setting) -> Objective:
    share = setting.number("share")
    (old,) = setting.olds

    def parts(step: Step) -> Parts:
        says = torch.softmax(computed(step.call(old.reference)), -1)
        mixture = F.one_hot(step.target, setting.classes).to(says.dtype)
        if old.classes is not None:
            spread = torch.zeros_like(mixture)
            positions = old.classes.on(mixture.device)
            spread.index_copy_(-1, positions.shared_new, says[..., positions.shared_old])
            # A sample of a class that old lacks keeps its target.
            known = positions.known[step.target].unsqueeze(-1)
            says = torch.where(known, spread / spread.sum(-1, keepdim=True), mixture)
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
    needs=frozenset({"old", "one_old"}),
)
