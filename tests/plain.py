"""Every metric as its definition is read aloud: loops over rows, plain Python numbers, no table.

Slow and obvious on purpose. Nothing here may be imported from flipguard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["logits", "probabilities", None]
Scores = dict[str, float]

BINS = 15
NAN = math.nan


@dataclass(frozen=True, kw_only=True)
class Row:
    """One sample: its true class if known, and what each model says of it.

    Scores are by class, in the order of the model's columns.
    """

    id: object
    target: str | None
    old: str
    new: str
    old_scores: Scores | None = None
    new_scores: Scores | None = None
    controls: tuple[str, ...] = ()
    groups: dict[str, object] = field(default_factory=dict)
    old_grade: str | None = None
    new_grade: str | None = None


@dataclass(frozen=True, kw_only=True)
class Case:
    """Rows, and what the scores of each side are.

    `of_class` is the class whose rows these are, among `all_rows`. `grouped` says that rows are
    grouped by target.
    """

    rows: Sequence[Row]
    of_class: str | None = None
    all_rows: Sequence[Row] = ()
    grouped: bool = False
    old_kind: Kind = None
    new_kind: Kind = None
    exponent: float = 1.0

    def where(self, keep: Callable[[Row], bool]) -> Case:
        rows = [row for row in self.rows if keep(row)]
        return Case(
            rows=rows, old_kind=self.old_kind, new_kind=self.new_kind, exponent=self.exponent
        )


def ratio(part: float, whole: float) -> float:
    return part / whole if whole else NAN


def first_of_the_largest(scores: Scores) -> str:
    best = None
    for name, score in scores.items():
        if best is None or score > scores[best]:
            best = name
    assert best is not None
    return best


def softmax(logits: Scores) -> Scores:
    largest = max(logits.values())
    exponentials = {name: math.exp(value - largest) for name, value in logits.items()}
    total = math.fsum(exponentials.values())
    return {name: value / total for name, value in exponentials.items()}


def probabilities(scores: Scores, kind: Kind) -> Scores:
    return softmax(scores) if kind == "logits" else scores


def labelled(case: Case) -> list[Row]:
    return [row for row in case.rows if row.target is not None]


def error_rate_old(case: Case) -> float:
    known = labelled(case)
    return ratio(sum(row.old != row.target for row in known), len(known))


def error_rate_new(case: Case) -> float:
    known = labelled(case)
    return ratio(sum(row.new != row.target for row in known), len(known))


def accuracy_gain(case: Case) -> float:
    known = labelled(case)
    old = sum(row.old == row.target for row in known)
    new = sum(row.new == row.target for row in known)
    return ratio(new - old, len(known))


def is_negative_flip(row: Row) -> bool:
    return row.target is not None and row.old == row.target and row.new != row.target


def is_positive_flip(row: Row) -> bool:
    return row.target is not None and row.old != row.target and row.new == row.target


def negative_flip_rate(case: Case) -> float:
    known = labelled(case)
    return ratio(sum(is_negative_flip(row) for row in known), len(known))


def positive_flip_rate(case: Case) -> float:
    known = labelled(case)
    return ratio(sum(is_positive_flip(row) for row in known), len(known))


def flip_rate(case: Case) -> float:
    known = labelled(case)
    return ratio(
        sum((row.old == row.target) != (row.new == row.target) for row in known), len(known)
    )


def relative_negative_flip_rate(case: Case) -> float:
    independent = (1 - error_rate_old(case)) * error_rate_new(case)
    if not labelled(case) or not any(row.old == row.target for row in labelled(case)):
        return NAN
    return ratio(negative_flip_rate(case), independent)


def negative_flip_impact(case: Case) -> float:
    wrong = [row for row in labelled(case) if row.new != row.target]
    return ratio(sum(row.old == row.target for row in wrong), len(wrong))


def churn(case: Case) -> float:
    return ratio(sum(row.old != row.new for row in case.rows), len(case.rows))


def churn_correct(case: Case) -> float:
    right = [row for row in labelled(case) if row.old == row.target]
    return ratio(sum(row.old != row.new for row in right), len(right))


def churn_incorrect(case: Case) -> float:
    wrong = [row for row in labelled(case) if row.old != row.target]
    return ratio(sum(row.old != row.new for row in wrong), len(wrong))


def wrong_to_wrong(case: Case) -> float:
    known = labelled(case)
    both = [row for row in known if row.old != row.target and row.new != row.target]
    return ratio(sum(row.old != row.new for row in both), len(known))


def surrogate_churn(case: Case) -> float:
    if case.old_kind is None or case.new_kind is None:
        return NAN
    halves = []
    for row in case.rows:
        old = probabilities(row.old_scores or {}, case.old_kind)
        new = probabilities(row.new_scores or {}, case.new_kind)
        old_largest, new_largest = max(old.values()), max(new.values())
        distances = [
            abs(
                (old.get(name, 0.0) / old_largest) ** case.exponent
                - (new.get(name, 0.0) / new_largest) ** case.exponent
            )
            for name in {**old, **new}
        ]
        halves.append(math.fsum(distances) / 2)
    return ratio(math.fsum(halves), len(halves))


def largest_surrogate_churn(case: Case) -> float:
    """The largest value of one row: one class falls from 1 to 0 and all others rise to 1."""
    row = case.rows[0]
    return len({**(row.old_scores or {}), **(row.new_scores or {})}) / 2


def among(scores: Scores, kind: Kind, names: Sequence[str]) -> Scores | None:
    """Probabilities of some classes, divided by their sum; None if they have none."""
    chosen = {name: scores[name] for name in names}
    if kind == "logits":
        return softmax(chosen)
    total = math.fsum(chosen.values())
    return {name: value / total for name, value in chosen.items()} if total else None


def kl_divergence(case: Case) -> float:
    if case.old_kind is None or case.new_kind is None:
        return NAN
    found = []
    for row in case.rows:
        old_scores, new_scores = row.old_scores or {}, row.new_scores or {}
        shared = [name for name in old_scores if name in new_scores]
        if not shared:
            continue
        old = among(old_scores, case.old_kind, shared)
        new = among(new_scores, case.new_kind, shared)
        if old is not None and new is not None:
            terms = [old[c] * math.log(old[c] / max(new[c], 1e-12)) for c in shared if old[c] > 0]
            found.append(math.fsum(terms))
    return ratio(math.fsum(found), len(found))


def backward_trust_compatibility(case: Case) -> float:
    right = [row for row in labelled(case) if row.old == row.target]
    return ratio(sum(row.new == row.target for row in right), len(right))


def backward_error_compatibility(case: Case) -> float:
    wrong = [row for row in labelled(case) if row.new != row.target]
    return ratio(sum(row.old != row.target for row in wrong), len(wrong))


def calibration_error(
    confidences: Sequence[float], rights: Sequence[bool], *, bins: int = BINS
) -> float:
    error = 0.0
    for b in range(bins):
        # The last bin is closed: a confidence of 1 is in it.
        inside = [
            (confidence, right)
            for confidence, right in zip(confidences, rights, strict=True)
            if min(math.floor(confidence * bins), bins - 1) == b
        ]
        if inside:
            accuracy = sum(right for _, right in inside) / len(inside)
            confidence = math.fsum(confidence for confidence, _ in inside) / len(inside)
            error += len(inside) / len(confidences) * abs(accuracy - confidence)
    return error if confidences else NAN


def expected_calibration_error_old(case: Case) -> float:
    if case.old_kind is None:
        return NAN
    known = labelled(case)
    return calibration_error(
        [max(probabilities(row.old_scores or {}, case.old_kind).values()) for row in known],
        [row.old == row.target for row in known],
    )


def expected_calibration_error_new(case: Case) -> float:
    if case.new_kind is None:
        return NAN
    known = labelled(case)
    return calibration_error(
        [max(probabilities(row.new_scores or {}, case.new_kind).values()) for row in known],
        [row.new == row.target for row in known],
    )


def margin(chances: Scores) -> float:
    ranked = sorted(chances.values(), reverse=True)
    # Of one class there is no second: nothing is taken off.
    return ranked[0] - (ranked[1] if len(ranked) > 1 else 0.0)


def margin_old(case: Case) -> float:
    if case.old_kind is None:
        return NAN
    margins = [margin(probabilities(row.old_scores or {}, case.old_kind)) for row in case.rows]
    return ratio(math.fsum(margins), len(margins))


def margin_new(case: Case) -> float:
    if case.new_kind is None:
        return NAN
    margins = [margin(probabilities(row.new_scores or {}, case.new_kind)) for row in case.rows]
    return ratio(math.fsum(margins), len(margins))


def entropy(chances: Scores) -> float:
    return -math.fsum(p * math.log(p) for p in chances.values() if p > 0)


def entropy_old(case: Case) -> float:
    if case.old_kind is None:
        return NAN
    found = [entropy(probabilities(row.old_scores or {}, case.old_kind)) for row in case.rows]
    return ratio(math.fsum(found), len(found))


def entropy_new(case: Case) -> float:
    if case.new_kind is None:
        return NAN
    found = [entropy(probabilities(row.new_scores or {}, case.new_kind)) for row in case.rows]
    return ratio(math.fsum(found), len(found))


def logit_displacement(case: Case) -> float:
    if (case.old_kind, case.new_kind) != ("logits", "logits"):
        return NAN
    distances = []
    for row in case.rows:
        old, new = row.old_scores or {}, row.new_scores or {}
        if not set(old) & set(new):
            return NAN
        squares = [(new[name] - old[name]) ** 2 for name in old if name in new]
        distances.append(math.sqrt(math.fsum(squares)))
    return ratio(math.fsum(distances), len(distances))


def mcnemar_p(case: Case) -> float:
    if not labelled(case):
        return NAN
    negative = sum(is_negative_flip(row) for row in case.rows)
    positive = sum(is_positive_flip(row) for row in case.rows)
    flips = negative + positive
    tail = sum(math.comb(flips, k) for k in range(min(negative, positive) + 1)) / 2**flips
    return min(1.0, 2 * tail)


def churn_ratio(case: Case) -> float:
    controls = [row.controls for row in case.rows]
    if not controls or not controls[0]:
        return NAN
    own = sum(row.old != row.new for row in case.rows)
    theirs = [sum(row.old != row.controls[i] for row in case.rows) for i in range(len(controls[0]))]
    return math.inf if own and not sum(theirs) else ratio(own, sum(theirs) / len(theirs))


def negative_flip_ratio(case: Case) -> float:
    known = labelled(case)
    if not known or not known[0].controls:
        return NAN
    own = sum(is_negative_flip(row) for row in known)
    theirs = [
        sum(row.old == row.target and row.controls[i] != row.target for row in known)
        for i in range(len(known[0].controls))
    ]
    return math.inf if own and not sum(theirs) else ratio(own, sum(theirs) / len(theirs))


def f1(rows: Sequence[Row], labels: Sequence[str], name: str) -> float:
    right = [row.target == label == name for row, label in zip(rows, labels, strict=True)]
    actual = [row.target == name for row in rows]
    predicted = [label == name for label in labels]
    return ratio(2 * sum(right), sum(actual) + sum(predicted))


def of_class(case: Case, side: Literal["old", "new"]) -> tuple[list[Row], list[str]]:
    """All rows with a target, and their labels."""
    rows = [row for row in case.all_rows if row.target is not None]
    return rows, [row.old if side == "old" else row.new for row in rows]


def precision(case: Case, side: Literal["old", "new"]) -> float:
    rows, labels = of_class(case, side)
    found = [row for row, label in zip(rows, labels, strict=True) if label == case.of_class]
    return ratio(sum(row.target == case.of_class for row in found), len(found))


def recall(case: Case, side: Literal["old", "new"]) -> float:
    rows, labels = of_class(case, side)
    kept = [label for row, label in zip(rows, labels, strict=True) if row.target == case.of_class]
    return ratio(sum(label == case.of_class for label in kept), len(kept))


def precision_old(case: Case) -> float:
    return NAN if case.of_class is None else precision(case, "old")


def precision_new(case: Case) -> float:
    return NAN if case.of_class is None else precision(case, "new")


def recall_old(case: Case) -> float:
    return NAN if case.of_class is None else recall(case, "old")


def recall_new(case: Case) -> float:
    return NAN if case.of_class is None else recall(case, "new")


def f1_old(case: Case) -> float:
    return NAN if case.of_class is None else f1(*of_class(case, "old"), case.of_class)


def f1_new(case: Case) -> float:
    return NAN if case.of_class is None else f1(*of_class(case, "new"), case.of_class)


def macro_f1_gain(case: Case) -> float:
    rows = [row for row in case.rows if row.target is not None]
    classes = {row.target for row in rows}
    if not case.grouped:
        return NAN
    gains = [
        f1(rows, [row.new for row in rows], name) - f1(rows, [row.old for row in rows], name)
        for name in classes
    ]
    return ratio(sum(gains), len(classes))


def no_answer_share(case: Case, grades: Sequence[str | None], reason: str) -> float:
    if any(grade is None for grade in grades):
        return NAN
    return ratio(sum(grade == reason for grade in grades), len(case.rows))


def error_share_old(case: Case) -> float:
    return no_answer_share(case, [row.old_grade for row in case.rows], "error")


def error_share_new(case: Case) -> float:
    return no_answer_share(case, [row.new_grade for row in case.rows], "error")


def refused_share_old(case: Case) -> float:
    return no_answer_share(case, [row.old_grade for row in case.rows], "refused")


def refused_share_new(case: Case) -> float:
    return no_answer_share(case, [row.new_grade for row in case.rows], "refused")


def unparsed_share_old(case: Case) -> float:
    return no_answer_share(case, [row.old_grade for row in case.rows], "unparsed")


def unparsed_share_new(case: Case) -> float:
    return no_answer_share(case, [row.new_grade for row in case.rows], "unparsed")


METRICS: dict[str, Callable[[Case], float]] = {
    function.__name__: function
    for function in (
        error_rate_old,
        error_rate_new,
        accuracy_gain,
        negative_flip_rate,
        positive_flip_rate,
        flip_rate,
        relative_negative_flip_rate,
        negative_flip_impact,
        churn,
        churn_correct,
        churn_incorrect,
        wrong_to_wrong,
        surrogate_churn,
        kl_divergence,
        backward_trust_compatibility,
        backward_error_compatibility,
        expected_calibration_error_old,
        expected_calibration_error_new,
        margin_old,
        margin_new,
        entropy_old,
        entropy_new,
        logit_displacement,
        mcnemar_p,
        churn_ratio,
        negative_flip_ratio,
        precision_old,
        recall_old,
        f1_old,
        precision_new,
        recall_new,
        f1_new,
        macro_f1_gain,
        error_share_old,
        error_share_new,
        refused_share_old,
        refused_share_new,
        unparsed_share_old,
        unparsed_share_new,
    )
}


def on_a_bin_edge(case: Case, side: Literal["old", "new"]) -> bool:
    """Whether the last bit of some softmax decides the bin of a confidence."""
    kind = case.old_kind if side == "old" else case.new_kind
    if kind != "logits":
        return False
    for row in labelled(case):
        scores = row.old_scores if side == "old" else row.new_scores
        place = max(softmax(scores or {}).values()) * BINS
        if round(place) < BINS and abs(place - round(place)) < 1e-9:
            return True
    return False
