"""The whole objective of the papers' methods, as printed: loops over samples and classes.

Nothing here may be imported from flipguard. Where our default departs from the paper, the departure
is an argument whose default is the paper's. PCT is Yan et al. (CVPR 2021), ELODI is Zhao et al.
(TPAMI 2024), churn is Bhojanapalli et al. (2021). Equation 7 of PCT prints a minus before the sum
and no 1/N. But its text penalises the distance, and equation 6 is a mean, so this is a mean too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.losses import transcription as plain
from tests.losses.transcription import ZERO, Match, Row, log_softmax, prediction, softmax, total


@dataclass(frozen=True, kw_only=True)
class Said:
    """The outputs of all models for one batch, row by row, and the number of the step."""

    new: list[Row]
    target: list[int]
    olds: list[list[Row]] = field(default_factory=list)
    match: Match = field(default_factory=lambda: plain.everything(0))
    twin: list[Row] = field(default_factory=list)
    members: list[list[Row]] = field(default_factory=list)
    number: int = 0  # of steps taken before
    smoothing: float = 0.0

    @property
    def old(self) -> list[Row]:
        (one,) = self.olds
        return one


Equation = Callable[[Said], Tensor]


def mean(values: Sequence[Tensor]) -> Tensor:
    return total(values) / len(values)


def task(said: Said, rows: list[Row] | None = None) -> Tensor:
    """PCT eq. 3: the mean of -log p(target); smoothed labels take a share from every class."""
    losses = []
    for scores, label in zip(said.new if rows is None else rows, said.target, strict=True):
        log_p = log_softmax(scores)
        share = said.smoothing / len(log_p)
        losses.append(-(1 - said.smoothing) * log_p[label] - share * total(log_p))
    return mean(losses)


def over_olds(said: Said, of_sample: Callable[[Row, Row, int], Tensor]) -> Tensor:
    """The mean over the samples; over a chain of old models, the mean of that (our departure)."""
    terms = []
    for old in said.olds:
        samples = zip(said.new, old, said.target, strict=True)
        terms.append(mean([of_sample(*sample) for sample in samples]))
    return mean(terms)


def old_right(said: Said, old: Row, label: int) -> bool:
    return said.match.in_new(prediction(old)) == label


def shared(said: Said, new: Row, old: Row) -> tuple[Row, Row]:
    return plain.together(new, old, said.match)


def plus(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The task's loss plus a weight times a loss of `tests/losses/transcription.py`."""

    def equation(said: Said, *, weight: float = 1.0, **options: Any) -> Tensor:
        given = {"target": torch.tensor(said.target), "classes": said.match, **options}
        new = tensor(said.new)
        return task(said) + weight * mean(
            [loss(new=new, old=tensor(old), **given) for old in said.olds]
        )

    return equation


def tensor(rows: list[Row]) -> Tensor:
    return torch.stack([torch.stack(row) for row in rows])


# --- PCT ---------------------------------------------------------------------


def naive(said: Said, *, weight: float = 1.0) -> Tensor:
    """Eq. 4 and 6."""

    def of_sample(new: Row, old: Row, label: int) -> Tensor:
        return -log_softmax(new)[label] if old_right(said, old, label) else ZERO

    return task(said) + weight * over_olds(said, of_sample)


def focal(
    said: Said,
    distance: Callable[[Row, Row], Tensor],
    *,
    weight: float,
    base: float,
    focus: float,
    filter: str = "old_right",
) -> Tensor:
    """Eq. 4 and 7. The filters other than `old_right` are ours."""

    def of_sample(new: Row, old: Row, label: int) -> Tensor:
        right, wrong = old_right(said, old, label), prediction(new) != label
        picked = plain.holds(filter, right, wrong)
        return (base + focus * picked) * distance(new, old)

    return task(said) + weight * over_olds(said, of_sample)


PRINTED = "KL(new || old)"


def softened(
    said: Said, new: Row, old: Row, *, temperature: float, t_squared: bool, direction: str
) -> Tensor:
    """Eq. 8; with both departures, the soft targets of Hinton et al. (2015), section 2."""
    mine, theirs = shared(said, new, old)
    pair = (mine, theirs) if direction == PRINTED else (theirs, mine)
    divergence = plain.kl(*pair, temperature)
    return divergence * temperature * temperature if t_squared else divergence


def fd_kl(
    said: Said,
    *,
    weight: float = 1.0,
    base: float = 1.0,
    focus: float = 5.0,
    temperature: float = 100.0,
    t_squared: bool = False,
    direction: str = PRINTED,
) -> Tensor:
    """Eq. 7 and 8."""
    how: dict[str, Any] = {
        "temperature": temperature,
        "t_squared": t_squared,
        "direction": direction,
    }
    return focal(said, partial(softened, said, **how), weight=weight, base=base, focus=focus)


def kd(said: Said, *, weight: float = 1.0, **how: Any) -> Tensor:
    """Ordinary distillation: eq. 7 with base 1 and focus 0, on every sample."""
    return fd_kl(said, weight=weight, base=1.0, focus=0.0, **how)


def half_squared(new: Row, old: Row) -> Tensor:
    return total([(a - b) * (a - b) for a, b in zip(new, old, strict=True)]) / 2


def fd_lm(
    said: Said,
    *,
    weight: float = 1.0,
    base: float = 1.0,
    focus: float = 5.0,
    over_classes: str = "sum",
    filter: str = "old_right",
) -> Tensor:
    """Eq. 9."""

    def distance(new: Row, old: Row) -> Tensor:
        mine, theirs = shared(said, new, old)
        squared = half_squared(mine, theirs)
        return squared / len(mine) if over_classes == "mean" else squared

    return focal(said, distance, weight=weight, base=base, focus=focus, filter=filter)


# --- ELODI -------------------------------------------------------------------


def ldi(
    new: Row,
    reference: Row,
    *,
    k: int | None,
    p: float,
    rank_by: str,
    over_classes: str,
    margin: float,
) -> Tensor:
    """Eq. 8 over the classes of eq. 5 (`reference`) or of the text under it (`student`).

    ICLR, section 1: it "only penalizes significant changes", here those above the margin.
    """
    by_student = plain.highest_classes(new, k)
    by_reference = plain.highest_classes(reference, k)
    chosen = {
        "student": set(by_student),
        "reference": set(by_reference),
        "both": {*by_student, *by_reference},  # ours
    }[rank_by]
    excess = [torch.abs(new[c] - reference[c]) - margin for c in sorted(chosen)]
    distance = total([one**p for one in excess if plain.number(one) > 0])
    return distance / len(chosen) if over_classes == "mean" else distance


def ensemble(members: list[list[Row]]) -> list[Row]:
    """PCT eq. 10 and ELODI, algorithm 1: the members' mean logits, which do not learn from it."""
    return [
        [total(of_class).detach() / len(members) for of_class in zip(*rows, strict=True)]
        for rows in zip(*members, strict=True)
    ]


def elodi(
    said: Said,
    *,
    reference: list[Row] | None = None,
    alpha: float = 0.8,
    legacy: float = 0.0,
    k: int | None = 10,
    p: float = 2.0,
    rank_by: str = "student",
    over_classes: str = "sum",
    margin: float = 0.0,
) -> Tensor:
    """Section 4.2, (1 - alpha) CE + alpha LDI; and eq. 9, whose lambda is 1 - `legacy`."""

    def inhibited(new: Row, other: Row) -> Tensor:
        how: dict[str, Any] = {"k": k, "p": p, "rank_by": rank_by, "margin": margin}
        return ldi(new, other, over_classes=over_classes, **how)

    says = ensemble(said.members) if reference is None else reference
    pull = mean([inhibited(new, other) for new, other in zip(said.new, says, strict=True)])
    if legacy:
        to_old = over_olds(said, lambda new, old, _: inhibited(*shared(said, new, old)))
        pull = (1 - legacy) * pull + legacy * to_old
    return (1 - alpha) * task(said) + alpha * pull


# --- churn -------------------------------------------------------------------


def entropy_of(scores: Row, k: int | None) -> Tensor:
    p = softmax(scores)
    return -total([p[j] * torch.log(p[j]) for j in plain.highest_classes(scores, k)])


def skl_of(scores: Row, k: int | None, floor: float) -> Tensor:
    """Appendix B: sum_j (p_j - 1/K) log(K p_j); the floor is ours."""
    p, count = softmax(scores), len(scores)
    chosen = plain.highest_classes(scores, k)
    return total([(p[j] - 1 / count) * torch.log(count * (p[j] + floor)) for j in chosen])


def entropy(said: Said, *, alpha: float = 0.15, k: int | None = None) -> Tensor:
    """Eq. 6, over the k likeliest classes where there are many (section 4)."""
    return (1 - alpha) * task(said) + alpha * mean([entropy_of(row, k) for row in said.new])


def skl(said: Said, *, alpha: float = 0.05, k: int | None = None, floor: float = 0.0) -> Tensor:
    """Eq. 7."""
    away = mean([skl_of(row, k, floor) for row in said.new])
    return (1 - alpha) * task(said) - alpha * away


def l1(a: Row, b: Row) -> Tensor:
    """Lemma 2: D_L1 = sum_j |p_j - q_j|."""
    return total([torch.abs(p - q) for p, q in zip(softmax(a), softmax(b), strict=True)])


def symmetric_kl(a: Row, b: Row) -> Tensor:
    return plain.kl(a, b) + plain.kl(b, a)


def both_cross_entropies(a: Row, b: Row) -> Tensor:
    """The sum of eq. 18a and 18b in which both models learn from both terms, in joint updates."""
    return plain.cross_entropy(a, b) + plain.cross_entropy(b, a)


JOINT = {"skl": symmetric_kl, "l1": l1, "ce": both_cross_entropies}
# Of a model that learns, and of a copy that does not: H(copy, model) in eq. 18.
OF_COPY = {"skl": symmetric_kl, "l1": l1, "ce": lambda mine, copy: plain.cross_entropy(copy, mine)}


def codistill(
    said: Said,
    agreement: str,
    *,
    beta: float = 0.04,
    growth: int | None = None,
    burn_in: int | None = None,
    stale_new: list[Row] | None = None,
    stale_twin: list[Row] | None = None,
    plus: str = "nothing",
    alpha: float = 0.1,
    k: int | None = None,
    floor: float = 0.0,
) -> Tensor:
    """Eq. 8, 9, 18 and 19; for independent updates, the sum of both objectives.

    Strengths grow as min(c t, strength), or are > 0 iff t > t_0 (appendix C).
    """

    def grown(strength: float) -> float:
        if burn_in is not None:
            return strength if said.number > burn_in else 0.0
        return min(strength / growth * said.number, strength) if growth else strength

    found = task(said) + task(said, said.twin)
    if stale_new is None or stale_twin is None:
        pairs = zip(said.new, said.twin, strict=True)
        found = found + grown(beta) * mean([JOINT[agreement](a, b) for a, b in pairs])
    else:
        for mine, copy in ((said.new, stale_twin), (said.twin, stale_new)):
            pairs = zip(mine, copy, strict=True)
            found = found + grown(beta) * mean([OF_COPY[agreement](a, b) for a, b in pairs])
    if plus == "entropy":
        both = zip(said.new, said.twin, strict=True)
        ereg = mean([entropy_of(a, k) + entropy_of(b, k) for a, b in both])
        found = found + grown(alpha) * ereg
    if plus == "skl":
        both = zip(said.new, said.twin, strict=True)
        ereg = -mean([skl_of(a, k, floor) + skl_of(b, k, floor) for a, b in both])
        found = found + grown(alpha) * ereg
    return found
