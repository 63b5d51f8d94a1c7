"""Pages of what was measured on runs and reports, from the committed rows."""

from __future__ import annotations

import json
from pathlib import Path

import charts  # beside this file

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"


def demo_page() -> str:
    """What `flipguard demo` shows for several seeds, from the committed rows."""
    document = json.loads((RESULTS / "demo.json").read_text())
    machine, rows = document["machine"], document["rows"]
    judged = [row for row in rows if "verdict" in row]
    seeds = sorted({row["seed"] for row in rows})
    agree = sum(_demo_agrees([row for row in judged if row["seed"] == seed]) for seed in seeds)
    lines = [
        "# What the demo shows",
        "",
        f"Measured by `{document['command']}` ({machine['device']}, torch {machine['torch']}, Python "
        f"{machine['python']}): the updates of `flipguard demo` for {len(seeds)} seeds. Its sizes and settings were "
        "chosen by looking at seeds 0 and 1; the others were not looked at. Old is a perceptron that was itself "
        f"distilled from {document['old']['members']} members; `elodi` has {_demo_options(judged, 'elodi')}, `fd-lm` "
        f"{_demo_options(judged, 'fd-lm')}.",
        "",
        f"In {agree} of {len(seeds)} seeds `elodi` has the lowest negative flip rate of the three, at no higher error "
        "than the control.",
        "",
        "| seed | error of old | control | `fd-lm` | `elodi` | NFR of control | `fd-lm` | `elodi` | verdicts |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for seed in seeds:
        found = {row["update"]: row for row in judged if row["seed"] == seed}
        three = [found[name] for name in ("none", "fd-lm", "elodi")]
        cells = [three[0]["error_rate_old"], *(row["error_rate_new"] for row in three)]
        cells += [row["negative_flip_rate"] for row in three]
        told = ", ".join(row["verdict"] for row in three)
        lines.append(f"| {seed} | " + " | ".join(f"{c:.2%}" for c in cells) + f" | {told} |")
    lines += [
        "",
        "## Focal distillation with other weights",
        "",
        "Means over the seeds. More weight breaks less, and learns less: a weight of 1, as the paper has it, breaks least "
        "of all here, and gives up most of what the larger net would gain.",
        "",
        "| update | error | negative flip rate | of the control's |",
        "|---|---:|---:|---:|",
    ]
    kinds = dict.fromkeys((row["update"], row["options"].get("weight")) for row in rows)
    for update, weight in sorted(kinds, key=lambda kind: (kind[0] == "elodi", kind[1] or 0)):
        some = [r for r in rows if (r["update"], r["options"].get("weight")) == (update, weight)]
        error, flips = (
            sum(row[name] for row in some) / len(some)
            for name in ("error_rate_new", "negative_flip_rate")
        )
        ratios = [row["negative_flip_ratio"] for row in some]
        ratio = "1" if None in ratios else f"{sum(ratios) / len(ratios):.2f}"
        name = f"`{update}`" + ("" if weight is None else f", weight {weight:g}")
        lines.append(f"| {name} | {error:.2%} | {flips:.2%} | {ratio} |")
    return "\n".join(lines) + "\n"


def _demo_agrees(rows: list[dict]) -> bool:
    found = {row["update"]: row for row in rows}
    flips = {name: row["negative_flip_rate"] for name, row in found.items()}
    return (
        min(flips, key=flips.__getitem__) == "elodi"
        and found["elodi"]["error_rate_new"] <= found["none"]["error_rate_new"]
    )


def _demo_options(rows: list[dict], update: str) -> str:
    options = next(row["options"] for row in rows if row["update"] == update)
    return ", ".join(f"{name} = {value}" for name, value in options.items())


def report_page() -> str:
    """What a report weighs and how soon it answers, from the committed rows."""
    document = json.loads((RESULTS / "report.json").read_text())
    machine = document["machine"]
    lines = [
        "# Size and speed of the report",
        "",
        f"Measured by `{document['command']}` ({machine['device']}, {machine['browser']}, Python {machine['python']}). A "
        "page answers when a filter that is clicked at once has changed the table of samples; the median of three times. "
        "Writing includes the start of the chart library, once a process. More than 10,000 flips are not carried, and the "
        "page says so.",
        "",
        "| samples | flips | size | written in | answers in |",
        "|---:|---:|---:|---:|---:|",
    ]
    for row in document["rows"]:
        lines.append(
            f"| {row['samples']:,} | {row['flips']:,} | {row['bytes'] / 1e6:.2f} MB "
            f"| {row['seconds_to_write']:.1f} s | {row['seconds_to_answer']:.2f} s |"
        )
    return "\n".join(lines) + "\n"


def _percent(value: float, decimals: int = 1) -> str:
    return f"{100 * value:.{decimals}f} %"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _with_range(values: list[float], decimals: int = 1) -> str:
    """A mean over seeds in percent, with the lowest and the highest."""
    low, high = (f"{100 * value:.{decimals}f}" for value in (min(values), max(values)))
    return f"{_percent(_mean(values), decimals)} ({low}–{high})"


CHEAPER = {"mnist1d": "MNIST-1D", "cifar100": "CIFAR-100"}
AFTER_ELODI, AFTER_UNTREATED = "elodi", "untreated"
EIGHT = "fused"  # the way that the cheaper ones are held against
LIMITS = {
    "mnist1d": "Steps of such small perceptrons last two milliseconds: take the flips from "
    "here, and the ratios of costs from a task of your own size.",
    "cifar100": "A small net on one GPU: a larger one fills the device alone, and gains less from members that are one "
    "network.",
}


def cheaper_documents() -> dict[str, dict]:
    """What was measured of ELODI's price, by data set: as many as there are."""
    found = {name: RESULTS / f"cheaper_{name}.json" for name in CHEAPER}
    return {name: json.loads(path.read_text()) for name, path in found.items() if path.exists()}


def cheaper_page() -> str:
    """What ELODI costs and what each way to pay less gives up, from the committed rows."""
    documents = cheaper_documents()
    lines = [
        "# What ELODI costs, and ways to pay less",
        "",
        "ELODI trains eight members, and then a student that asks them at every step. [Several options](../methods.md#what-it-costs-and-how-to-pay-less) "
        "lower the price. This is what each of them saves, and what it gives up.",
        "",
        "Cost is in plain trainings: the seconds of a way over those of the untreated update of the same seed. Members that "
        "several ways share are trained once, and counted to each. Members are one network (`--fuse on`) unless "
        "`--fuse off` is said. `k` is none: the student follows all logits. There is no pull to old (`legacy = 0`), so all "
        "updates but `reuse=4` are the same whatever the old model is. Each is held against two old models of its "
        "seed: one that ELODI trained itself, with eight members, as in a chain of updates, and an untreated one, as in "
        "the first update. `reuse=4` takes four members over from the ensemble of that old ELODI model, of old's net and "
        "data; their price was paid by the update before. All seeds share one test set of 10,000 samples: a negative flip rate of "
        "6 % has a sampling error of 0.24 points there.",
    ]
    for name, document in documents.items():
        lines += ["", *_cheaper_section(name, document)]
    missing = [told for name, told in CHEAPER.items() if name not in documents]
    if missing:
        lines += ["", f"Not measured yet: {', '.join(missing)} on a GPU."]
    return "\n".join(lines) + "\n"


def _cheaper_section(name: str, document: dict) -> list[str]:
    machine, settings, rows = document["machine"], document["settings"], document["rows"]
    ways = _by_way(rows)
    seeds = len(ways["none"])
    at_once, loads = max(row["at_once"] for row in rows), [row["load"] for row in rows]
    beside = "one seed at a time" if at_once == 1 else f"up to {at_once} seeds at once"
    on_cpu = machine["seconds"] == "of the processor"
    busy = f", beside other work (load {min(loads):g} to {max(loads):g})" if on_cpu else ""
    share = settings["old_samples"]
    old = f"`{settings['old_model']}`" + ("" if share == 1 else f" on {share:.0%} of the samples")
    return [
        f"## {CHEAPER[name]}",
        "",
        f"Measured by `{document['command']}` ({machine['device']}, torch {machine['torch']}, Python {machine['python']}): "
        f"{seeds} seeds, {settings['recipe']['epochs']} epochs each, {beside}{busy}; seconds are {machine['seconds']}. "
        f"Old is {old}, the updates are `{settings['model']}`. {LIMITS[name]}",
        "",
        f"![Negative flips against the cost of training on {CHEAPER[name]}](../images/cheaper-{name}.svg)",
        "",
        *_cheaper_table(ways),
        "",
        *_cheaper_words(ways),
    ]


def _by_way(rows: list[dict]) -> dict[str, list[dict]]:
    """The rows of every way, in the order in which the first seed has them."""
    found: dict[str, list[dict]] = {}
    for row in rows:
        found.setdefault(row["way"], []).append(row)
    return found


def _breaks(rows: list[dict], old: str) -> list[float]:
    return [row["old"][old]["negative_flip_rate"] for row in rows]


def _cheaper_name(row: dict) -> str:
    """A way as it is typed."""
    if row["method"] != "elodi":
        return (
            f"`{row['method']}`"
            + {"none": ", the control", "ensemble": " of 8, the paragon"}[row["method"]]
        )
    options = {name: value for name, value in row["options"].items() if name != "alpha"}
    told = [f"`{name}={str(value).lower()}`" for name, value in options.items()]
    return ", ".join(told + ["`--fuse off`"] * (row["way"] == "one by one"))


def _cheaper_table(ways: dict[str, list[dict]]) -> list[str]:
    lines = [
        "| | trainings | error | NFR after ELODI | untreated | churn | seconds |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for rows in ways.values():
        cost = _mean([row["trainings"] for row in rows])
        cells = [_cheaper_name(rows[0]), f"{cost:.1f}"]
        cells.append(_percent(_mean([row["error_rate_new"] for row in rows])))
        cells.append(_with_range(_breaks(rows, AFTER_ELODI)))
        cells.append(_percent(_mean(_breaks(rows, AFTER_UNTREATED))))
        cells.append(_percent(_mean([row["old"][AFTER_ELODI]["churn"] for row in rows])))
        parts = ("members", "views", "student")
        seconds = [_mean([row["seconds"][part] for row in rows]) for part in parts]
        cells.append(" + ".join(f"{some:.1f}" for some in seconds if some))
        lines.append(f"| {' | '.join(cells)} |")
    return [
        *lines,
        "",
        "Means over the seeds, and in brackets the lowest and the highest. Seconds are of the members, of storing views and "
        "of the student, as far as there are any. Churn is after ELODI.",
    ]


def _cheaper_words(ways: dict[str, list[dict]]) -> list[str]:
    """What each way gives up, seed by seed against eight members: the table's own numbers."""
    if EIGHT not in ways:
        return []
    eight, control = ways[EIGHT], ways["none"]
    ratios = [
        _mean(_breaks(eight, old)) / _mean(_breaks(control, old))
        for old in (AFTER_ELODI, AFTER_UNTREATED)
    ]
    lines = [
        f"Eight members take {_mean([row['trainings'] for row in eight]):.1f} plain trainings, and break {ratios[0]:.2f} "
        f"times what the untreated update breaks after an old model that ELODI trained, and {ratios[1]:.2f} times after an "
        f"untreated one.{_cheapest_words(ways)} Against eight members, seed by seed, after an old model that ELODI trained, in points, and in how many seeds it is more:",
        "",
        "| | trainings less | NFR more by | seeds | error more by | seeds |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    by_seed = {row["seed"]: row for row in eight}
    for way, rows in ways.items():
        if way in ("none", "ensemble", EIGHT):
            continue
        pairs = [(row, by_seed[row["seed"]]) for row in rows if row["seed"] in by_seed]
        cells = [_cheaper_name(rows[0])]
        cells.append(_signed(_mean([b["trainings"] - a["trainings"] for a, b in pairs]), 1))
        for values in (
            [
                a["old"][AFTER_ELODI]["negative_flip_rate"]
                - b["old"][AFTER_ELODI]["negative_flip_rate"]
                for a, b in pairs
            ],
            [a["error_rate_new"] - b["error_rate_new"] for a, b in pairs],
        ):
            cells.append(_signed(100 * _mean(values), 2))
            cells.append(f"{sum(value > 0 for value in values)} of {len(values)}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _cheapest_words(ways: dict[str, list[dict]]) -> str:
    """Which of the ways that save a third or more breaks least, and which breaks most."""
    price = {way: _mean([row["trainings"] for row in rows]) for way, rows in ways.items()}
    breaks = {way: _mean(_breaks(rows, AFTER_ELODI)) for way, rows in ways.items()}
    saving = [
        way
        for way in ways
        if way not in ("none", "ensemble") and price[way] <= price[EIGHT] * 2 / 3
    ]
    if len(saving) < 2:
        return ""
    least, most = min(saving, key=breaks.__getitem__), max(saving, key=breaks.__getitem__)
    told = [
        f"{_cheaper_name(ways[way][0])} {word} ({_percent(breaks[way])}, for {price[way]:.1f} trainings)"
        for way, word in ((least, "breaks least"), (most, "most"))
    ]
    return f" Of the ways that save a third of the price or more, {told[0]} and {told[1]}."


def _signed(value: float, decimals: int) -> str:
    return f"{value:+.{decimals}f}".replace("-", "−")


def cheaper_chart(name: str) -> str:
    """Negative flips after ELODI against cost, a point a way."""
    document = cheaper_documents()[name]
    ways = _by_way(document["rows"])
    points = {way: _cheaper_point(rows) for way, rows in ways.items()}
    control = points.pop("none")
    seeds = len(ways["none"])
    return charts.costs_and_flips(
        list(points.values()),
        control,
        title=f"What ELODI costs and what it leaves broken: {CHEAPER[name]}",
        note=f"Means of {seeds} seeds, with one standard deviation to either side; dashed: the untreated update",
        across="cost of training, in plain trainings of the same net",
        upwards="negative flips, of all samples",
    )


def _cheaper_point(rows: list[dict]) -> charts.Point:
    first = rows[0]
    options = first["options"]
    told = {
        "none": "untreated update",
        "ensemble": "ensemble of 8 itself",
        "one by one": "8 members, one by one",
        "one phase": "8 members, one phase",
        "reuse=4": "8 members, 4 reused",
    }.get(first["way"])
    if told is None:
        views = f", {options['views']} views" if "views" in options else ""
        told = f"{options['members']} members{views}"
    return charts.Point(
        name=told,
        cost=charts.Spread.of([row["trainings"] for row in rows]),
        breaks=charts.Spread.of(_breaks(rows, AFTER_ELODI)),
        error=_mean([row["error_rate_new"] for row in rows]),
        apart=first["method"] == "ensemble",
    )


def texts_page() -> str:
    """An update of an intent classifier, from the committed rows."""
    document = json.loads((RESULTS / "texts.json").read_text())
    machine, rows, recipe = document["machine"], document["rows"], document["recipe"]
    methods = {
        name: [row for row in rows if row["method"] == name]
        for name in dict.fromkeys(row["method"] for row in rows)
    }
    seeds = len(methods["none"])
    lines = [
        "# An update of a text classifier",
        "",
        f"Measured by `{document['command']}` (one {machine['device']}, torch {machine['torch']}, Python {machine['python']}): "
        f"MiniLM-L6 fine-tuned on the 77 intents of Banking77 for {recipe['epochs']} epochs. Old saw half of the training "
        f"samples and was not treated; the updates see all of them. {seeds} seeds, each with an old model of its own; means, "
        "and in brackets the lowest and the highest seed. Seconds are of all that an update needs, seeds side by side on one "
        "GPU.",
        "",
        "| update | error of old | error of new | negative flip rate | churn | seconds |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, some in methods.items():
        options = "".join(f", {key} = {value}" for key, value in some[0]["options"].items())
        rates = ("error_rate_old", "error_rate_new", "negative_flip_rate", "churn")
        cells = [_with_range([row[rate] for row in some], 2) for rate in rates]
        seconds = _mean([row["seconds"] for row in some])
        lines.append(f"| `{name}`{options} | {' | '.join(cells)} | {seconds:.0f} |")
    return "\n".join([*lines, "", *_texts_words(methods)]) + "\n"


TEXTS = 3080  # in the test set of Banking77


def _texts_words(methods: dict[str, list[dict]]) -> list[str]:
    """What the table says, with its own numbers, and how far it carries."""
    none, focal, elodi = (methods[name] for name in ("none", "fd-lm", "elodi"))
    fewer = [
        sum(
            a["negative_flip_rate"] < b["negative_flip_rate"]
            for a, b in zip(some, none, strict=True)
        )
        for some in (focal, elodi)
    ]
    errs = [
        sum(a["error_rate_new"] > b["error_rate_new"] for a, b in zip(some, none, strict=True))
        for some in (focal, elodi)
    ]
    flips, errors = (
        [_mean([row[rate] for row in some]) for some in (none, focal, elodi)]
        for rate in ("negative_flip_rate", "error_rate_new")
    )
    seeds, usual = len(none), flips[2]
    deviation = (usual * (1 - usual) / TEXTS) ** 0.5
    gains = [flips[0] - flips[1], flips[0] - flips[2]]
    return [
        f"- `fd-lm` breaks least: {flips[1] / flips[0]:.2f} times what the untreated update breaks, and less in {fewer[0]} "
        f"of {seeds} seeds. It errs more than the untreated update in {errs[0]} of {seeds}, by "
        f"{100 * (errors[1] - errors[0]):.1f} points in the mean: it gives up part of what the new samples teach.",
        f"- `elodi` breaks a little less than the untreated update in {fewer[1]} of {seeds} seeds, "
        f"{_percent(flips[2], 2)} against {_percent(flips[0], 2)} in the mean; its error is higher in {errs[1]} of {seeds}. "
        "It asks four members for that, and its old model was untreated; after an old model that ELODI trained "
        "[it gains more elsewhere](cheaper.md), which was not tried here.",
        f"- There is one test set, of {TEXTS:,} texts. A negative flip rate of {_percent(usual)} is {usual * TEXTS:.0f} texts, "
        f"with a sampling error of {100 * deviation:.2f} points (one standard deviation). The update by `fd-lm` differs from the "
        f"untreated one by {gains[0] / deviation:.1f} of these, that by `elodi` by {gains[1] / deviation:.1f}; and all seeds "
        "share the test set, so that they agree says less than it seems.",
    ]
