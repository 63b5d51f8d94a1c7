"""Refuse, or note, what a policy cannot judge in predictions and comparisons.

Judging belongs to `flipguard.gate`; a policy that is invalid for all files, to `flipguard.policy`.
"""

from __future__ import annotations

from collections.abc import Iterator

from flipguard.comparison import Comparison
from flipguard.counts import NO_ANSWER, SIDES, grade_name
from flipguard.engines.classes import is_scalar
from flipguard.errors import PolicyError, listed, nearest
from flipguard.metrics import METRICS
from flipguard.notes import forgotten_target
from flipguard.policy import Policy, Rule
from flipguard.predictions.table import Predictions


def check_columns(policy: Policy, *, old: Predictions, new: Predictions) -> None:
    """Refuse a rule whose group-by column does not exist, before anything is compared."""
    for i, rule in enumerate(policy.rules, start=1):
        by = "target" if "classes" in METRICS[rule.metric].needs else rule.by
        if by is None:
            continue
        where = f"{policy.name}: rule {i} groups {rule.metric} by '{by}'"
        found = [(side, side.column(by)) for side in (old, new)]
        if rule.by != by and all(column is None for _, column in found):
            raise PolicyError(
                f"{policy.name} limits {rule.metric}, which needs targets, but {old.name} and "
                f"{new.name} do not have that; add it, or remove the rule."
            )
        if all(column is None for _, column in found):
            columns = dict.fromkeys((*old.columns, *new.columns))
            every = f"group by one of their columns: {listed(columns, most=12)}"
            raise PolicyError(
                f"{where}, but neither {old.name} nor {new.name} has that column; "
                + nearest(by, columns, all_in=every)
            )
        for side, column in found:
            dtype = None if column is None else side.frame.collect_schema()[column]
            if dtype is not None and not is_scalar(dtype):
                raise PolicyError(
                    f"{where}, but samples cannot be grouped by this column of type {dtype} in "
                    f"{side.name}; use a column of text, numbers or times."
                )


def check_judgeable(result: Comparison, policy: Policy) -> None:
    """Refuse a comparison that lacks what a rule needs, or in which no sample could break."""
    _refuse_strangers(result, policy)
    for rule in policy.rules:
        _refuse_absent(result, rule, policy)


def blind_rules(result: Comparison, policy: Policy) -> Iterator[str]:
    """Yield a note per model whose missing answers are limited, though its grades show none."""
    limited = {rule.metric for rule in policy.rules}
    for side, name in zip(SIDES, (result.old, result.new), strict=True):
        shares = {f"{reason}_share_{side}" for reason in NO_ANSWER}
        grades = [grade_name(side, reason) for reason in NO_ANSWER]
        if limited & shares and not any(result.counts[grade] for grade in grades):
            yield (
                f"{name} holds only right and wrong grades, so refusals, errors and unreadable "
                f"answers cannot be seen in it"
            )


def _refuse_strangers(result: Comparison, policy: Policy) -> None:
    """Refuse an old model or a control that is never right: any update would pass against it.

    The cause is usually that predictions and targets spell classes differently, which hides flips.
    """
    counts = result.counts
    if not counts.layout.has_target or counts.labelled == 0:
        return
    right_counts = {result.old: counts.old_right}
    for i, name in enumerate(result.controls):
        right_counts[name] = counts.control(i).new_right
    for name, right in right_counts.items():
        if right == 0 and counts.layout.graded:
            raise PolicyError(
                f"{policy.name} cannot be judged because no sample of {name} is graded as right, "
                "so no sample could break; check the column of grades."
            )
        if right == 0:
            raise PolicyError(
                f"{policy.name} cannot be judged because no prediction of {name} equals its "
                "target, so no sample could break; check that predictions and targets use the same "
                "class names."
            )


def _refuse_absent(result: Comparison, rule: Rule, policy: Policy) -> None:
    metric, groups = METRICS[rule.metric], result.by.get(str(rule.by), ())
    layouts = [group.counts.layout for group in groups] or [result.layout]
    absent = metric.needs - layouts[0].available
    if absent in ({"class"}, {"classes"}):
        scope, way = "class", 'group the rule by the target (by = "target")'
        if "classes" in absent:
            scope, way = "comparison", "remove `by` from the rule"
        raise PolicyError(
            f"{policy.name} limits {metric.name}, which is measured per {scope} and not per "
            f"{'sample' if rule.by is None else f'group of {rule.by!r}'}; {way}."
        )
    if absent:
        hint = forgotten_target(result.plan) if "target" in absent else ""
        raise PolicyError(
            f"{policy.name} limits {metric.name}, which needs {_listed_needs(absent)}, but "
            f"{result.old} and {result.new} do not have that; add it, or remove the rule{hint}."
        )


def _listed_needs(needs: frozenset[str]) -> str:
    """Return in words what a metric needs."""
    words = {
        "target": "targets",
        "label": "predicted labels",
        "grades": "grades (`correct=`)",
        "old scores": "class scores of the old model",
        "new scores": "class scores of the new model",
        "logits": "logits of both models",
        "control": "a control (`control=`)",
        "class": "classes",
        "classes": "classes",
    }
    return " and ".join(words[need] for need in sorted(needs))
