"""The result of a study: one JSON document per study and scale, and how it compares."""

from __future__ import annotations

import itertools
import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from flipguard._version import __version__
from flipguard.errors import InputError, printable
from flipguard.files import replacing
from flipguard.formatting import finite_or_none
from flipguard.studies.agreement import Agreement, Measured, agreement
from flipguard.studies.claims import ClaimResult, check_claim
from flipguard.studies.document import FACTS, SCHEMA, checked, load, study_in
from flipguard.studies.paper_tables import PaperCell
from flipguard.studies.read_study import study_of
from flipguard.studies.scales import scales
from flipguard.studies.study import ClaimSide, Study, StudyRow

RESULTS = "results"
EARLIER = "earlier"  # a folder in it, for results that were replaced by those of other settings
# The sources of randomness that a study may fix; augmentation is fixed or removed as well.
ALL_FIXED = frozenset({"init", "order"})
# Metrics that compare two models.
BETWEEN_MODELS = frozenset(
    {
        *("negative_flip_rate", "relative_negative_flip_rate", "logit_displacement"),
        *("churn", "surrogate_churn", "churn_correct", "churn_incorrect"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the study with its values for each seed; without values if it was left out."""

    place: int
    values: Mapping[str, tuple[float, ...]]
    why_not: str | None = None
    runs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    curves: Mapping[str, Any] = field(default_factory=dict)
    histogram: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    # Changes of the method's formula that came after these runs; empty for new runs.
    made_before: tuple[str, ...] = ()

    @property
    def repeats(self) -> frozenset[int]:
        """The indices of seeds that compare the runs of an earlier seed, as published models do."""
        seen: set[tuple[frozenset[str], ...]] = set()
        found: set[int] = set()
        for index, runs in enumerate(zip(*self.runs.values(), strict=False)):
            # The order of the models in a mean does not matter.
            models = tuple(frozenset(names.split("+")) for names in runs)
            if models in seen:
                found.add(index)
            seen.add(models)
        return frozenset(found)

    def counted(self, metric: str) -> tuple[float, ...]:
        """Return the value of each seed; nan for a seed that repeats the runs of an earlier one."""
        values, repeats = self.values.get(metric, ()), self.repeats
        return tuple(math.nan if i in repeats else value for i, value in enumerate(values))

    def known(self, metric: str) -> tuple[float, ...]:
        """Return the values of the seeds that have one; without flips there is no mean rank."""
        return tuple(value for value in self.counted(metric) if not math.isnan(value))

    def of_side(self, side: ClaimSide) -> Sequence[float]:
        """Return the values of a claim's side for each seed: a metric, or a part of its curve."""
        if side.curve is None:
            return self.counted(side.metric)
        curves = self.curves.get(side.curve, {}).get(side.metric, ())
        epochs = slice(-1, None) if side.first is None else slice(side.first)
        rates = [[math.nan if rate is None else rate for rate in one[epochs]] for one in curves]
        return [float(np.mean(one)) for one in rates]

    def mean(self, metric: str) -> float:
        """Return the mean over the seeds that have a value."""
        values = self.known(metric)
        return float(np.mean(values)) if values else math.nan

    def error(self, metric: str) -> float:
        """Return the standard error of the mean; nan for one seed."""
        values = self.known(metric)
        return (
            float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A study that was run at a scale."""

    study: Study
    scale: str
    given: tuple[str, ...]
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]
    facts: Mapping[str, Any]

    @property
    def pretrained(self) -> bool:
        """Whether models start from pretrained weights; False if the scale no longer exists."""
        scale = scales().get(self.scale)
        return scale is not None and scale.of_study(self.study.paper, self.study.id).pretrained

    @property
    def title(self) -> str:
        """The title of the study at this scale."""
        return self.study.title_at(pretrained=self.pretrained)

    @property
    def uncounted(self) -> str | None:
        """Why no pair of rows is counted; None if they are counted."""
        scratch = self.study.from_scratch
        return None if scratch is None or self.pretrained else scratch.note

    def line(self, row: Row) -> StudyRow:
        """Return the study's line of a row."""
        return self.study.lines[row.place]

    def name_of(self, row: Row) -> str:
        """Return the name under which a row is shown."""
        return self.study.name_of(self.line(row))

    def ratio(self, row: Row, metric: str) -> float:
        """Return the ratio to control: a row's mean over that of the control of its update."""
        untreated = self.untreated(row)
        base = math.nan if untreated is None else untreated.mean(metric)
        return row.mean(metric) / base if base else math.nan

    def untreated(self, row: Row) -> Row | None:
        """Return the control of the same update; None if it is not in the result."""
        control = self.study.control_of(row.place)
        return next((one for one in self.rows if one.place == control), None)

    def paper_ratio(self, row: Row, metric: str) -> float:
        """Return the ratio to control of the paper's numbers."""
        control = self.study.control_of(row.place)
        if control is None:
            return math.nan
        printed = [_printed(self.study.lines[place], metric) for place in (row.place, control)]
        return printed[0] / printed[1] if printed[1] else math.nan

    def printed(self, row: Row, metric: str) -> float:
        """Return the value that the paper prints, rates in percent; nan if it prints none."""
        return _printed(self.line(row), metric)

    def is_repeated(self, row: Row) -> bool:
        """Return whether all randomness was fixed and the device repeated the same model exactly.

        Such a row says nothing about the randomness of the paper's device.
        """
        moved = row.values.get("logit_displacement", ())
        return set(self.line(row).new.fix) >= ALL_FIXED and len(moved) > 0 and not any(moved)

    def agreement(self, *, repeated: bool = False) -> Agreement:
        """Return the agreement with the paper; rows that a device repeats count if `repeated`."""
        if self.uncounted is not None:
            return Agreement(pairs=())
        rows = [
            Measured(
                label=(line := self.line(row)).label,
                block=line.block,
                # Rows that were not run count neither as decided nor as undecided.
                paper=_compared(line, between=repeated or not self.is_repeated(row))
                if row.values
                else {},
                values=row.values,
                samples=self.study.samples_of(line.data),
            )
            for row in self.rows
        ]
        return agreement(rows, self.study.metrics)

    def claims(self) -> list[tuple[str, ClaimResult]]:
        """Return the paper's claims in words, and whether they hold."""
        by_place = {row.place: row for row in self.rows}

        def values(place: int, side: ClaimSide) -> Sequence[float]:
            return by_place[place].of_side(side) if place in by_place else ()

        return [(claim.says, check_claim(claim, values)) for claim in self.study.claims]


def _compared(line: StudyRow, *, between: bool) -> dict[str, PaperCell]:
    """Return the paper's cells that count; those that compare two models only if `between`."""
    cells = {} if line.paper is None else line.paper.cells
    left_out = {*line.unjudged, *(() if between else BETWEEN_MODELS)}
    return {name: cell for name, cell in cells.items() if name not in left_out}


def _printed(line: StudyRow, metric: str) -> float:
    cell = None if line.paper is None else line.paper.cells.get(metric)
    return math.nan if cell is None or cell.value is None else cell.value


def result_path(out: Path, study: str, scale: str) -> Path:
    """Return the path of the result of a study at a scale."""
    return out / RESULTS / f"{study}.{scale}.json"


def check_out(out: Path) -> None:
    """Raise if the folder of runs and results is a file."""
    if out.exists() and not out.is_dir():
        raise InputError(f"Expected `out=` to be a folder, but {out} is a file; name another one.")


def archive_result(path: Path, *, written: str) -> Path:
    """Move a result aside to a free name, and return its new path."""
    stem = f"{path.stem}.{written.replace(':', '')}"
    names = itertools.chain([stem], (f"{stem}.{number}" for number in itertools.count(2)))
    places = (path.parent / EARLIER / f"{name}.json" for name in names)
    kept = next(place for place in places if not place.exists())
    kept.parent.mkdir(exist_ok=True)
    path.replace(kept)
    return kept


def write_result(result: Result, path: Path) -> None:
    """Write a result, completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        partial.write_text(json.dumps(as_document(result), indent=1, ensure_ascii=False) + "\n")


def as_document(result: Result) -> dict[str, Any]:
    """Return a result as plain values for JSON; rates are shares, and undefined is null."""
    found = result.agreement()
    return {
        "schema": SCHEMA,
        "study": result.study.id,
        "scale": result.scale,
        "set": list(result.given),
        "seeds": list(result.seeds),
        **result.facts,
        "agreement": {
            "share": finite_or_none(found.share),
            "clear": len(found.pairs),
            **{name: found.count(name) for name in ("agree", "disagree", "undecided")},
        },
        "rows": [_row(result, row) for row in result.rows],
    }


def _row(result: Result, row: Row) -> dict[str, Any]:
    line = result.line(row)
    document: dict[str, Any] = {"place": row.place, "label": line.label, "group": line.group}
    if row.why_not is not None:
        return document | {"why_not": row.why_not}
    document["runs"] = {side: list(runs) for side, runs in row.runs.items()}
    document["metrics"] = {
        name: {
            "values": [finite_or_none(value) for value in values],
            "mean": finite_or_none(row.mean(name)),
            "standard_error": finite_or_none(row.error(name)),
        }
        for name, values in row.values.items()
    }
    if row.curves:
        document["curves"] = row.curves
    if row.histogram:
        document["histogram"] = row.histogram
    if row.notes:
        document["notes"] = list(row.notes)
    if row.made_before:
        document["made_before"] = list(row.made_before)
    return document


def read_result(path: Path, study: Study) -> Result:
    """Read the result of a study from a file."""
    try:
        found = checked(load(path), study)
    except FileNotFoundError as problem:
        raise InputError(
            f"Expected the result {path}, but there is none; make it with `flipguard study run "
            f"{study.id}` and the same `scale=` and `out=`, or give "
            "another scale or folder."
        ) from problem
    except (ValueError, OSError) as problem:
        check_out(path.parent.parent)
        raise InputError(
            f"Expected {printable(str(path))} to be the result of {study.id}, but it is damaged or "
            f"of another version ({printable(str(problem))}); run the study again, which trains "
            "only what is missing."
        ) from problem
    return Result(
        study=study,
        scale=found["scale"],
        given=tuple(found["set"]),
        seeds=tuple(found["seeds"]),
        rows=tuple(_read_row(row) for row in found["rows"]),
        facts={name: found[name] for name in FACTS if name in found},
    )


def result_in(path: Path) -> Result:
    """Read a result from a file with any name; its study is in the file."""
    try:
        study = study_in(load(path))
    except FileNotFoundError as problem:
        raise InputError(
            f"Expected {path} to be a study's result, but there is no such file; name one that "
            "exists, or a study by its ID."
        ) from problem
    except (ValueError, OSError) as problem:
        raise InputError(
            f"Expected {path} to be a study's result, as `flipguard study run` writes it, but it "
            "is not one; name another file, or a study by its ID."
        ) from problem
    return read_result(path, study_of(study))


def _read_row(row: Mapping[str, Any]) -> Row:
    return Row(
        place=row["place"],
        values={name: tuple(values) for name, values in row.get("metrics", {}).items()},
        why_not=row.get("why_not"),
        runs={side: tuple(runs) for side, runs in row.get("runs", {}).items()},
        curves=row.get("curves", {}),
        histogram=row.get("histogram", {}),
        notes=tuple(row.get("notes", ())),
        made_before=tuple(row.get("made_before", ())),
    )


def result_facts(
    device: str,
    command: str,
    *,
    differences: Sequence[str],
    runs: int,
    processes: int | None,
    seconds: float,
    setting: Mapping[str, Any],
) -> dict[str, Any]:
    """Return where, when and with what a study was run.

    `seconds` is the sum over all its runs, each of which shared the device with others.
    """
    import torch

    name = _processor()
    if device.startswith("cuda") and torch.cuda.is_available():
        name = torch.cuda.get_device_name()
    return {
        "device": {"kind": device, "name": name},
        "versions": {
            "flipguard": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "command": command,
        "differences": list(differences),
        "setting": dict(setting),
        "runs": runs,
        **({} if processes is None else {"processes": processes}),
        "seconds": round(seconds, 1),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _processor() -> str:
    """Return the name of the CPU, if the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def results_in(out: Path) -> Sequence[Path]:
    """Return the paths of all results in a folder."""
    return sorted((out / RESULTS).glob("*.json"))
