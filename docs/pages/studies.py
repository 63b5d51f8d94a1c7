"""Pages of the papers' tables, a page a committed result of `flipguard study run`, and one over all."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path

from flipguard.formatting import format_seconds
from flipguard.studies import draw, panels, sentences, show
from flipguard.studies import study as studying
from flipguard.studies.agreement import Pair
from flipguard.studies.explanations import Explanation, contradictions
from flipguard.studies.read_study import studies, study_of
from flipguard.studies.results import Result, Row, read_result
from flipguard.studies.scales import scales
from flipguard.studies.sentences import format_ratio, made_before, short
from flipguard.studies.show import PairTally, markdown_of, overview_line, pairs_of
from pages import places
from pages.places import DOCS

RESULTS = places.RESULTS / "studies"
CATALOG = Path(str(studying.__file__)).parent / "catalog"
VERDICTS = {
    "agree": "the paper's way",
    "disagree": "the other way",
    "undecided": "undecided",
}
# What each paper promises: its study, the method of the row, and the metric to hold against the untreated update.
GOALS = (
    ("ELODI flips less than an update without treatment", "elodi.table1", "elodi"),
    (
        "and between two models of one architecture that read texts",
        "elodi.table4",
        "elodi",
    ),
    ("so does the ensemble that it is to come near to", "elodi.table1", "ensemble"),
    ("Focal distillation of logits (FD-LM) flips less", "pct.table2a", "fd-lm"),
    ("and when a small model is replaced by a large one", "pct.table4a", "fd-lm"),
    ("Co-distillation churns less", "churn.table2", "codistill-skl"),
)
# What may become of an explained pair in its test, and how that is said.
IN_TESTS = {
    "agree": "as in the paper",
    "undecided": "undecided, but ordered as in the paper",
    "other way": "undecided and still ordered the other way",
    "other": "judged by rows of another study or by other measurements",
}
FLIPS, CHURN, ERROR = "negative_flip_rate", "churn", "error_rate_new"


@cache
def results() -> dict[str, Result]:
    """The committed results by name, in the order of studies, scale by scale."""
    found = {}
    for scale in scales():
        for study in studies():
            path = RESULTS / f"{study}.{scale}.json"
            if path.exists():
                found[path.stem] = read_result(path, study_of(study))
    return found


def overview_page() -> str:
    """All studies that were run: how far each agrees, and what became of the papers' promises."""
    lines = [
        "# The papers' tables, run here",
        "",
        "What `flipguard study run` found, beside what the papers print. [The guide](../guides/studies.md) says how "
        "agreement is computed, and how to run them. *Agreement* is the share of pairs of rows, among those that the "
        "paper separates clearly, that come out the same way here (none are counted where the paper fine-tunes and the scale trains from scratch); *explained* are pairs that come out the other way for "
        "a reason that was tested, and held. *Training* is that of all runs, added up; several of them share a device.",
        "",
        "Scales are small, and some weights of the papers do nothing at them, or too much; others no paper states. What a "
        "scale sets in their place is at the end of each page. The strength of co-distillation by SKL on CIFAR was found on "
        "held-out samples, and the recipe of PCT's table 3 on MNIST-1D on another draw of the data; the weights of focal "
        "distillation, KD and RACT on MNIST-1D, those of ELODI's main table on CIFAR-100, and that PCT's tables 5b and 7 on "
        "MNIST-1D have no augmentation, by the order of rows on test samples, of seeds that are among those shown. So part of the agreement was looked for, and it says what can "
        "be had at a scale rather than what comes of itself; [the log](../log.md) has what was tried.",
        "",
    ]
    by_scale: dict[str, list[str]] = {}
    for name, result in results().items():
        by_scale.setdefault(result.scale, []).append(name)
    if not by_scale:
        return "\n".join([*lines, "There is no result yet.", ""])
    if goals := _goals():
        lines += [
            "## What the papers promise",
            "",
            "Flips or churn over those of the untreated update: below 1 is better. *Error* is that of the new model, in "
            "percent, and what the untreated one has. The last column is about the order of flips or churn alone, not how far apart they are.",
            "",
            "| | table | row | scale | metric | paper | here | error in the paper | error here | |",
            "|---|---|---|---|---|---:|---:|---:|---:|---|",
            *goals,
            "",
        ]
    if broken := _broken_promises():
        lines += [
            "## What they say and does not hold here",
            "",
            "Claims in words are the papers' sentences that say an order: which value is lower. Sentences without one, such as "
            "that a rate is *almost* none, are not judged. Most of what the papers say of their tables is counted as pairs of rows; "
            "what is listed here is also said in words, and came out the other way by the 95 % interval.",
            "",
            *broken,
            "",
        ]
    for scale, names in by_scale.items():
        lines += [f"## {scale}", "", scales()[scale].sentence, ""]
        lines += _scale_table(names)
        lines += ["", overview_line([results()[name] for name in names]), ""]
        if marked := _made_before(names):
            lines += [marked, ""]
        if told := _how_explained(names):
            lines += [told, ""]
    lines += ["```{toctree}", ":hidden:", ":glob:", "", "studies/*", "```", ""]
    return "\n".join(lines)


def _scale_table(names: list[str]) -> list[str]:
    lines = [
        "| study | what it shows | seeds | agreement | same way | other way | explained | undecided | claims that hold "
        "| on | training |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---|---:|",
    ]
    for name in names:
        result = results()[name]
        found, facts = PairTally.of([result]), result.facts
        told = (
            f"[{result.study.id}](studies/{name}.md)",
            result.title.rstrip("."),
            len(result.seeds),
            found.percent,
            *found.counts,
            found.in_words,
            facts.get("device", {}).get("name", ""),
            format_seconds(facts["seconds"]) if "seconds" in facts else "",
        )
        lines.append("| " + " | ".join(map(str, told)) + " |")
    return lines


def _made_before(names: list[str]) -> str:
    """A sentence naming the results with rows from before a change of their method."""
    marked = [name for name in names if made_before(results()[name])]
    if not marked:
        return ""
    told = ", ".join(f"[{results()[name].study.id}](studies/{name}.md)" for name in marked)
    return f"These results have rows that were made before a change of their method; their pages say which: {told}."


def _how_explained(names: list[str]) -> str:
    """What became of the explained pairs in the runs that tested why: one that is undecided there explains less."""
    found: Counter[str] = Counter()
    chosen = [results()[name] for name in names]
    for result, counted in zip(chosen, pairs_of(chosen), strict=True):
        for group in contradictions(result):
            if group.is_explained:
                # What held comes first.
                why = group.explanations[0]
                found.update(_in_test(result, pair, why) for pair in group.pairs if pair in counted)
    if not found:
        return ""
    counted = [f"{found[kind]} {words}" for kind, words in IN_TESTS.items() if found[kind]]
    return f"Of the explained ones, the tests have {', '.join(counted)}."


def _in_test(result: Result, pair: Pair, explanation: Explanation) -> str:
    """The verdict on a pair in the evidence, if that is a result of the study, whose pairs are then counted as a whole."""
    if explanation.evidence is None or not explanation.whole:
        return "other"
    evidence = read_result(places.ROOT / explanation.evidence, result.study)

    def of_places(one: Result, pair: Pair) -> set[frozenset[int]]:
        return {frozenset(one.rows[row].place for row in rows) for rows in pair.stands_for}

    for tested in evidence.agreement().pairs:
        same = tested.metric == pair.metric
        if same and of_places(evidence, tested) & of_places(result, pair):
            if tested.verdict != "undecided":
                return tested.verdict
            ways = [values[1] - values[0] for values in (tested.ours, tested.paper)]
            return "undecided" if math.prod(ways) > 0 else "other way"
    return "other"


def _goals() -> list[str]:
    """A line a promise, row and scale."""
    lines = []
    for says, study, method in GOALS:
        for name, result in results().items():
            if result.study.id != study or result.uncounted is not None:
                continue
            metric = CHURN if CHURN in result.study.metrics else FLIPS
            for row in result.rows:
                if result.line(row).new.method != method or not row.values:
                    continue
                lines.append(
                    f"| {says} | [{study}](studies/{name}.md) | {result.line(row).label} | {result.scale} "
                    f"| {short(metric)} | {format_ratio(result.paper_ratio(row, metric))} "
                    f"| {format_ratio(result.ratio(row, metric))} | {_errors(result, row, of_paper=True)} "
                    f"| {_errors(result, row, of_paper=False)} | {_verdict(result, row, metric)}"
                    f"{', before a change of the method' * bool(row.made_before)} |"
                )
    return lines


def _broken_promises() -> list[str]:
    """A line for each claim in words that does not hold."""
    return [
        f"- [{result.study.id} at {result.scale}](studies/{name}.md): {says}"
        for name, result in results().items()
        for says, found in result.claims()
        if found.verdict == "disagree"
    ]


def _errors(result: Result, row: Row, *, of_paper: bool) -> str:
    """The new model's error, and the untreated one's, in percent."""
    untreated = result.untreated(row)
    if untreated is None:
        return ""
    told = [_error(result, one, of_paper=of_paper) for one in (row, untreated)]
    return f"{told[0]:.1f}, untreated {told[1]:.1f}" if not any(map(math.isnan, told)) else ""


def _error(result: Result, row: Row, *, of_paper: bool) -> float:
    if not of_paper:
        return 100 * row.mean(ERROR)
    if ERROR in result.study.metrics:
        return result.printed(row, ERROR)
    return 100 - result.printed(row, "accuracy")


def _verdict(result: Result, row: Row, metric: str) -> str:
    """Whether it and the untreated update come out in the paper's order."""
    control = result.study.control_of(row.place)

    def sides(pair: Pair) -> list[set[int]]:
        return [{result.rows[one].place for one in rows} for rows in pair.stands_for]

    for pair in result.agreement().pairs:
        if pair.metric == metric and {row.place, control} in sides(pair):
            return VERDICTS[pair.verdict]
    return ""


def study_page(name: str) -> str:
    """One study at one scale, its picture below the table."""
    result = results()[name]
    # Where somebody kept the runs says nothing to others.
    command = re.sub(r"\s--out[ =]\S+", "", str(result.facts.get("command", "")))
    result = dataclasses.replace(result, facts={**result.facts, "command": f"`{command}`"})
    blocks = markdown_of(result).split("\n\n")
    table = next(i for i, block in enumerate(blocks) if block.startswith("|"))
    blocks.insert(table + 1, f"![{result.study.id} at {result.scale}](../../{picture_of(name)})")
    return "\n\n".join(blocks).rstrip() + "\n\n[All studies](../studies.md)\n"


def picture_of(name: str) -> str:
    """Where the picture of a result is, in the documentation."""
    return f"images/studies/{name}.svg"


def study_chart(name: str) -> str:
    """The picture of a result, which stays as it is while the result and its drawing do.

    Other versions of the library that draws would move it by a hair, on every machine anew.
    """
    mark = mark_of(name)
    path = DOCS / picture_of(name)
    if path.exists() and path.read_text().endswith(mark):
        return path.read_text()
    import matplotlib as mpl

    with tempfile.TemporaryDirectory() as folder, mpl.rc_context({"svg.fonttype": "none"}):
        file = Path(folder) / "picture.svg"
        draw.plot_result(results()[name], str(file))
        return file.read_text() + mark


def mark_of(name: str) -> str:
    """The last line of a picture: a hash of all that decides what it shows."""
    of = results()[name].study
    drawn = [
        # What draws, and what gives labels and titles.
        *(Path(str(module.__file__)) for module in (draw, panels, draw, studying, show, sentences)),
        CATALOG / f"{of.id}.toml",
        RESULTS / f"{name}.json",
    ]
    # The paper's own numbers stand in the picture, too; of its file, only this table matters.
    parts = [*(file.read_bytes() for file in drawn), repr(of.table).encode()]
    digest = hashlib.sha256(b"".join(parts)).hexdigest()
    return f"<!-- of {digest[:16]} -->\n"
