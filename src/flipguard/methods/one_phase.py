"""`elodi` in one phase: the ensemble learns beside the student that is drawn to it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flipguard.errors import InputError
from flipguard.methods.base import Objective, Parts, Setting, Step

SUM = "members_sum"


def one_phase(setting: Setting, drawn: Callable[[Step, Tensor], Parts]) -> Objective:
    """Members that learn the task on the student's batches, and a student drawn to their mean.

    Args:
        setting: What the objective is built from.
        drawn: The student's loss, given what the ensemble says.

    One pass of the members serves for both. So they answer as they learn, with batch normalisation
    by the batch's own statistics and with dropout; a second pass, in eval mode, would cost a third
    of their training more.
    """
    if setting.companions is None:
        raise InputError("Expected `one_phase` to be given members to train along, but got none.")
    members = setting.companions(int(setting.number("members")))

    def parts(step: Step) -> Parts:
        logits = members(step.inputs)
        learned = F.cross_entropy(
            logits.flatten(0, 1),
            step.target.repeat(members.count),
            label_smoothing=setting.label_smoothing,
            reduction="sum",
        )
        # A sum over the members of each one's mean: with a mean over them as well, each would
        # learn at a fraction of the rate that it has alone.
        return {**drawn(step, mean_of(logits)), SUM: learned / len(step.target)}

    def decays(parameter: nn.Parameter) -> bool:
        return parameter.dim() > 1 and members.decays(parameter)

    return Objective(
        parts=parts,
        trained=members,
        decays=decays,
        facts={"companions": {"count": members.count, "way": members.way}},
    )


def mean_of(logits: Tensor) -> Tensor:
    """The members' mean logits, which give no gradient, summed as `Ensemble` does."""
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return logits.detach().to(wide).mean(0)
