"""Numbers and findings of a study as text. Tables belong to `show`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from flipguard.formatting import format_percent, format_seconds
from flipguard.metrics import METRICS
from flipguard.studies.agreement import Pair
from flipguard.studies.claims import NOT_RUN
from flipguard.studies.explanations import Contradictions, Explanation, contradictions
from flipguard.studies.paper_tables import PaperCell
from flipguard.studies.results import Result, Row
from flipguard.studies.scales import scales

SHORT = {
    "error_rate_old": "old error",
    "error_rate_new": "new error",
    "accuracy": "accuracy",
    "negative_flip_rate": "NFR",
    "relative_negative_flip_rate": "rel. NFR",
    "churn": "churn",
    "surrogate_churn": "SChurn",
    "churn_correct": "C. right",
    "churn_incorrect": "C. wrong",
    "expected_calibration_error_new": "ECE",
    "margin_new": "margin",
    "entropy_new": "entropy",
    "logit_displacement": "move",
    "flip_rate_sure": "NFR, sure",
    "flip_rate_unsure": "unsure",
    "uncertainty_flipped": "σ flipped",
    "uncertainty_others": "σ others",
    "flips_told_apart": "told apart",
    "flips_left_sure": "left, sure",
    "flips_left_unsure": "left, unsure",
    "flips_left_apart": "difference",
    "flip_rank": "rank",
    "flip_rank_by_chance": "(chance)",
    "flip_second": "second",
}
# Metrics that only studies have and that are not percentages.
NO_SHARES = frozenset(
    {
        *("entropy_new", "uncertainty_flipped", "uncertainty_others", "flips_told_apart"),
        *("flip_rank", "flip_rank_by_chance"),
    }
)
LONG = {
    "NFR": "negative flip rate, the share of all samples",
    "rel. NFR": "negative flips divided by those of independent models with the same errors",
    "SChurn": "churn of the probabilities",
    "C. right": "churn of the samples that old gets right",
    "C. wrong": "churn of the samples that old gets wrong",
    "ECE": "expected calibration error of new",
    "margin": "margin of the new model: p(1st class) − p(2nd class)",
    "entropy": "mean entropy of the new model's predictions in nats, not a percentage",
    "NFR, sure": "negative flips of the less uncertain half of the samples",
    "unsure": "the same of the more uncertain half",
    "σ flipped": "mean uncertainty of flipped samples, not a percentage",
    "σ others": "mean uncertainty of the other samples, not a percentage",
    "told apart": "probability that a flipped sample is more uncertain than another sample: 0.5 if "
    "they do not differ, 1 if they are fully separated",
    "left, sure": "NFR of the less uncertain half, divided by that of the untreated update",
    "left, unsure": "the same of the more uncertain half",
    "difference": "NFR of the more uncertain half minus that of the less uncertain half",
    "rank": "mean rank of the new model's wrong class in the old model, where the right one is "
    "first; not a percentage",
    "(chance)": "the same for any wrong class",
    "second": "share of flips whose wrong class was the second choice of old",
    "move": "mean distance of the logits, not a percentage",
}
MISSING = "–"

MOST_CONTRADICTIONS = 6
# The accuracy of guessing varies a little around its mean.
ALMOST = 0.005
VERDICTS = {
    "agree": "holds",
    "disagree": "does not hold",
    "undecided": "is undecided",
    NOT_RUN: "was not run",
}
# Training samples of the public data sets. A copy may contain only some of them.
PUBLISHED = {
    "agnews": 120_000,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "fashion-mnist": 60_000,
}
# The model that a metric belongs to, if it is about one model.
MODELS = {
    "error_rate_old": "old model",
    "error_rate_new": "new model",
}
DEVICES = {"cpu": "CPU", "cuda": "GPU"}
# The ratio column is about the first of these metrics that a table has.
HEADLINES = ("negative_flip_rate", "churn", "expected_calibration_error_new")


def is_percent(metric: str) -> bool:
    """Whether a metric is shown in percent."""
    return metric not in NO_SHARES and (metric not in METRICS or METRICS[metric].percent)


def short(metric: str) -> str:
    """The column heading of a metric."""
    return SHORT.get(metric, metric)


def legend(metrics: tuple[str, ...], headline: str | None) -> str:
    """The meaning of the abbreviated column headings."""
    named = [(short(metric), LONG.get(short(metric))) for metric in metrics]
    if headline is not None:
        named.append(("ratio", f"{short(headline)} divided by that of the untreated update"))
    sentence = "; ".join(f"{name}: {text}" for name, text in named if text is not None)
    return f"{sentence}." if sentence else ""


def format_paper(cell: PaperCell | None) -> str:
    """A cell of the paper with the digits it prints, and a question mark if it is doubtful."""
    if cell is None or cell.value is None:
        return MISSING
    doubt = "?" if cell.unsure else ""
    spread = "" if cell.deviation is None else f"±{cell.deviation:.2f}"
    digits = 3 if cell.value < 1 and cell.deviation is None else 2
    return f"{cell.value:.{digits}f}{spread}{doubt}"


def format_ours(mean: float, error: float, metric: str) -> str:
    """A mean that was measured here, and its standard error."""
    if math.isnan(mean):
        return MISSING
    factor = 100 if is_percent(metric) else 1
    spread = "" if math.isnan(error) else f"±{factor * error:.2f}"
    return f"{factor * mean:.2f}{spread}"


def format_ratio(value: float) -> str:
    """A ratio to the control."""
    return MISSING if math.isnan(value) else f"{value:.2f}"


def headline_of(result: Result) -> str | None:
    """The metric of the ratio column, if the table has an untreated line to compare with."""
    found = next((name for name in HEADLINES if name in result.study.metrics), None)
    if found is None or all(math.isnan(result.ratio(row, found)) for row in result.rows):
        return None
    return found


def listed_rows(result: Result) -> Iterator[tuple[int, Row]]:
    """The rows that are lines of the table, with their indices; cells of a matrix are left out."""
    for index, row in enumerate(result.rows):
        if result.line(row).pair is None:
            yield index, row


def group_name(group: str) -> str:
    """The heading of a group of rows. "Ours" in a paper means the paper's methods."""
    return "The paper's own" if group == "Ours" else group


def made_before(result: Result) -> str | None:
    """A sentence that names the rows that were trained before their method's formula changed."""
    rows: dict[str, list[str]] = {}
    for _, row in listed_rows(result):
        for change in row.made_before:
            rows.setdefault(change, []).append(_shortest(result, row))
    if not rows:
        return None
    text = "; ".join(
        f"{change} ({', '.join(dict.fromkeys(names))})" for change, names in rows.items()
    )
    return f"Some rows were trained before their method changed, and not again since: {text}."


def verdict_lines(result: Result, *, most: int | None = MOST_CONTRADICTIONS) -> Iterator[str]:
    """Sentences about the agreement of a result with the paper."""
    found = result.agreement()
    headline = headline_of(result)
    if text := legend(result.study.metrics, headline):
        yield text
    if found.pairs:
        none_decided = found.count("undecided") == len(found.pairs)
        share = "undecided" if none_decided else format_percent(found.share, decimals=0)
        yield (
            f"Agreement: {share}. Of {len(found.pairs)} pairs of rows that the paper "
            f"separates clearly, {found.count('agree')} have the same order here, "
            f"{found.count('disagree')} the other order, and {found.count('undecided')} undecided "
            f"with {len(result.seeds)} seed{'s' * (len(result.seeds) != 1)}."
        )
    elif result.study.table.numbers:
        yield f"Agreement: {_why_none(result)}"
    if against := contradictions(result):
        yield "Pairs with the other order:"
    for group in against:
        yield from _contradicted(result, group, most)
    claims = result.claims()
    if against and claims:
        yield "Claims in words:"
    for says, judgement in claims:
        some = judgement.judged if judgement.judged < judgement.of else None
        of = "" if not some else f", judged by the {some} of {judgement.of} lines that were run"
        yield f"- The paper says: {says} Here it {VERDICTS[judgement.verdict]}{of}."
    yield from _not_run(result)
    if setting := result.facts.get("setting"):
        models = "; ".join(f"{name} is {model}" for name, model in setting["models"].items())
        epochs = setting["epochs"]
        yield (
            f"Here: {setting['data']}{_samples(setting)}, {epochs} epoch{'s' * (epochs != 1)}; "
            f"{models}."
        )
        if recipe := setting.get("recipe"):
            yield f"Recipe: {', '.join(f'{key} {value}' for key, value in recipe.items())}."
    if others := result.facts.get("differences"):
        yield f"Differences from the paper: {'; '.join(others)}."
    notes = (
        *_of_device(result),
        *result.study.notes,
        *_downgrades(result),
        *_notes_of_rows(result),
    )
    for note in notes:
        yield f"Note: {note}"
    yield from _cost(result)


def _not_run(result: Result) -> Iterator[str]:
    missing: dict[str, list[str]] = {}
    for _, row in listed_rows(result):
        if row.why_not is not None:
            missing.setdefault(row.why_not, []).append(result.name_of(row))
    for why, names in missing.items():
        yield f"- Not run: {'; '.join(names)}. {why}"


def _cost(result: Result) -> Iterator[str]:
    if "seconds" in result.facts:
        took = format_seconds(result.facts["seconds"])
        processes = result.facts.get("processes", 1)
        at_once = f", {processes} at a time" if processes > 1 else ""
        yield (
            f"{result.facts['runs']} runs{at_once}, {took} of training in total: "
            f"{result.facts['command']}"
        )


def _why_none(result: Result) -> str:
    """Why no pair of rows is counted."""
    if result.uncounted is not None:
        return f"not counted. {result.uncounted}"
    if repeated := result.agreement(repeated=True).pairs:
        return (
            f"nothing to count. The paper separates {len(repeated)} pairs of these rows clearly, "
            "but in each pair this device repeats the runs of one row exactly."
        )
    return "no two of the rows that were run differ clearly in the paper."


def _samples(setting: Mapping[str, Any]) -> str:
    """The numbers of samples; empty for old results, which do not record them."""
    if "samples" not in setting:
        return ""
    train, test = (setting["samples"][part] for part in ("train", "test"))
    whole = PUBLISHED.get(setting["data"], train)
    part = f"{train:,}" if train == whole else f"{train:,} of its {whole:,}"
    if validation := setting["samples"].get("validation"):
        return (
            f" ({part} training samples; all rates are of a validation split of {validation:,} "
            f"samples, and the {test:,} test samples were not used)"
        )
    return f" ({part} training samples, {test:,} test samples)"


def _contradicted(result: Result, group: Contradictions, most: int | None) -> Iterator[str]:
    """Some pairs that have the other order, with their tested explanations."""
    if not group.is_explained:
        yield "Not explained:"
    for one in group.explanations:
        head = "Explained" if one.holds else "Refuted"
        at = "" if one.tested_at is None else f" at {one.tested_at}, not at {result.scale}"
        yield f"{head}: {one.says} Tested{at}: {one.tested}{_of_the_test(one)}"
    shown = group.pairs[:most]
    for pair in shown:
        yield f"- {contradiction(result, pair)}"
    if len(group.pairs) > len(shown):
        yield f"- and {len(group.pairs) - len(shown)} more; `--markdown` lists all"


def _of_the_test(explanation: Explanation) -> str:
    """The outcome of all pairs in the test run, and the path of its rows."""
    text = ""
    if explanation.whole:
        agree, disagree, _ = explanation.whole
        text = (
            f" Of all {sum(explanation.whole)} pairs of that test {agree} have the paper's order, "
            f"and {disagree} the other order."
        )
    return text if explanation.evidence is None else f"{text} Evidence: `{explanation.evidence}`."


def _of_device(result: Result) -> Iterator[str]:
    """A note if a table about one kind of device was run on another."""
    kind = str(result.facts.get("device", {}).get("kind", ""))
    ours = DEVICES.get(kind.partition(":")[0])
    if ours is not None and result.study.device not in (None, ours):
        yield (
            f"The paper's table is about the randomness of a {result.study.device}. This result "
            f"was made on a {ours}, so it cannot confirm or contradict the paper."
        )


def _downgrades(result: Result) -> Iterator[str]:
    """Notes on untreated updates that lower the error in the paper and raise it here."""
    for row in result.rows:
        line = result.line(row)
        cells = {} if line.paper is None else line.paper.cells
        old, new = (
            None if (cell := cells.get(name)) is None else cell.value
            for name in ("error_rate_old", "error_rate_new")
        )
        if line.new.method != "none" or old is None or new is None or new >= old:
            continue
        was, now = row.mean("error_rate_old"), row.mean("error_rate_new")
        if now > was:
            yield (
                f"{_shortest(result, row)}: the new model has a higher error than the old one "
                f"here, {100 * now:.1f} against {100 * was:.1f} %, and a lower one in the paper, "
                f"{new:.1f} against {old:.1f}."
            )


def _notes_of_rows(result: Result) -> Iterator[str]:
    """Notes on single lines, such as seeds without a value."""
    for row in result.rows:
        line = result.line(row)
        name = f"{line.group}, {line.label}" if line.group else line.label
        yield from (f"{name}: {note}." for note in row.notes)
        if result.is_repeated(row):
            left_out = len(result.agreement(repeated=True).of(row.place)) - len(
                result.agreement().of(row.place)
            )
            yield (
                f"{name}: with everything fixed this device repeats a run exactly. Two such runs "
                "do not differ, which shows nothing about the paper's device. So "
                f"{left_out} pairs of this row that the paper separates are not counted."
            )
        scale = scales().get(result.scale)  # one of another version may be gone
        guesses = math.inf if scale is None else 1 - 1 / scale.classes - ALMOST
        if failed := sum(value >= guesses for value in row.known("error_rate_new")):
            yield (
                f"{name}: {failed} of {len(result.seeds)} seeds learned nothing: the new model is "
                "no better than a guess."
            )
        if row.repeats:
            yield (
                f"{name}: {len(row.repeats)} of {len(result.seeds)} seeds compare the same runs as "
                "an earlier seed, and are counted once."
            )
        lacking: dict[int, list[str]] = {}
        for metric in result.study.metrics:
            values = row.values.get(metric, ())
            if missing := sum(map(math.isnan, values)):
                lacking.setdefault(missing, []).append(short(metric))
        for missing, heads in lacking.items():
            yield (
                f"{name}: {missing} of {len(result.seeds)} seeds have no value of "
                f"{', '.join(heads)}, and are left out of its mean and of claims."
            )


def _shortest(result: Result, row: Row) -> str:
    """The shortest unambiguous name of a row, for sentences that name two rows."""
    name = result.name_of(row)
    line = result.line(row)
    labels, names = Counter[str](), Counter[str]()
    for one in result.rows:
        labels[result.line(one).label] += 1
        names[result.name_of(one)] += 1
    if labels[line.label] == 1:
        return line.label
    return name if names[name] == 1 or line.group is None else f"{line.group}, {name}"


def contradiction(result: Result, pair: Pair) -> str:
    """A pair that has the other order, with all its numbers."""
    first, second = (_shortest(result, result.rows[place]) for place in (pair.first, pair.second))
    factor, unit = (100, " %") if is_percent(pair.metric) else (1, "")
    above = pair.ours[1] > pair.ours[0]
    return (
        f"{short(pair.metric)}: {second} is {'above' if above else 'below'} {first} here, "
        f"{factor * pair.ours[1]:.2f} against {factor * pair.ours[0]:.2f}{unit} (difference "
        f"{factor * pair.low:+.2f} to {factor * pair.high:+.2f}), and "
        f"{'below' if above else 'above'} it in the paper, {pair.paper[1]:.2f} against "
        f"{pair.paper[0]:.2f}{_also(pair)}"
    )


def _also(pair: Pair) -> str:
    """How many other rows have the same comparison."""
    others = len(pair.rows) - 2
    if not others:
        return ""
    both = all(len(set(side)) > 1 for side in zip(*pair.stands_for, strict=True))
    alike = f"{MODELS[pair.metric]}{'s' * both}" if pair.metric in MODELS else "values"
    return f"; this stands for {others} more row{'s' * (others != 1)} with the same {alike}"
