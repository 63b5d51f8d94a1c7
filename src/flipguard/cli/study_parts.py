"""What `flipguard study run` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

MOST_NAMED = 6

if TYPE_CHECKING:
    from rich.console import JustifyMethod, RenderableType

    from flipguard.studies.running import Outcome
    from flipguard.studies.tasks import Task


def named(task: Task) -> str:
    """What is run, in a word or two."""
    count = len(task.plans)
    return task.plans[0].study.id if count == 1 else f"{count} studies"


def outcome_parts(task: Task, outcome: Outcome) -> Iterator[RenderableType]:
    """Every result, and how far all of them agree."""
    from flipguard.studies.overview import overview_line, overview_table
    from flipguard.studies.render import result_parts
    from flipguard.studies.results import result_path

    for number, result in enumerate(outcome.results):
        if number:
            yield ""
        yield from result_parts(result)
        yield from ("", str(result_path(task.out, result.study.id, result.scale)))
    if len(outcome.results) > 1:
        yield from ("", overview_table(outcome.results), "", overview_line(outcome.results))


def what_is_left(task: Task, outcome: Outcome) -> str:
    """What a later call would go on with."""
    from flipguard.studies.costs import in_words

    left = task.left
    return (
        f"time is up, and {len(left)} of {len(task.nodes)} runs are left, about "
        f"{in_words(task.seconds(left))}, of {_named(outcome.missing)}; run the same command "
        "again to continue."
    )


def without_results(outcome: Outcome) -> str:
    """Which studies lack runs, behind the sentence that says why."""
    if len(outcome.results) + len(outcome.missing) < 2 or not outcome.missing:
        return ""
    return f" There is no result of {_named(outcome.missing)}."


def _named(studies: Sequence[str]) -> str:
    return ", ".join(studies) if len(studies) <= MOST_NAMED else f"{len(studies)} studies"


def plan_parts(task: Task) -> list[RenderableType]:
    """What would be trained, and how long it should take."""
    from rich.table import Table

    from flipguard.studies.tasks import plan_rows, plan_summary

    table = Table(box=None, pad_edge=False)
    for head, right in (("method", 0), ("model", 0), ("runs", 1), ("there", 1), ("each", 1)):
        # Where a terminal is narrow, names give way and not numbers.
        side: JustifyMethod = "right" if right else "left"
        table.add_column(head, justify=side, no_wrap=bool(right), overflow="fold")
    table.add_column("all", justify="right", no_wrap=True)
    for method, model, runs, there, each, total in plan_rows(task):
        table.add_row(method, model, str(runs), str(there), each, total)
    # Labels once each, as the keys of a dictionary keep them in order.
    not_run: dict[tuple[str, str], dict[str, None]] = {}
    for plan in task.plans:
        of = f" of {plan.study.id}" if len(task.plans) > 1 else ""
        for place, why in plan.left_out.items():
            line = plan.study.lines[place]
            label = line.label if line.pair is None else "cells of the matrix"
            not_run.setdefault((of, why), {})[label] = None
    left_out = [f"Not run{of}: {'; '.join(labels)}. {why}" for (of, why), labels in not_run.items()]
    left_out += [f"Left out: {study}. {why}" for study, why in task.left_out.items()]
    told = [plan_summary(task), *left_out]
    if task.no_data is not None:
        told.append(f"To run it, something is missing. {task.no_data}")
    return [_plan_head(task), "", table, "", *told, "Nothing was trained."]


def _plan_head(task: Task) -> str:
    first = task.plans[0]
    seeds = f"{len(first.seeds)} seed{'s' * (len(first.seeds) != 1)}"
    if len(task.plans) > 1:
        names = ", ".join(plan.study.id for plan in task.plans)
        return f"{named(task)} at {first.scale.name}, {seeds}: {names}."
    lines = len({update.line for update in first.updates})
    title = first.study.title_at(pretrained=first.scale.pretrained)
    return f"{named(task)} at {first.scale.name}: {title}\n{lines} rows, {seeds}."
