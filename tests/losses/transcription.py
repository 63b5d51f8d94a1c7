"""Every loss as its paper writes it: loops over samples and classes, one scalar at a time.

Slow and obvious on purpose. Nothing here may be imported from flipguard. The scalars are torch's,
so that differentiating the loop gives the gradient that the loss must have.

PCT is Yan et al. (CVPR 2021), ELODI is Zhao et al. (TPAMI 2024), churn is Bhojanapalli et al.
(2021); BCT is Shen et al. (CVPR 2020), RACT is Zhang et al. (ICLR 2022), MUSCLE is Echterhoff et
al. (2024), and dissonance is Bansal et al. (AAAI 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import torch
from torch import Tensor

Row = list[Tensor]
Target = int | list[float] | None

ZERO = torch.zeros((), dtype=torch.float64)


@dataclass(frozen=True)
class Match:
    """For each class of new, the index of the same class in old, or -1."""

    of_new: tuple[int, ...]
    old_count: int

    def known(self, label: int) -> bool:
        return self.of_new[label] != -1

    def in_new(self, label: int) -> int:
        """A class of old as new counts it, or -1."""
        for new, old in enumerate(self.of_new):
            if old == label:
                return new
        return -1

    def shared(self) -> list[tuple[int, int]]:
        return [(new, old) for new, old in enumerate(self.of_new) if old != -1]


def everything(count: int) -> Match:
    return Match(tuple(range(count)), count)


# --- reading tensors ---------------------------------------------------------


def rows(tensor: Tensor) -> list[Row]:
    return [list(row.unbind()) for row in tensor.unbind()]


def constants(tensor: Tensor) -> list[Row]:
    """The rows of a model that does not learn."""
    return rows(tensor.detach())


def targets(target: Tensor | None, count: int) -> list[Target]:
    if target is None:
        return [None] * count
    return target.tolist()


def number(scalar: Tensor) -> float:
    return scalar.item()


# --- one row of scores -------------------------------------------------------


def total(values: Sequence[Tensor]) -> Tensor:
    result = ZERO
    for value in values:
        result = result + value
    return result


def prediction(scores: Row) -> int:
    """The first of the highest."""
    best = 0
    for index in range(1, len(scores)):
        if number(scores[index]) > number(scores[best]):
            best = index
    return best


def log_softmax(scores: Row) -> Row:
    highest = max(number(score) for score in scores)
    partition = total([torch.exp(score - highest) for score in scores])
    return [score - highest - torch.log(partition) for score in scores]


def softmax(scores: Row) -> Row:
    return [torch.exp(value) for value in log_softmax(scores)]


def highest_classes(scores: Row, k: int | None) -> list[int]:
    """The k classes of the highest scores; the earlier of two equal ones goes first."""
    order = sorted(range(len(scores)), key=lambda index: (-number(scores[index]), index))
    return order if k is None else order[:k]


def valid_choices(scores: Row, k: int | None) -> list[list[int]]:
    """Every set that ELODI eq. 5 allows: no class outside is higher than one inside.

    Unless classes tie at the last place there is one. Sets beyond a few are not spelled out:
    then the list is empty.
    """
    if k is None or k >= len(scores):
        return [list(range(len(scores)))]
    last = number(scores[highest_classes(scores, k)[-1]])
    above = [index for index, score in enumerate(scores) if number(score) > last]
    tied = [index for index, score in enumerate(scores) if number(score) == last]
    if comb(len(tied), k - len(above)) > 40:
        return []
    return [above + list(rest) for rest in combinations(tied, k - len(above))]


def is_valid_choice(scores: Row, chosen: Sequence[int], k: int) -> bool:
    inside = set(chosen)
    if len(inside) != min(k, len(scores)):
        return False
    lowest = min(number(scores[index]) for index in inside)
    outside = [number(score) for index, score in enumerate(scores) if index not in inside]
    return all(score <= lowest for score in outside)


# --- divergences of one sample -----------------------------------------------


def kl(first: Row, second: Row, temperature: float = 1.0) -> Tensor:
    """KL(softmax(first / T) || softmax(second / T))."""
    p = log_softmax([score / temperature for score in first])
    q = log_softmax([score / temperature for score in second])
    return total([torch.exp(a) * (a - b) for a, b in zip(p, q, strict=True)])


def cross_entropy(first: Row, second: Row) -> Tensor:
    """H(softmax(first), softmax(second)) = -sum_j p_j log q_j."""
    p, q = softmax(first), log_softmax(second)
    return -total([a * b for a, b in zip(p, q, strict=True)])


def distillation(
    new: Row, old: Row, temperature: float, direction: str, t_squared: bool = True
) -> Tensor:
    divergence = kl(old, new, temperature) if direction == "forward" else kl(new, old, temperature)
    return temperature * temperature * divergence if t_squared else divergence


def together(new: Row, old: Row, match: Match) -> tuple[Row, Row]:
    pairs = match.shared()
    return [new[i] for i, _ in pairs], [old[j] for _, j in pairs]


# --- samples: who counts, and how much ---------------------------------------


def holds(filter: str, old_right: bool, new_wrong: bool) -> bool:
    match filter:
        case "all":
            return True
        case "old_right":
            return old_right
        case "new_wrong":
            return new_wrong
        case "negative_flip":
            return old_right and new_wrong
    raise ValueError(filter)


def mixture(target: Target, count: int, of_class: Callable[[int], Tensor]) -> Tensor:
    """A hard target is itself; a soft one is a mixture of hard ones."""
    if isinstance(target, int):
        return of_class(target)
    assert target is not None
    assert len(target) == count
    return total([target[label] * of_class(label) for label in range(count)])


def weigh(
    new: Row, old: Row, target: Target, match: Match, base: float, focus: float, filter: str
) -> Tensor:
    """PCT eq. 7: base + focus * [condition], on every sample."""
    old_says, new_says = match.in_new(prediction(old)), prediction(new)

    def of_class(label: int) -> Tensor:
        condition = holds(filter, old_says == label, new_says != label)
        return ZERO + base + (focus if condition else 0.0)

    return mixture(target, len(new), of_class)


def counts(target: Target, ignore_index: int) -> bool:
    return not (isinstance(target, int) and target == ignore_index)


def reduce(losses: list[Tensor], counted: int, reduction: str) -> Tensor:
    if reduction == "none":
        return torch.stack(losses)
    if reduction == "sum":
        return total(losses)
    return total(losses) / counted if counted else total(losses)


def over_samples(
    of_sample: Callable[[int, Target], Tensor],
    labels: list[Target],
    reduction: str,
    ignore_index: int,
) -> Tensor:
    losses, counted = [], 0
    for sample, label in enumerate(labels):
        if counts(label, ignore_index):
            losses.append(of_sample(sample, label))
            counted += 1
        else:
            losses.append(ZERO)
    return reduce(losses, counted, reduction)


# --- the losses --------------------------------------------------------------


def naive_congruence(
    *,
    new: Tensor,
    old: Tensor,
    target: Tensor,
    classes: Match | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> Tensor:
    """PCT eq. 6."""
    match = classes or everything(new.shape[-1])
    news, olds = rows(new), constants(old)

    def of_sample(i: int, label: Target) -> Tensor:
        old_says = match.in_new(prediction(olds[i]))
        log_p = log_softmax(news[i])
        return mixture(label, len(log_p), lambda c: -log_p[c] if old_says == c else ZERO)

    return over_samples(of_sample, targets(target, len(news)), reduction, ignore_index)


new_error = naive_congruence


def strict_imitation(
    *,
    new: Tensor,
    old: Tensor,
    target: Tensor,
    classes: Match | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> Tensor:
    """Dissonance: where old is right, the cross-entropy of new towards old's probabilities."""
    match = classes or everything(new.shape[-1])
    news, olds = rows(new), constants(old)

    def of_sample(i: int, label: Target) -> Tensor:
        old_says = match.in_new(prediction(olds[i]))
        mine, theirs = together(news[i], olds[i], match)
        distance = cross_entropy(theirs, mine)
        return mixture(label, len(news[i]), lambda c: distance if old_says == c else ZERO)

    return over_samples(of_sample, targets(target, len(news)), reduction, ignore_index)


def focal_distillation(
    *,
    new: Tensor,
    old: Tensor,
    target: Tensor,
    base: float = 1.0,
    focus: float = 5.0,
    distance: str = "logits",
    temperature: float = 100.0,
    class_reduction: str | None = None,
    filter: str = "old_right",
    direction: str | None = None,
    t_squared: bool | None = None,
    preset: str | None = None,
    classes: Match | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> Tensor:
    """PCT eq. 7-9."""
    match = classes or everything(new.shape[-1])
    news, olds = rows(new), constants(old)
    class_reduction = class_reduction or ("sum" if preset == "paper" else "mean")
    direction = direction or ("reverse" if preset == "paper" else "forward")
    t_squared = preset != "paper" if t_squared is None else t_squared

    def of_sample(i: int, label: Target) -> Tensor:
        mine, theirs = together(news[i], olds[i], match)
        if distance == "logits":
            away = total([(a - b) * (a - b) for a, b in zip(mine, theirs, strict=True)]) / 2
            if class_reduction == "mean":
                away = away / len(mine)
        else:
            away = distillation(mine, theirs, temperature, direction, t_squared)
        return weigh(news[i], olds[i], label, match, base, focus, filter) * away

    return over_samples(of_sample, targets(target, len(news)), reduction, ignore_index)


def knowledge_distillation(
    *,
    new: Tensor,
    reference: Tensor,
    temperature: float = 100.0,
    direction: str = "forward",
    classes: Match | None = None,
    reduction: str = "mean",
) -> Tensor:
    match = classes or everything(new.shape[-1])
    news, references = rows(new), constants(reference)
    losses = []
    for mine, theirs in zip(news, references, strict=True):
        losses.append(distillation(*together(mine, theirs, match), temperature, direction))
    return reduce(losses, len(losses), reduction)


Choices = list[list[int]]


def logit_difference_inhibition(
    *,
    new: Tensor,
    reference: Tensor,
    target: Tensor | None = None,
    k: int | None = 10,
    p: float = 2.0,
    rank_by: str = "student",
    class_reduction: str | None = None,
    margin: float = 0.0,
    base: float = 1.0,
    focus: float = 0.0,
    filter: str = "old_right",
    preset: str | None = None,
    classes: Match | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    chosen: Choices | None = None,
) -> Tensor:
    """ELODI eq. 8 over the classes of eq. 5, `chosen` for each sample where ties leave a choice."""
    match = classes or everything(new.shape[-1])
    news, references = rows(new), constants(reference)
    class_reduction = class_reduction or ("sum" if preset == "paper" else "mean")

    def of_sample(i: int, label: Target) -> Tensor:
        mine, theirs = together(news[i], references[i], match)
        if chosen is not None:
            picked = set(chosen[i])
        elif rank_by == "student":
            picked = set(highest_classes(mine, k))
        elif rank_by == "reference":
            picked = set(highest_classes(theirs, k))
        else:
            picked = set(highest_classes(mine, k)) | set(highest_classes(theirs, k))
        terms = []
        for c in sorted(picked):
            excess = torch.abs(mine[c] - theirs[c]) - margin
            terms.append(excess**p if number(excess) > 0.0 else ZERO)
        loss = total(terms) / (len(picked) if class_reduction == "mean" else 1)
        if label is None:
            return base * loss
        return weigh(news[i], references[i], label, match, base, focus, filter) * loss

    return over_samples(of_sample, targets(target, len(news)), reduction, ignore_index)


def ldi_choices(
    *,
    new: Tensor,
    reference: Tensor,
    k: int | None = 10,
    rank_by: str = "student",
    classes: Match | None = None,
    **_: object,
) -> list[Choices]:
    """For each sample, every set of classes that eq. 5 allows."""
    match = classes or everything(new.shape[-1])
    result = []
    for mine_all, theirs_all in zip(constants(new), constants(reference), strict=True):
        mine, theirs = together(mine_all, theirs_all, match)
        if rank_by == "student":
            result.append(valid_choices(mine, k))
        elif rank_by == "reference":
            result.append(valid_choices(theirs, k))
        else:
            unions = {
                tuple(sorted({*a, *b}))
                for a in valid_choices(mine, k)
                for b in valid_choices(theirs, k)
            }
            result.append([list(union) for union in sorted(unions)])
    return result


def entropy_regularizer(
    *, new: Tensor, k: int | None = None, reduction: str = "mean", chosen: Choices | None = None
) -> Tensor:
    """Churn eq. 6: the entropy, of the k most likely classes only where k is given."""
    losses = []
    for i, scores in enumerate(rows(new)):
        log_p = log_softmax(scores)
        picked = chosen[i] if chosen is not None else highest_classes(scores, k)
        losses.append(-total([torch.exp(log_p[j]) * log_p[j] for j in picked]))
    return reduce(losses, len(losses), reduction)


def uniform_divergence(
    *,
    new: Tensor,
    k: int | None = None,
    floor: float = 0.0,
    reduction: str = "mean",
    chosen: Choices | None = None,
) -> Tensor:
    """Churn eq. 7 and appendix B: sum_j (p_j - 1/C) log(C p_j); a floor is added to that p_j."""
    losses = []
    for i, scores in enumerate(rows(new)):
        log_p, count = log_softmax(scores), len(scores)
        log_count = torch.log(ZERO + count)
        raised = [torch.log(torch.exp(v) + floor) if floor else v for v in log_p]
        picked = chosen[i] if chosen is not None else highest_classes(scores, k)
        terms = [(torch.exp(log_p[j]) - 1 / count) * (log_count + raised[j]) for j in picked]
        losses.append(total(terms))
    return reduce(losses, len(losses), reduction)


def probability_choices(*, new: Tensor, k: int | None = None, **_: object) -> list[Choices]:
    return [valid_choices(scores, k) for scores in constants(new)]


def codistillation(
    *, first: Tensor, second: Tensor, kind: str = "skl", reduction: str = "mean"
) -> Tensor:
    """Churn eq. 8 ("l1") and 9 ("skl"), where both learn, and eq. 18 ("ce", the first learns)."""
    losses = []
    if kind == "l1":
        for a, b in zip(rows(first), rows(second), strict=True):
            pairs = zip(softmax(a), softmax(b), strict=True)
            losses.append(total([torch.abs(p - q) for p, q in pairs]))
    elif kind == "skl":
        for a, b in zip(rows(first), rows(second), strict=True):
            losses.append(kl(a, b) + kl(b, a))
    else:
        for a, b in zip(rows(first), constants(second), strict=True):
            losses.append(cross_entropy(b, a))
    return reduce(losses, len(losses), reduction)


def muscle(
    *,
    new: Tensor,
    old: Tensor,
    target: Tensor,
    control: Tensor | None = None,
    temperature: float = 1.0,
    classes: Match | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> Tensor:
    """Where new is wrong, towards old; where it is right, towards its own kind (the control)."""
    match = classes or everything(new.shape[-1])
    news, olds = rows(new), constants(old)
    controls = constants(control) if control is not None else None

    def of_sample(i: int, label: Target) -> Tensor:
        new_says = prediction(news[i])
        mine, theirs = together(news[i], olds[i], match)
        to_old = distillation(mine, theirs, temperature, "forward")
        to_control = ZERO
        if controls is not None:
            to_control = distillation(news[i], controls[i], temperature, "forward")

        def of_class(label: int) -> Tensor:
            return to_old if new_says != label else to_control

        return mixture(label, len(news[i]), of_class)

    return over_samples(of_sample, targets(target, len(news)), reduction, ignore_index)


def dot(first: Row, second: Row) -> Tensor:
    return total([a * b for a, b in zip(first, second, strict=True)])


def project(features: list[Row], projection: Tensor | None) -> list[Row]:
    if projection is None:
        return features
    return [[dot(feature, weights) for weights in rows(projection)] for feature in features]


def backward_compatible(
    *,
    new_features: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    projection: Tensor | None = None,
    classes: Match | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> Tensor:
    """BCT: the cross-entropy of the old classifier on the new model's features."""
    features, head = project(rows(new_features), projection), constants(weight)
    biases = list(bias.detach().unbind()) if bias is not None else [ZERO] * len(head)
    match = classes or everything(len(head))

    def of_sample(i: int, label: Target) -> Tensor:
        logits = [dot(features[i], w) + b for w, b in zip(head, biases, strict=True)]
        log_p = log_softmax(logits)

        def of_class(label: int) -> Tensor:
            return -log_p[match.of_new[label]] if match.known(label) else ZERO

        return mixture(label, len(match.of_new), of_class)

    return over_samples(of_sample, targets(target, len(features)), reduction, ignore_index)


def unit(features: Row) -> Row:
    length = torch.sqrt(dot(features, features))
    return [value / length for value in features]


def regression_alleviating(
    *,
    new_features: Tensor,
    old_features: Tensor,
    target: Tensor,
    temperature: float = 0.05,
    projection: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> Tensor:
    """RACT: old's feature of the same sample against all features of other classes."""
    news = [unit(row) for row in project(rows(new_features), projection)]
    olds = [unit(row) for row in constants(old_features)]
    labels = targets(target, len(news))

    def of_sample(i: int, label: Target) -> Tensor:
        scores = [dot(news[i], olds[i]) / temperature]
        for j, other in enumerate(labels):
            if other not in (label, ignore_index):
                scores.append(dot(news[i], olds[j]) / temperature)
                scores.append(dot(news[i], news[j]) / temperature)
        return -log_softmax(scores)[0]

    return over_samples(of_sample, labels, reduction, ignore_index)


# --- after training ----------------------------------------------------------


def estimate_confusion(
    predicted: Sequence[int], target: Sequence[int], classes: int, smoothing: float = 1.0
) -> list[list[float]]:
    """Row y is P(predicted | target y), from counts with `smoothing` added to each."""
    table = [[smoothing] * classes for _ in range(classes)]
    for said, truth in zip(predicted, target, strict=True):
        table[truth][said] += 1
    return [[cell / sum(row) if sum(row) else cell for cell in row] for row in table]


def posterior(
    old_vote: int,
    new_vote: int,
    old_confusion: list[list[float]],
    new_confusion: list[list[float]],
    prior: list[float],
) -> list[float]:
    """Bayes' rule for two votes that are independent given the true class."""
    joint = []
    for label, chance in enumerate(prior):
        joint.append(chance * old_confusion[label][old_vote] * new_confusion[label][new_vote])
    return [value / sum(joint) for value in joint]


def decide(chances: list[float], old_vote: int, cost_ratio: float) -> int:
    best = max(range(len(chances)), key=lambda label: (chances[label], -label))
    return best if chances[best] > cost_ratio * chances[old_vote] else old_vote


def steps_of_a_ramp(kind: str, strength: float, steps: int, until: int) -> Iterator[float]:
    """Churn appendix C: the strength at steps 0, 1, 2, ..."""
    for step in range(until):
        match kind:
            case "linear":
                yield min(strength * step / steps, strength)
            case "step":
                yield strength if step > steps else 0.0
            case "none":
                yield strength
