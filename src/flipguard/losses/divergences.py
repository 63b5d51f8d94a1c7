"""Distances between distributions or logits, with their gradients, and the top-k classes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flipguard.losses.base import (
    ClassReduction,
    Labels,
    Logits,
    ValueWithGradient,
    is_wide,
    loss_precision,
)

# With fewer classes per wanted class, groups only add work.
FEW = 256
SIZE = 32  # classes in a group


@torch.no_grad()
def highest(logits: Logits, k: int) -> Labels:
    """Return the k classes with the highest logits, unordered; ties are broken arbitrarily.

    >>> import torch
    >>> highest(torch.tensor([[0.5, 3.0, -1.0, 2.0]]), 2).sort().values
    tensor([[1, 3]])
    """
    classes = logits.shape[-1]
    if classes < FEW * k:
        return logits.topk(k, -1, sorted=False).indices
    # The k highest logits are in the k groups with the highest maxima. A group takes classes at a
    # fixed stride, because neighbouring threads read neighbouring memory fastest.
    groups = classes // SIZE
    grouped = logits[..., : groups * SIZE].view(*logits.shape[:-1], SIZE, groups)
    best = grouped.amax(-2).topk(k, -1, sorted=False).indices
    steps = torch.arange(SIZE, device=logits.device) * groups
    places = (best.unsqueeze(-1) + steps).flatten(-2)
    if groups * SIZE < classes:
        rest = torch.arange(groups * SIZE, classes, device=logits.device)
        places = torch.cat([places, rest.expand(*places.shape[:-1], len(rest))], -1)
    chosen = logits.gather(-1, places).topk(k, -1, sorted=False).indices
    return places.gather(-1, chosen)


def logit_difference(student: Logits, teacher: Logits) -> Tensor:
    """Return ``student - teacher``, in the precision of losses."""
    # A copy in higher precision may be changed in place; the student's logits may not.
    return (
        student - loss_precision(teacher)
        if is_wide(student)
        else loss_precision(student).sub_(teacher)
    )


@torch.no_grad()
def squared_difference(
    student: Logits, teacher: Logits, *, over: ClassReduction
) -> ValueWithGradient:
    """Return ``1/2 sum_c (s_c - t_c)^2``, or half the mean over classes."""
    difference = logit_difference(student, teacher)
    share = 1.0 if over == "sum" else 1 / difference.shape[-1]
    value = torch.linalg.vector_norm(difference, dim=-1).square_()
    return ValueWithGradient(value, (difference,), value_factor=0.5 * share, slope_factor=share)


@torch.no_grad()
def kl_to_student(student: Logits, teacher: Logits, *, temperature: float) -> ValueWithGradient:
    """Return ``T^2 KL(softmax(teacher / T) || softmax(student / T))``, as in distillation."""
    log_p = _log_softmax(teacher, temperature)
    log_q = _log_softmax(student, temperature)
    ratio = log_p - log_q
    p, q = log_p.exp_(), log_q.exp_()
    excess = q.sub_(p)  # the slope, up to a factor of T
    value = _divergence(ratio.mul_(p), excess)
    return ValueWithGradient(
        value, (excess,), value_factor=temperature**2, slope_factor=temperature
    )


@torch.no_grad()
def kl_from_student(student: Logits, teacher: Logits, *, temperature: float) -> ValueWithGradient:
    """Return ``T^2 KL(softmax(student / T) || softmax(teacher / T))``, the reverse direction."""
    log_q = _log_softmax(student, temperature)
    log_p = _log_softmax(teacher, temperature)
    ratio = log_q - log_p
    q, p = log_q.exp_(), log_p.exp_()
    weighted = ratio.mul_(q)
    value = _divergence(weighted, p.sub_(q))
    # d/ds_j = q_j (log q_j - log p_j - KL) / T
    slope = weighted.sub_(q.mul_(value.unsqueeze(-1)))
    return ValueWithGradient(value, (slope,), value_factor=temperature**2, slope_factor=temperature)


@torch.no_grad()
def symmetric_kl(first: Logits, second: Logits) -> ValueWithGradient:
    """Return ``KL(p || q) + KL(q || p)`` of two models, with the slopes for both."""
    log_p, log_q = _log_softmax(first), _log_softmax(second)
    ratio = log_p - log_q
    p, q = log_p.exp_(), log_q.exp_()
    excess = p - q
    value = (excess * ratio).sum(-1)
    forth = (p * ratio).sum(-1, keepdim=True)  # KL(p || q), so that KL(q || p) is value - forth
    # d/da_j = p_j (r_j - KL(p || q)) + p_j - q_j, and the mirror image for b.
    to_first = (ratio - forth).mul_(p).add_(excess)
    to_second = ratio.add_(value.unsqueeze(-1) - forth).mul_(q).add_(excess).neg_()
    return ValueWithGradient(value, (to_first, to_second))


@torch.no_grad()
def l1_distance(first: Logits, second: Logits) -> ValueWithGradient:
    """Return ``sum_c |p_c - q_c|`` of two models, with the slopes for both."""
    p, q = _softmax(first), _softmax(second)
    excess = p - q
    value = torch.linalg.vector_norm(excess, ord=1, dim=-1)
    sign = excess.sign_()
    # d/da_j = p_j (s_j - sum_c s_c p_c), and the mirror image for b.
    to_first = p * (sign - (sign * p).sum(-1, keepdim=True))
    to_second = sign.sub_((sign * q).sum(-1, keepdim=True)).mul_(q).neg_()
    return ValueWithGradient(value, (to_first, to_second))


@torch.no_grad()
def cross_entropy(student: Logits, teacher: Logits) -> ValueWithGradient:
    """Return ``-sum_c softmax(teacher)_c log softmax(student)_c``."""
    log_q = _log_softmax(student)
    p = _softmax(teacher)
    value = (p * log_q).sum(-1).neg_()
    return ValueWithGradient(value, (log_q.exp_().sub_(p),))


@torch.no_grad()
def negative_log_likelihood(student: Logits, at: Labels) -> ValueWithGradient:
    """Return ``-log softmax(student)_at``."""
    place = at.unsqueeze(-1)
    log_q = _log_softmax(student)
    value = log_q.gather(-1, place).squeeze(-1).neg_()
    slope = log_q.exp_()
    slope.scatter_add_(-1, place, slope.new_full((), -1).expand(place.shape))
    return ValueWithGradient(value, (slope,))


@torch.no_grad()
def entropy_with_gradient(logits: Logits) -> ValueWithGradient:
    """Return ``-sum_c p_c log p_c``."""
    log_p = _log_softmax(logits)
    p = log_p.exp()
    value = (p * log_p).sum(-1).neg_()
    # d/dz_j = -p_j (log p_j + H)
    slope = log_p.add_(value.unsqueeze(-1)).mul_(p)
    return ValueWithGradient(value, (slope,), slope_factor=-1.0)


@torch.no_grad()
def divergence_from_uniform(logits: Logits, floor: float = 0.0) -> ValueWithGradient:
    """Return ``KL(p || uniform) + KL(uniform || p) = sum_c (p_c - 1/C) log p_c``.

    With a floor, return ``sum_c (p_c - 1/C) log(C (p_c + floor))``, which has a bound.
    """
    log_p = _log_softmax(logits)
    if floor:
        p = log_p.exp_()
        value, elastic = _bounded(p, floor, logits.shape[-1])
        return ValueWithGradient(
            value, (elastic.addcmul_(p, elastic.sum(-1, keepdim=True), value=-1),)
        )
    p = log_p.exp()
    certainty = (p * log_p).sum(-1)
    value = certainty - log_p.mean(-1)
    # d/dz_j = p_j (log p_j + H) + p_j - 1/C
    slope = log_p.sub_(certainty.unsqueeze(-1)).add_(1).mul_(p).sub_(1 / logits.shape[-1])
    return ValueWithGradient(value, (slope,))


@torch.no_grad()
def top_entropy(logits: Logits, places: Labels) -> ValueWithGradient:
    """Return ``-sum_c p_c log p_c`` over the classes at `places`; p is the softmax over all."""
    log_p = _log_softmax(logits)
    log_top = log_p.gather(-1, places)
    top = log_top.exp()
    value = (top * log_top).sum(-1).neg_()
    slope = _slope_at(log_p, places, log_top.add_(1).mul_(top))
    return ValueWithGradient(value, (slope,), slope_factor=-1.0)


@torch.no_grad()
def top_divergence_from_uniform(
    logits: Logits, places: Labels, floor: float = 0.0
) -> ValueWithGradient:
    """Return ``sum_c (p_c - 1/C) log(C p_c)`` over the classes at `places`.

    p is the softmax over all classes.
    """
    classes = logits.shape[-1]
    log_p = _log_softmax(logits)
    log_top = log_p.gather(-1, places)
    if floor:
        value, elastic = _bounded(log_top.exp_(), floor, classes)
        return ValueWithGradient(value, (_slope_at(log_p, places, elastic),))
    top = log_top.exp()
    # Filled on the device, because a captured graph may not wait for a copy from the CPU.
    log_top.add_(log_p.new_full((), classes).log_())
    excess = top - 1 / classes
    value = (excess * log_top).sum(-1)
    return ValueWithGradient(value, (_slope_at(log_p, places, log_top.mul_(top).add_(excess)),))


def _bounded(p: Tensor, floor: float, classes: int) -> tuple[Tensor, Tensor]:
    """Return ``sum_c f(p_c)`` and each class's ``f'(p_c) p_c``.

    ``f(p) = (p - 1/C) log(C (p + floor))``, so that ``f'(p) p`` is
    ``p log(C (p + floor)) + (p - 1/C) p / (p + floor)``. With `p`, at most three tensors of
    its size exist at once.
    """
    share = p + floor
    certain = share.log().add_(math.log(classes))
    pull = certain.sum(-1)
    value = certain.mul_(p).sum(-1).sub_(pull, alpha=1 / classes)
    share.reciprocal_().mul_(p)
    return value, certain.addcmul_(share, p).sub_(share, alpha=1 / classes)


def _slope_at(log_p: Tensor, places: Tensor, elastic: Tensor) -> Tensor:
    """Return the slope of ``sum_c f(p_c)`` over some classes, from their ``f'(p_c) p_c``.

    It follows from ``d p_c / d z_j = p_c ([c = j] - p_j)``.
    """
    slope = log_p.exp_().mul_(elastic.sum(-1, keepdim=True)).neg_()
    return slope.scatter_add_(-1, places, elastic)


def _log_softmax(logits: Logits, temperature: float = 1.0) -> Tensor:
    if temperature == 1:
        return torch.log_softmax(loss_precision(logits), -1)
    softened = logits / temperature if is_wide(logits) else loss_precision(logits).div_(temperature)
    return torch.log_softmax(softened, -1)


def _softmax(logits: Logits) -> Tensor:
    return torch.softmax(loss_precision(logits), -1)


def _divergence(weighted_ratio: Tensor, excess: Tensor) -> Tensor:
    """Return ``sum_c p_c log(p_c / q_c) + q_c - p_c``, the divergence of p from q.

    The terms ``q_c - p_c`` sum to 0, and cancel the rounding that all log-probabilities of a row
    share. Without them, a divergence near 1e-4, as at temperature 100, would be off by 1% in
    float32.
    """
    return weighted_ratio.sum(-1).add_(excess.sum(-1)).clamp_(min=0)
