"""Read studies from their files; each row of the paper's table must match exactly once."""

from __future__ import annotations

import dataclasses
import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from flipguard.errors import InputError, listed, nearest
from flipguard.specs import only
from flipguard.studies.claims import places_of, read_claim
from flipguard.studies.paper_tables import PaperRow, PaperTable, paper_tables, read_table
from flipguard.studies.study import (
    DEFAULT_METRICS,
    HISTOGRAM_METRICS,
    HISTOGRAMS,
    OLD,
    FromScratch,
    GuideSpec,
    Histogram,
    ModelSpec,
    Study,
    StudyRow,
)

MATRIX = "every two"
"""The group of all cells."""

CATALOG, WITHOUT = "catalog", "without.toml"
LIKE_NEW = "like new"
_STUDY = {"table", "title", "metrics", "roles", "models", "rows", "series", "claims", "notes"}
_STUDY |= {"curves", "axis", "test_samples", "histogram", "matrix", "device", "from_scratch"}
_ROWS = {"match", "old", "new", "why_not", "x", "unjudged"}
_SERIES = {"label", "group", "option", "x", "old", "new"}
_HISTOGRAM = {"of", "lines", "judge"}
_MODEL = {field.name for field in dataclasses.fields(ModelSpec)} - {"printed"} | {"take"}
# In all papers the old model saw half of the samples, or knew half of the classes.
HALF = 0.5


def matrix_lines(roles: Sequence[str], table: PaperTable) -> Iterator[StudyRow]:
    """Yield an update without a method for each old and each new model, also for equal roles."""
    for old, new in itertools.product(roles, repeat=2):
        yield StudyRow(
            label=f"{old} to {new}",
            group=MATRIX,
            block=(table.data, MATRIX, old, new),
            # Published weights exist once, so that a model and itself are two trainings.
            old=ModelSpec(role=old, generation=1, trained=old == new),
            new=ModelSpec(role=new, generation=0, trained=old == new),
            pair=(old, new),
        )


@cache
def studies() -> Mapping[str, Study]:
    """Return all studies by id, in the order of the papers; those with their own table are last."""
    folder = files(__package__).joinpath(CATALOG)
    found = {
        file.name.removesuffix(".toml"): file
        for file in folder.iterdir()
        if file.name.endswith(".toml")
    }
    own = sorted(found.keys() - paper_tables().keys())
    ids = [*(table for table in paper_tables() if table in found), *own]
    return MappingProxyType(
        {one: read_study(found[one].read_text(encoding="utf-8"), id=one) for one in ids}
    )


@cache
def without_study() -> Mapping[str, str]:
    """Return the tables and figures that have no study, and why."""
    text = files(__package__).joinpath(WITHOUT).read_text(encoding="utf-8")
    return MappingProxyType({str(k): str(v) for k, v in tomllib.loads(text).items()})


def study_of(id: str) -> Study:
    """Return the study with an id; raise if there is none, with a hint."""
    found = studies().get(id)
    if found is not None:
        return found
    if (reason := without_study().get(id)) is not None:
        raise InputError(f"Expected a study, but there is none of {id}: {reason}")
    hint = nearest(id, studies(), all_in="`flipguard study list` describes each of them")
    raise InputError(f"Expected a study, but got {listed([id])}; {hint}")


def read_study(text: str, *, id: str) -> Study:
    """Return a study from the text of its file."""
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise InputError(f"{id}.toml is not valid TOML: {problem}.") from problem
    only(given, _STUDY, f"{id}.toml")
    table = _table(given, id)
    roles = given.get("roles", {})
    models = {
        name: _model(one, f"{id}.toml: model {name}", None)
        for name, one in given.get("models", {}).items()
    }
    lines = [
        *_paper_lines(given.get("rows", []), table, roles, models, f"{id}.toml"),
        *_series_lines(given.get("series", []), table, f"{id}.toml"),
        *matrix_lines(given.get("matrix", []), table),
    ]
    if not lines:
        raise InputError(f"{id}.toml: expected `rows` or `series`, but got neither.")
    _check_follows(lines, models, f"{id}.toml")
    histogram = _histogram(given.get("histogram"), lines, models, f"{id}.toml")
    metrics = tuple(given.get("metrics", table.metrics))
    known = {
        *DEFAULT_METRICS,
        *metrics,
        *HISTOGRAM_METRICS.get("" if histogram is None else histogram.of, ()),
    }
    return Study(
        id=id,
        table=table,
        title=given.get("title", table.title),
        metrics=metrics,
        lines=tuple(lines),
        models=MappingProxyType(models),
        claims=tuple(
            read_claim(one, lines, f"{id}.toml", metrics=known, curves=given.get("curves", ()))
            for one in given.get("claims", [])
        ),
        notes=tuple(given.get("notes", ())),
        curves=tuple(given.get("curves", ())),
        histogram=histogram,
        matrix=tuple(given.get("matrix", ())),
        axis=given.get("axis"),
        test_samples=given.get("test_samples"),
        device=given.get("device"),
        from_scratch=_from_scratch(given.get("from_scratch"), f"{id}.toml"),
    )


def _table(given: Mapping[str, Any], id: str) -> PaperTable:
    """Return the table of a paper that a study names, or the one that it holds itself."""
    wanted = given.get("table", id)
    if isinstance(wanted, Mapping):
        paper = id.partition(".")[0]
        if id in paper_tables():
            raise InputError(
                f"{id}.toml: expected no `table`, because papers/{paper}.toml has {id}; remove it."
            )
        return read_table({**wanted, "id": id}, paper, f"{id}.toml: `table`")
    if not isinstance(wanted, str) or wanted not in paper_tables():
        raise InputError(
            f"{id}.toml: expected `table` to be one of a paper, but got {given.get('table', id)!r}."
        )
    return paper_tables()[wanted]


def _from_scratch(given: Mapping[str, str] | None, place: str) -> FromScratch | None:
    if given is None:
        return None
    names = {field.name for field in dataclasses.fields(FromScratch)}
    only(given, names, f"{place}: from_scratch")
    if absent := sorted(names - given.keys()):
        raise InputError(f"{place}: expected `from_scratch` to have {absent[0]}.")
    return FromScratch(**given)


def _paper_lines(
    rules: Sequence[Mapping[str, Any]],
    table: PaperTable,
    roles: Mapping[str, str],
    models: Mapping[str, ModelSpec],
    place: str,
) -> list[StudyRow]:
    for rule in rules:
        only(rule, _ROWS, f"{place}: rows")
    lines = []
    for row in table.rows if rules else ():
        found = [rule for rule in rules if matches(table, row, rule.get("match", {}))]
        if len(found) != 1:
            raise InputError(
                f"{place}: expected one of `rows` to match {row.label!r} of {table.id}, but "
                f"{len(found)} do."
            )
        lines.append(_paper_line(found[0], row, roles, models, f"{place}, {row.label}"))
    return lines


def matches(table: PaperTable, row: PaperRow, wanted: Mapping[str, Any]) -> bool:
    """Return whether a row has the wanted values; a list means any of its values."""
    for name, values in wanted.items():
        choices = values if isinstance(values, list) else [values]
        if not any(row in table.find(**{name: value}) for value in choices):
            return False
    return True


def _paper_line(
    rule: Mapping[str, Any],
    row: PaperRow,
    roles: Mapping[str, str],
    models: Mapping[str, ModelSpec],
    place: str,
) -> StudyRow:
    shared: dict[str, Any] = {
        "label": row.label,
        "group": row.group,
        "block": (row.data, row.scenario, row.old or "", row.new or ""),
        "paper": row,
        "x": rule.get("x"),
        "unjudged": _unjudged(rule, row, place),
    }
    if "why_not" in rule:
        return StudyRow(
            **shared, old=ModelSpec(), new=ModelSpec(method=""), why_not=rule["why_not"]
        )
    new = _model(rule.get("new", {}), f"{place}: new", row)
    if new.role is None:
        new = dataclasses.replace(new, role=_role(row.new, roles, place))
    old = _old(rule.get("old", {}), new, models, place)
    if old.role is None:
        old = dataclasses.replace(old, role=_role(row.old, roles, place))
    return StudyRow(**shared, old=_as_scenario(old, row.scenario), new=new)


def _unjudged(rule: Mapping[str, Any], row: PaperRow, place: str) -> tuple[str, ...]:
    given = tuple(rule.get("unjudged", ()))
    unknown = [name for name in given if name not in row.cells]
    if unknown:
        raise InputError(
            f"{place}: expected `unjudged` to list {', '.join(row.cells)}, but got "
            f"{listed(unknown)}."
        )
    return given


def _as_scenario(old: ModelSpec, scenario: str) -> ModelSpec:
    if "samples" in scenario and old.samples is None:
        return dataclasses.replace(old, samples=HALF)
    if "classes" in scenario and old.classes is None:
        return dataclasses.replace(old, classes=HALF)
    return old


def _series_lines(
    given: Sequence[Mapping[str, Any]], table: PaperTable, place: str
) -> list[StudyRow]:
    lines = []
    for series in given:
        only(series, _SERIES, f"{place}: series")
        new = _model(series.get("new", {}), f"{place}: new", None)
        old = _old(series.get("old", {}), new, {}, place)
        old = dataclasses.replace(old, role=old.role or new.role)
        new = dataclasses.replace(new, generation=new.generation or 0)
        group = series.get("group")
        block = (table.data, group or "", old.role or "", new.role or "")
        values = series.get("x", [None])
        for x in values if isinstance(values, list) else [values]:
            line = StudyRow(
                label=str(series["label"]).replace("{x}", "" if x is None else f"{x:g}"),
                group=group,
                block=block,
                old=old,
                new=new,
                x=x,
            )
            lines.append(_varied(line, series, x))
    return lines


def _varied(line: StudyRow, series: Mapping[str, Any], x: Any) -> StudyRow:
    """Return a point of a series, with an option of new set to x, and of old if it is like new."""
    option = series.get("option")
    if option is None:
        return line

    def varied(model: ModelSpec) -> ModelSpec:
        return dataclasses.replace(model, options={**model.options, option: x})

    given = series.get("old")
    alike = LIKE_NEW in (given, given.get("method") if isinstance(given, Mapping) else None)
    old = varied(line.old) if alike else line.old
    return dataclasses.replace(line, new=varied(line.new), old=old)


def _old(given: Any, new: ModelSpec, models: Mapping[str, ModelSpec], place: str) -> ModelSpec:
    """Return the old model of a line: by default without a method, one generation before new."""
    if isinstance(given, str) and given in models:
        return models[given]
    wanted = {"method": given} if isinstance(given, str) else given
    if not isinstance(wanted, Mapping) or (isinstance(given, str) and given != LIKE_NEW):
        raise InputError(
            f"{place}: expected `old` to be a table, {LIKE_NEW!r} or one of `models`, but got "
            f"{given!r}."
        )
    alike = wanted.get("method") == LIKE_NEW
    old = _model({k: v for k, v in wanted.items() if not (alike and k == "method")}, place, None)
    if alike:
        old = dataclasses.replace(
            new,
            role=old.role,
            # The old model does not follow itself.
            follows=old.follows or tuple(name for name in new.follows if name != OLD),
            fine_tune=old.fine_tune,
            watch=False,
            guides=old.guides or new.guides,
            generation=old.generation,
        )
    return old if old.generation is not None else dataclasses.replace(old, generation=1)


def _model(given: Any, place: str, row: PaperRow | None) -> ModelSpec:
    if not isinstance(given, Mapping):
        raise InputError(f"{place}: expected a table, but got {given!r}.")
    only(given, _MODEL, place)
    values = dict(given)
    take = values.pop("take", None)
    if row is not None:
        method = values.setdefault("method", row.method)
        if method is None:
            raise InputError(
                f"{place}: expected a `method`, because the paper's row is none of flipguard's."
            )
        values["printed"] = {
            name: value for name, value in row.options.items() if take is None or name in take
        }
        values.setdefault("generation", 0)
    for name in ("follows", "fix"):
        values[name] = tuple(values.get(name, ()))
    values["guides"] = tuple(GuideSpec(**one) for one in values.get("guides", ()))
    return ModelSpec(**values)


def _check_follows(lines: Sequence[StudyRow], models: Mapping[str, ModelSpec], place: str) -> None:
    every = [*models.values(), *(m for line in lines for m in (line.old, line.new))]
    unknown = [name for m in every for name in m.follows if name not in (OLD, *models)]
    if unknown:
        raise InputError(
            f"{place}: expected `follows` to name {OLD} or one of `models`, but got "
            f"{listed(unknown)}."
        )


def _histogram(
    given: Mapping[str, Any] | None,
    lines: Sequence[StudyRow],
    models: Mapping[str, ModelSpec],
    place: str,
) -> Histogram | None:
    if given is None:
        return None
    only(given, _HISTOGRAM, f"{place}: histogram")
    judge = given.get("judge")
    if given.get("of") not in HISTOGRAMS or (judge is not None and judge not in models):
        raise InputError(
            f"{place}: expected `histogram` to be of {', '.join(HISTOGRAMS)}, and `judge` to be "
            f"one of `models`, but got {dict(given)}."
        )
    chosen = [places_of(wanted, lines, place) for wanted in given.get("lines", [{}])]
    return Histogram(of=given["of"], places=tuple(i for some in chosen for i in some), judge=judge)


def _role(name: str | None, roles: Mapping[str, str], place: str) -> str:
    if name is None or name not in roles:
        raise InputError(
            f"{place}: expected `roles` to say what {name} is, but it has {listed(roles)}."
        )
    return roles[name]
