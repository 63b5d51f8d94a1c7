"""The whole objective of methods from outside the three papers.

As in `equations.py`: loops, nothing from flipguard, and each departure is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tests.losses import transcription as plain
from tests.losses.transcription import ZERO, Row, log_softmax, prediction, softmax, total
from tests.methods.equations import Said, mean, shared, task

# --- compatible training -----------------------------------------------------


def bct(
    said: Said,
    *,
    features: list[Row],
    head: list[Row],
    bias: Row,
    projection: list[Row] | None = None,
    weight: float = 1.0,
) -> Tensor:
    """Shen et al. (2020): L(new head, new features) + lambda L(old head, new features)."""
    losses = []
    for feature, label in zip(projected(features, projection), said.target, strict=True):
        logits = [plain.dot(feature, row) + shift for row, shift in zip(head, bias, strict=True)]
        losses.append(-log_softmax(logits)[label])
    return task(said) + weight * mean(losses)


def ract(
    said: Said,
    *,
    features: list[Row],
    old_features: list[Row],
    projection: list[Row] | None = None,
    weight: float = 1.0,
    temperature: float = 0.05,
) -> Tensor:
    """Zhang et al. (2022): old's feature of a sample against both models' of other classes."""
    news = [plain.unit(row) for row in projected(features, projection)]
    olds = [plain.unit(row) for row in old_features]
    losses = []
    for i, label in enumerate(said.target):
        own = torch.exp(plain.dot(news[i], olds[i]) / temperature)
        rivals = []
        for j, other in enumerate(said.target):
            if other != label:
                rivals.append(torch.exp(plain.dot(news[i], olds[j]) / temperature))
                rivals.append(torch.exp(plain.dot(news[i], news[j]) / temperature))
        losses.append(-torch.log(own / (own + total(rivals))))
    return task(said) + weight * mean(losses)


def projected(features: list[Row], projection: list[Row] | None) -> list[Row]:
    if projection is None:
        return features
    return [[plain.dot(feature, weights) for weights in projection] for feature in features]


def answers(
    said: Said,
    *,
    old_confusion: list[list[float]],
    new_confusion: list[list[float]],
    cost_ratio: float,
) -> list[int]:
    """The answer of the Bayesian update with a uniform prior (Träuble et al., 2021)."""
    count, found = len(old_confusion), []
    for new, old in zip(said.new, said.old, strict=True):
        votes = prediction(old), prediction(new)
        chances = plain.posterior(*votes, old_confusion, new_confusion, [1 / count] * count)
        found.append(plain.decide(chances, votes[0], cost_ratio))
    return found


def bu_cr(said: Said, **numbers: Any) -> Tensor:
    """ELODI, note 2: cross-entropy with the answer of the Bayesian update by a cost ratio."""
    decided = answers(said, **numbers)
    return mean([-log_softmax(row)[z] for row, z in zip(said.new, decided, strict=True)])


# --- others ------------------------------------------------------------------


def label_mix(said: Said, *, share: float = 0.5) -> Tensor:
    """Jiang et al. (2022), Cormier et al. (2016): cross-entropy with (1 - share) e_y + share p_old.

    With other classes, ours: old's softmax over the shared classes alone. Smoothed labels are
    smoothed after mixing.
    """
    losses = []
    for new, old, label in zip(said.new, said.old, said.target, strict=True):
        mixed = [ZERO + (1 - share) * (c == label) for c in range(len(new))]
        _, theirs = shared(said, new, old)
        for (i, _), p in zip(said.match.shared(), softmax(theirs), strict=True):
            mixed[i] = mixed[i] + share * p
        flat = said.smoothing / len(new)
        mixed = [(1 - said.smoothing) * value + flat for value in mixed]
        log_p = log_softmax(new)
        losses.append(-total([a * b for a, b in zip(mixed, log_p, strict=True)]))
    return mean(losses)


# --- near weights ------------------------------------------------------------


def elastic(
    said: Said,
    *,
    weights: Mapping[str, Tensor],
    anchors: Mapping[str, Tensor],
    strength: float,
    importance: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """L2-SP (Li et al., 2018), eq. 3, strength/2 sum (w - w_0)^2, all layers being shared; and EWC
    (Kirkpatrick et al., 2017), eq. 3, strength/2 sum F (w - w_0)^2."""
    squares = []
    for name, weight in weights.items():
        entries = zip(weight.flatten(), anchors[name].detach().flatten(), strict=True)
        matters = [1.0] * weight.numel()
        if importance is not None:
            matters = importance[name].flatten().tolist()
        squares += [f * (w - a) * (w - a) for (w, a), f in zip(entries, matters, strict=True)]
    return task(said) + strength / 2 * total(squares)


def mixout(weight: Tensor, anchor: Tensor, kept: Tensor, share: float) -> list[Row]:
    """Lee et al. (2020), eq. 2: ((1 - M) u + M w - share u) / (1 - share), entry by entry."""
    return [
        [
            ((u if not m else w) - share * u) / (1 - share)
            for w, u, m in zip(ws, us, ms.tolist(), strict=True)
        ]
        for ws, us, ms in zip(weight, anchor.detach(), kept, strict=True)
    ]
