"""`l2-sp`, `ewc` and `mixout`: fine-tuning that stays close to the old model's weights."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from flipguard.errors import InputError
from flipguard.methods.base import Method, Option
from flipguard.methods.needs import Needs
from flipguard.methods.objective import (
    BuildContext,
    LossParts,
    Objective,
    Step,
    task_alone,
    task_loss,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from flipguard.models import Inputs

STRENGTH = Option(
    name="strength",
    default=0.01,
    key_default=0.01,
    sentence="Strength of the pull to the old model's weights.",
    is_weight=True,
)


def _anchors(setting: BuildContext) -> dict[str, Tensor]:
    """Return copies of the old model's weights by name."""
    (old,) = setting.olds
    return {name: p.detach().clone() for name, p in old.model.named_parameters()}


def _distance(model: nn.Module, anchors: dict[str, Tensor], by: dict[str, Tensor] | None) -> Tensor:
    """Return half the squared distance of a model's weights from the anchors.

    With `by`, squared differences are weighted by it. Moves the anchors to the model's device.
    """
    total: Tensor | None = None
    for name, parameter in model.named_parameters():
        anchor = anchors[name] = anchors[name].to(parameter.device)
        squared = (parameter - anchor).square()
        if by is not None:
            weight = by[name] = by[name].to(parameter.device)
            squared = squared * weight
        total = squared.sum() if total is None else total + squared.sum()
    if total is None:
        raise InputError("Expected the model to have parameters, but got none.")
    return total / 2


def _build_l2_sp(setting: BuildContext) -> Objective:
    anchors, strength = _anchors(setting), setting.number("strength")

    def parts(step: Step) -> LossParts:
        return {
            "task": task_loss(setting, step.logits, step.target),
            "distance": strength * _distance(setting.model, anchors, None),
        }

    return Objective(parts=parts)


def _build_ewc(setting: BuildContext) -> Objective:
    anchors, strength = _anchors(setting), setting.number("strength")
    importance = _fisher(setting, samples=int(setting.number("samples")))

    def parts(step: Step) -> LossParts:
        return {
            "task": task_loss(setting, step.logits, step.target),
            "distance": strength * _distance(setting.model, anchors, importance),
        }

    return Objective(parts=parts)


def _fisher(setting: BuildContext, *, samples: int) -> dict[str, Tensor]:
    """Return the diagonal of the old model's Fisher information.

    Labels are drawn from the old model's own predictions.
    """
    import torch
    from torch import Tensor

    (old,) = setting.olds
    if setting.held_out is None:
        raise InputError(
            "Expected held-out samples to measure the importance of weights, but got none."
        )
    model = old.model  # in eval mode and frozen, so copies of its weights are differentiated
    weights = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    found = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    drawn = torch.Generator().manual_seed(0)
    seen = 0
    for inputs, _ in setting.held_out():
        if not isinstance(inputs, Tensor):
            raise InputError(
                "Expected vectors or images for `ewc`, but got texts; use l2-sp or mixout."
            )
        for one in inputs[: samples - seen]:
            logits = torch.func.functional_call(model, weights, (one.unsqueeze(0),))
            log_p = torch.log_softmax(logits, -1)[0]
            label = torch.multinomial(log_p.detach().exp().cpu(), 1, generator=drawn)
            slopes = torch.autograd.grad(log_p[int(label)], list(weights.values()))
            for name, slope in zip(weights, slopes, strict=True):
                found[name] += slope.square()
            seen += 1
    return {name: total / max(seen, 1) for name, total in found.items()}


L2_SP = Method(
    name="l2-sp",
    sentence="Fine-tunes the old model, with a pull to its weights.",
    paper="L2-SP, Li et al., 2018",
    build=_build_l2_sp,
    options=(STRENGTH,),
    needs=lambda _: Needs(old=True, one_old=True, same_layout=True),
)
EWC = Method(
    name="ewc",
    sentence="Like l2-sp, with a stronger pull on weights that the old model's predictions need.",
    paper="EWC, Kirkpatrick et al., 2017",
    build=_build_ewc,
    options=(
        replace(STRENGTH, default=10.0, key_default=10.0),
        Option(
            name="samples",
            default=200,
            key_default=200,
            sentence="Number of held-out samples on which the importance of weights is measured.",
        ),
    ),
    needs=lambda _: Needs(old=True, one_old=True, same_layout=True, held_out=True),
)


def _build_mixout(setting: BuildContext) -> Objective:
    import torch
    from torch import Tensor

    from flipguard.models import classify

    anchors, share = _anchors(setting), setting.number("share")
    if not 0 <= share < 1:
        raise InputError(f"Expected `share` to be at least 0 and below 1, but got {share:g}.")

    def forward(model: nn.Module, inputs: Inputs) -> Tensor:
        if not model.training:
            return classify(model, inputs)
        mixed = {}
        for name, parameter in model.named_parameters():
            anchor = anchors[name] = anchors[name].to(parameter.device)
            kept = torch.rand_like(parameter) >= share
            # Shift and scale, so that the expected weight is the trained weight.
            mixed[name] = (torch.where(kept, parameter, anchor) - share * anchor) / (1 - share)
        arguments = ((), dict(inputs)) if isinstance(inputs, dict) else ((inputs,), {})
        output = torch.func.functional_call(model, mixed, *arguments)
        return output if isinstance(output, Tensor) else output.logits

    objective = task_alone(setting)
    objective.forward = forward
    return objective


MIXOUT = Method(
    name="mixout",
    sentence="Fine-tunes the old model; at every step, random weights are set to their old values.",
    paper="Mixout, Lee et al., 2020",
    build=_build_mixout,
    options=(
        Option(
            name="share",
            default=0.5,
            key_default=0.5,
            sentence="Share of the weights that are set to their old values.",
        ),
    ),
    needs=lambda _: Needs(old=True, one_old=True, same_layout=True),
)
