"""Pages of the papers' tables: one per committed result of `flipguard study run`, and an overview."""

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
    "agree": "as in the paper",
    "disagree": "the other order",
    "undecided": "undecided",
}
# The main claims of each paper: a sentence, its study, and the method of the row.
GOALS = (
    ("ELODI breaks less than an untreated update", "elodi.table1", "elodi"),
    (
        "ELODI breaks less on texts, with two models of one architecture",
        "elodi.table4",
        "elodi",
    ),
    ("The ensemble, ELODI's upper bound, breaks less", "elodi.table1", "ensemble"),
    ("Focal distillation of logits (FD-LM) breaks less", "pct.table2a", "fd-lm"),
    ("FD-LM breaks less when a large model replaces a small one", "pct.table4a", "fd-lm"),
    ("Co-distillation churns less", "churn.table2", "codistill-skl"),
)
# The outcomes of an explained pair in its test, in words.
IN_TESTS = {
    "agree": "as in the paper",
    "undecided": "undecided, but in the order of the paper",
    "other way": "undecided and still in the other order",
    "other": "judged by rows of another study or other measurements",
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
    """Return the overview: how far each study agrees with its paper, and which main claims hold."""
    lines = [
        "# The papers' tables, run here",
        "",
        "These pages show what `flipguard study run` found, next to the numbers of the papers. [The guide](../guides/studies.md) "
        "explains how to run a study and how agreement is computed.",
        "",
        "- *Agreement* is the share of pairs of rows that have the same order here, among those that the paper "
        "separates clearly. No pair is counted if the paper fine-tunes and the scale trains from scratch.",
        "- *Explained* pairs have the other order for a reason that was tested and held.",
        "- *Training* is the total time of all runs. Several runs share a device.",
        "",
        "**Some settings were chosen by looking at these tables.** The scales are small. Some weights of the papers have no "
        "effect at them or too much effect, and some weights are in no paper. The end of each page lists the settings "
        "that are used instead. They were chosen as follows:",
        "",
        "- on held-out samples: the strength of co-distillation by SKL on CIFAR;",
        "- on another draw of the data: the recipe of PCT's table 3 on MNIST-1D;",
        "- by the order of rows on test samples, with seeds that are among those shown: the weights of focal distillation, KD "
        "and RACT on MNIST-1D, the weights of ELODI's main table on CIFAR-100, and that PCT's tables 5b and 7 on MNIST-1D "
        "have no augmentation.",
        "",
        "So the agreement shows what is possible at a scale, not what an arbitrary choice of settings gives. [The "
        "log](../log.md) lists what was tried.",
        "",
    ]
    by_scale: dict[str, list[str]] = {}
    for name, result in results().items():
        by_scale.setdefault(result.scale, []).append(name)
    if not by_scale:
        return "\n".join([*lines, "There is no result yet.", ""])
    if goals := _goals():
        lines += [
            "## The papers' main claims",
            "",
            "*Paper* and *here* are ratios: flips or churn of the row, divided by those of the untreated update. Below 1 is "
            "better. *Error* is the error of the new model and of the untreated one, in percent. The verdict is about the "
            "order of flips or churn only, not about the size of the difference.",
            "",
            "| claim | table | row | scale | metric | paper | here | error in the paper | error here | verdict |",
            "|---|---|---|---|---|---:|---:|---:|---:|---|",
            *goals,
            "",
        ]
    if broken := _broken_promises():
        lines += [
            "## Claims that do not hold here",
            "",
            "Claims in words are sentences of the papers that state an order: which value is lower. Sentences without an order, "
            "such as that a rate is *almost* none, are not judged. Most statements of the papers about their tables are counted "
            "as pairs of rows. The claims in this list are also stated in words, and the 95 % interval here shows the other "
            "order.",
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
        "| study | what it shows | seeds | agreement | same order | other order | explained | undecided | claims that hold "
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
    """Name the results that have rows from before a change of their method, in a sentence."""
    marked = [name for name in names if made_before(results()[name])]
    if not marked:
        return ""
    told = ", ".join(f"[{results()[name].study.id}](studies/{name}.md)" for name in marked)
    return f"These results have rows that were made before their method was changed; their pages say which rows: {told}."


def _how_explained(names: list[str]) -> str:
    """Count the outcomes of the explained pairs in the runs that tested the explanations."""
    found: Counter[str] = Counter()
    chosen = [results()[name] for name in names]
    for result, counted in zip(chosen, pairs_of(chosen), strict=True):
        for group in contradictions(result):
            if group.is_explained:
                # Explanations that held come first.
                why = group.explanations[0]
                found.update(_in_test(result, pair, why) for pair in group.pairs if pair in counted)
    if not found:
        return ""
    counted = [f"{found[kind]} {words}" for kind, words in IN_TESTS.items() if found[kind]]
    return f"The explained pairs in the runs that tested the explanations: {', '.join(counted)}."


def _in_test(result: Result, pair: Pair, explanation: Explanation) -> str:
    """The verdict on a pair in the evidence, if the evidence is a result of the same study."""
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
    """Return one line per main claim, row and scale."""
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
    """Return one line per claim in words that does not hold."""
    return [
        f"- [{result.study.id} at {result.scale}](studies/{name}.md): {says}"
        for name, result in results().items()
        for says, found in result.claims()
        if found.verdict == "disagree"
    ]


def _errors(result: Result, row: Row, *, of_paper: bool) -> str:
    """The error of the new model and of the untreated one, in percent."""
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
    """Whether the row and the untreated update have the paper's order."""
    control = result.study.control_of(row.place)

    def sides(pair: Pair) -> list[set[int]]:
        return [{result.rows[one].place for one in rows} for rows in pair.stands_for]

    for pair in result.agreement().pairs:
        if pair.metric == metric and {row.place, control} in sides(pair):
            return VERDICTS[pair.verdict]
    return ""


def study_page(name: str) -> str:
    """Return the page of one study at one scale, with its picture below the table."""
    result = results()[name]
    # The folder of the runs means nothing to other people.
    command = re.sub(r"\s--out[ =]\S+", "", str(result.facts.get("command", "")))
    result = dataclasses.replace(result, facts={**result.facts, "command": f"`{command}`"})
    blocks = markdown_of(result).split("\n\n")
    table = next(i for i, block in enumerate(blocks) if block.startswith("|"))
    blocks.insert(table + 1, f"![{result.study.id} at {result.scale}](../../{picture_of(name)})")
    return "\n\n".join(blocks).rstrip() + "\n\n[All studies](../studies.md)\n"


def picture_of(name: str) -> str:
    """The path of the picture of a result, in the documentation."""
    return f"images/studies/{name}.svg"


def study_chart(name: str) -> str:
    """Return the picture of a result. It is drawn again only if the result or the drawing code has changed.

    Other versions of the plotting library would change it slightly, on every machine.
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
    """The last line of a picture: a hash of all files that decide what it shows."""
    of = results()[name].study
    drawn = [
        # The drawing code, and the code for labels and titles.
        *(Path(str(module.__file__)) for module in (draw, panels, studying, show, sentences)),
        CATALOG / f"{of.id}.toml",
        RESULTS / f"{name}.json",
    ]
    # The paper's numbers are in the picture too; of the paper's file, only this table matters.
    parts = [*(file.read_bytes() for file in drawn), repr(of.table).encode()]
    digest = hashlib.sha256(b"".join(parts)).hexdigest()
    return f"<!-- of {digest[:16]} -->\n"
