"""`write_report`: write comparisons as one self-contained HTML page."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from flipguard.comparison import Comparison
from flipguard.errors import InputError, MissingExtraError, listed
from flipguard.files import replacing
from flipguard.gate import Verdict
from flipguard.report import WANTS
from flipguard.report.html import html_of
from flipguard.report.page import Page, build_page
from flipguard.report.sample_images import samples_from
from flipguard.report.samples import DEFAULT_BUDGET, Samples, bytes_of
from flipguard.runs.history import RunFolder, read_run

MOST_CANDIDATES = 20
Place = str | os.PathLike[str]


def write_report(
    result: Comparison | Mapping[str, Comparison],
    path: Place,
    *,
    verdict: Verdict | Mapping[str, Verdict] | None = None,
    samples: Place | None = None,
    samples_budget: int | str = DEFAULT_BUDGET,
    runs: Place | Sequence[Place] = (),
    title: str | None = None,
    command: str | None = None,
) -> None:
    """Write one self-contained HTML page that shows what an update breaks.

    `result` is a comparison, or a mapping of names to comparisons, which are shown side by side.
    `verdict` has the same form. `samples` is a folder of images, a file, or a column of the
    predictions; at most `samples_budget` bytes of them go into the page. `runs` are folders of
    finished runs, whose learning curves are shown. If writing fails, an existing file is kept.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(
            f"Expected `path` to be the path of the page, but got {type(path).__name__}."
        )
    text = report_html(
        result,
        verdict=verdict,
        samples=samples,
        samples_budget=samples_budget,
        runs=runs,
        title=title,
        command=command,
    )
    with replacing(Path(path)) as partial:
        partial.write_text(text, encoding="utf-8")


def report_html(
    result: Comparison | Mapping[str, Comparison],
    *,
    verdict: Verdict | Mapping[str, Verdict] | None = None,
    samples: Place | None = None,
    samples_budget: int | str = DEFAULT_BUDGET,
    runs: Place | Sequence[Place] = (),
    title: str | None = None,
    command: str | None = None,
) -> str:
    """The HTML text of the page that `write_report` writes."""
    return html_of(
        report_page(
            result,
            verdict=verdict,
            samples=samples,
            samples_budget=samples_budget,
            runs=runs,
            title=title,
            command=command,
        )
    )


def report_page(
    result: Comparison | Mapping[str, Comparison],
    *,
    verdict: Verdict | Mapping[str, Verdict] | None = None,
    samples: Place | None = None,
    samples_budget: int | str = DEFAULT_BUDGET,
    runs: Place | Sequence[Place] = (),
    title: str | None = None,
    command: str | None = None,
) -> Page:
    """The page as data before its charts are drawn; every check of the input is done here."""
    check_extra()
    results = _by_name(result)
    verdicts = _verdicts(verdict, results)
    # A policy may need groups that the comparison was not asked for.
    for name, judged in verdicts.items():
        if set(results[name].by) <= set(judged.comparison.by):
            results[name] = judged.comparison
    results = {name: _with_notes(one, verdicts.get(name)) for name, one in results.items()}
    budget = bytes_of(samples_budget)
    for name, given in (("title", title), ("command", command)):
        if given is not None and not isinstance(given, str):
            raise InputError(f"Expected `{name}` to be text, but got {type(given).__name__}.")
    if samples is not None and not isinstance(samples, str | os.PathLike):
        raise InputError(
            "Expected `samples` to be a path, or a column of the predictions, but got "
            f"{type(samples).__name__}."
        )
    places = [runs] if isinstance(runs, str | os.PathLike) else runs
    if not isinstance(places, Sequence) or not all(
        isinstance(place, str | os.PathLike) for place in places
    ):
        raise InputError(f"Expected `runs` to be run folders, but got {listed([runs])}.")
    found: dict[str, Samples] = {}
    others: list[tuple[str, Path]] = []
    if samples is not None:
        if os.path.exists(samples):
            # A file or folder is the same for all candidates and may be large: read it once.
            found = dict.fromkeys(results, samples_from(samples, next(iter(results.values()))))
            others.append(("samples", Path(samples)))
        else:
            found = {name: samples_from(samples, one) for name, one in results.items()}
    policies = [one.policy for one in verdicts.values()]
    others += [("policy", Path(name)) for name in dict.fromkeys(p.name for p in policies)]
    pinned = dict.fromkeys(p.pinned for p in policies if p.pinned is not None)
    others += [("pinned samples", path) for path in pinned]
    folders: list[RunFolder] = [read_run(run) for run in places]
    for one in results.values():
        if one.plan is not None:
            one.with_details(WANTS)
    return build_page(
        results,
        verdicts=verdicts,
        samples=found,
        budget=budget,
        runs=folders,
        others=others,
        title=title,
        command=command,
    )


def _by_name(result: Comparison | Mapping[str, Comparison]) -> dict[str, Comparison]:
    results = {result.new: result} if isinstance(result, Comparison) else result
    if not isinstance(results, Mapping) or not all(
        isinstance(one, Comparison) for one in results.values()
    ):
        raise InputError(
            f"Expected `result` to be a Comparison, or several by name, but got "
            f"{type(result).__name__}; compare predictions with flipguard.compare first."
        )
    if not 0 < len(results) <= MOST_CANDIDATES:
        raise InputError(
            f"Expected 1 to {MOST_CANDIDATES} candidates on one page, but got {len(results):,}; "
            "write several pages."
        )
    olds = {f"{one.n:,} samples of {one.old} at {one.confidence:.10g}" for one in results.values()}
    if len(olds) > 1:
        raise InputError(
            "Expected all candidates to be compared with one old model, on the same samples and at "
            f"one confidence level, but got {listed(sorted(olds))}; compare all in the same way."
        )
    named = {str(name): one for name, one in results.items()}
    if len(named) < len(results):
        raise InputError(
            f"Expected every candidate to have a unique name, but got {listed(results)}; rename "
            "those that read the same."
        )
    return named


def _is_same(one: Comparison, other: Comparison) -> bool:
    """Return whether two comparisons are of the same rows, whatever they are grouped by."""
    shared = set(one.counts.layout.names) & set(other.counts.layout.names)
    return (one.old, one.new) == (other.old, other.new) and all(
        np.array_equal(one.counts[name], other.counts[name]) for name in shared
    )


def _verdicts(
    verdict: Verdict | Mapping[str, Verdict] | None, results: Mapping[str, Comparison]
) -> dict[str, Verdict]:
    if verdict is None:
        return {}
    if isinstance(verdict, Verdict):
        if len(results) > 1:
            raise InputError(
                f"Expected a verdict for each of {len(results)} candidates, but got one; give a "
                "mapping of their names to verdicts."
            )
        verdict = {next(iter(results)): verdict}
    if not isinstance(verdict, Mapping):
        raise InputError(
            f"Expected `verdict` to be a Verdict, or several by name, but got "
            f"{type(verdict).__name__}; judge with flipguard.check."
        )
    given = {str(name): one for name, one in verdict.items()}
    for name, one in given.items():
        if name not in results or not isinstance(one, Verdict):
            raise InputError(
                f"Expected verdicts named like the candidates ({', '.join(results)}), but "
                f"got {name!r}; use the same names."
            )
        if not _is_same(one.comparison, results[name]):
            raise InputError(
                f"Expected the verdict on {name!r} to belong to the comparison on the page, but it "
                "belongs to another; judge this one with flipguard.check(result, policy)."
            )
    return given


def _with_notes(result: Comparison, verdict: Verdict | None) -> Comparison:
    """The comparison with the notes that its verdict added."""
    added = [] if verdict is None else [*result.notes, *verdict.comparison.notes]
    return replace(result, notes=tuple(dict.fromkeys(added))) if added else result


def check_extra() -> None:
    """Raise if a package that the page needs is not installed."""
    for module, package in (
        ("jinja2", "jinja2"),
        ("markupsafe", "markupsafe"),
        ("vl_convert", "vl-convert-python"),
    ):
        try:
            __import__(module)
        except ModuleNotFoundError as problem:
            raise MissingExtraError("The HTML report", package=package, extra="report") from problem
