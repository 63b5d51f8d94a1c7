"""Plan a study at a scale: all runs that it needs, and the runs that each of its lines compares."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flipguard.errors import InputError
from flipguard.methods import method_of
from flipguard.studies.run_graph import Graph, PlannedRun
from flipguard.studies.scales import Scale
from flipguard.studies.study import OLD, Study, StudyRow


class NotAtScaleError(InputError):
    """Raised if a scale cannot show a study; `why` is the reason alone, for lists of studies."""

    def __init__(self, message: str, *, why: str) -> None:
        super().__init__(message)
        self.why = why


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPair:
    """The runs that a line of a study compares, for one seed."""

    line: int  # its index in the study
    seed: int
    old: Path
    new: Path
    # The runs of a side that is the mean of several runs; `old` or `new` is then the first.
    old_parts: tuple[Path, ...] = ()
    new_parts: tuple[Path, ...] = ()

    @property
    def sides(self) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
        """All runs of the old and of the new side."""
        return self.old_parts or (self.old,), self.new_parts or (self.new,)

    @property
    def names(self) -> dict[str, str]:
        """The names of the runs by side; the parts of one model are joined."""
        joined = ("+".join(run.name for run in runs) for runs in self.sides)
        return dict(zip(("old", "new"), joined, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlan:
    """All runs of a study at a scale, those that others need first, and the pairs to compare."""

    study: Study
    scale: Scale
    seeds: tuple[int, ...]
    nodes: tuple[PlannedRun, ...]
    updates: tuple[ComparedPair, ...]
    machine: Mapping[str, Any]
    left_out: Mapping[int, str] = field(default_factory=dict)  # indices of lines, and why
    judges: Mapping[int, Path] = field(default_factory=dict)  # by seed, if a histogram needs one


def plan_study(
    study: Study,
    scale: Scale,
    *,
    seeds: Sequence[int],
    out: Path,
    machine: Mapping[str, Any],
    most_members: int | None = None,
) -> StudyPlan:
    """Return the plan of a study at a scale; `most_members` replaces the scale's limit."""
    places = study.chosen(scale.stands_for, exact=scale.exact)
    scale = scale.of_study(study.paper, study.id)
    if most_members is not None:
        scale = dataclasses.replace(scale, members=most_members)
    if not places:
        raise NotAtScaleError(
            f"Expected {study.id} at a scale whose data it has rows of, but {scale.name} stands "
            f"for {', '.join(scale.stands_for)}; choose another `scale=`.",
            why=f"It has no rows of {', '.join(scale.stands_for)}.",
        )
    graph = Graph(study, scale, out=out, machine=machine)
    left_out: dict[int, str] = {}
    updates = []
    for place in places:
        line = study.lines[place]
        why = line.why_not or _missing(study, scale, line)
        if why is not None:
            left_out[place] = why
            continue
        scale.check_filled([line.old.role or "", line.new.role or ""])
        for seed in seeds:
            updates.append(_update(graph, place, line, seed))
    if not updates:
        why = next(iter(left_out.values()))
        raise NotAtScaleError(
            f"Expected {study.id} to have lines at scale {scale.name}, but none can be trained: "
            f"{why}",
            why=why,
        )
    _check_adopted(study, scale, graph)
    judges = {}
    if study.histogram is not None and study.histogram.judge is not None:
        judge = study.models[study.histogram.judge]
        judges = {seed: graph.add(judge, seed=seed).folder for seed in seeds}
    return StudyPlan(
        study=study,
        scale=scale,
        seeds=tuple(seeds),
        nodes=tuple(graph.nodes.values()),
        updates=tuple(updates),
        machine=machine,
        left_out=left_out,
        judges=judges,
    )


def _check_adopted(study: Study, scale: Scale, graph: Graph) -> None:
    """Raise if a setting would change the trained models of a study, but not the adopted ones."""
    if not any(node.adopted for node in graph.nodes.values()):
        return
    given = [text.partition("=")[0] for text in scale.given]
    refused = [name for name in given if name.startswith("preprocessing.")]
    if scale.scope.get("validation") is not None:
        refused.append("scope.validation")
    if refused:
        raise NotAtScaleError(
            f"Expected {study.id} at scale {scale.name} without {refused[0]} in `settings=`, "
            "because its published models are adopted with their own preprocessing, and predict "
            "the test split; leave the setting out.",
            why=f"Its published models do not take {refused[0]}.",
        )


def _update(graph: Graph, place: int, line: StudyRow, seed: int) -> ComparedPair:
    old, new = (graph.parts(model, seed=seed) for model in (line.old, line.new))
    first = old[0] if old else graph.add(line.old, seed=seed)
    last = new[0] if new else graph.add(line.new, seed=seed, old=first)
    return ComparedPair(
        line=place,
        seed=seed,
        old=first.folder,
        new=last.folder,
        old_parts=tuple(node.folder for node in old),
        new_parts=tuple(node.folder for node in new),
    )


def _missing(study: Study, scale: Scale, line: StudyRow) -> str | None:
    """Return why a line cannot be trained at a scale; None if it can."""
    roles = {guide.role for model in (line.old, line.new) for guide in model.guides}
    for model in (line.old, line.new):
        followed = [study.models[name] for name in model.follows if name != OLD]
        roles |= {one.role for one in (model, *followed) if one.role is not None}
    absent = sorted(role for role in roles if not scale.models(role))
    if absent:
        return f"{scale.name} has no model for the role {absent[0]}."
    members = method_of(line.new.method)[0].asked_members(line.new.options)
    # With the limit, this point of a series would equal another point.
    if members is not None and members > scale.members and line.x is not None:
        return f"Ensembles have at most {scale.members} members at {scale.name}."
    return None
