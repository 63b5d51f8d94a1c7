"""The page of what ELODI costs, and of what each way to pay less gives up."""

from __future__ import annotations

from pages.cheaper_ways import (
    AFTER_ELODI,
    AFTER_UNTREATED,
    CHEAPER,
    EIGHT,
    against_eight,
    by_way,
    cheaper_documents,
    flips_after,
    more_errors,
    more_flips,
    paired,
    typed,
)
from pages.figures import mean, percent, signed, with_range

SMALL, LARGE = 0.005, 0.02  # shares of samples that may be given up, and that are too many
LIMITS = {
    "mnist1d": "Steps of such small perceptrons last two milliseconds: take the flips from "
    "here, and the ratios of costs from a task of your own size. They are not those of [the perceptron whose steps were "
    "measured alone](ensembles.md#a-perceptron-of-the-size-of-mnist-1d): that is another net, and here the cost is of whole runs, with "
    "their start and what they measure after every epoch, on a machine with other work.",
    "cifar100": "Three seeds shared the GPU, which slows what fills it more than the untreated update, whose steps the host "
    "starts: costs are too high here, and [those of an idle machine](ensembles.md) are lower. Twenty epochs are few: the students "
    "are still behind their ensemble.",
}


def cheaper_page() -> str:
    """What ELODI costs and what each way to pay less gives up, from the committed rows."""
    documents = cheaper_documents()
    lines = [
        "# What ELODI costs, and ways to pay less",
        "",
        "ELODI trains eight members, and then a student that asks them at every step. [Several options](../methods.md#what-it-costs-and-how-to-pay-less) "
        "lower the price. This is what each of them saves, and what it gives up.",
        "",
        *_which_to_choose(documents),
        "",
        "Cost is in plain trainings: the seconds of a way over those of the untreated update of the same seed. Members that "
        "several ways share are trained once, and counted to each. Members are one network (`--fuse on`) unless "
        "`--fuse off` is said. `k` is none: the student follows all logits. There is no pull to old (`legacy = 0`), so all "
        "updates but `reuse=4` are the same whatever the old model is. Each is held against two old models of its "
        "seed: one that ELODI trained itself, with eight members, as in a chain of updates, and an untreated one, as in "
        "the first update. `reuse=4` takes four members over from the ensemble of that old ELODI model, of old's net and "
        "data; their price was paid by the update before. All seeds share one test set of 10,000 samples: a negative flip rate of "
        "6 % has a sampling error of 0.24 points there. The measured files also have rows of members that learn in the student's loop "
        "(`one phase`), an option that [was removed](../log.md).",
    ]
    for name, document in documents.items():
        lines += ["", *_section(name, document)]
    missing = [told for name, told in CHEAPER.items() if name not in documents]
    if missing:
        lines += ["", f"Not measured yet: {', '.join(missing)} on a GPU."]
    return "\n".join(lines) + "\n"


def _which_to_choose(documents: dict[str, dict]) -> list[str]:
    """The way that saves most at a small loss, and those that lose much, of every data set."""
    chosen: dict[str, list[str]] = {}
    bad: dict[str, list[str]] = {}
    for name, document in documents.items():
        ways = by_way(document["rows"])
        found = {way: some for way in ways if (some := against_eight(ways, way)) is not None}
        good = [
            way
            for way, some in found.items()
            if max(some.flips, some.error) <= SMALL and some.saved > 0
        ]
        if good:
            best = max(good, key=lambda way: found[way].saved)
            chosen.setdefault(typed(ways[best][0]), []).append(
                f"{found[best].told()} on {CHEAPER[name]}"
            )
        for way, some in found.items():
            if some.error > LARGE:
                bad.setdefault(typed(ways[way][0]), []).append(
                    f"{signed(100 * some.error, 2)} points on {CHEAPER[name]}"
                )
    lines = [
        f"**Which to choose.** Of the ways that cost at most {100 * SMALL:g} points of negative flips, and as many of error, "
        "against eight members, the one that saves most is "
        + "; ".join(f"{way}: {', and '.join(told)}" for way, told in chosen.items())
        + "."
    ]
    if bad:
        lines[0] += (
            f" Leave alone what costs more than {100 * LARGE:g} points of error: "
            + "; ".join(f"{way} ({', '.join(told)})" for way, told in bad.items())
            + "."
        )
    return lines


def _section(name: str, document: dict) -> list[str]:
    machine, settings, rows = document["machine"], document["settings"], document["rows"]
    ways = by_way(rows)
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
        *_table(ways),
        "",
        *_words(ways),
    ]


def _table(ways: dict[str, list[dict]]) -> list[str]:
    lines = [
        "| | trainings | error | NFR after ELODI | untreated | churn | seconds |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for rows in ways.values():
        cost = mean([row["trainings"] for row in rows])
        cells = [typed(rows[0]), f"{cost:.1f}"]
        cells.append(percent(mean([row["error_rate_new"] for row in rows])))
        cells.append(with_range(flips_after(rows, AFTER_ELODI)))
        cells.append(percent(mean(flips_after(rows, AFTER_UNTREATED))))
        cells.append(percent(mean([row["old"][AFTER_ELODI]["churn"] for row in rows])))
        parts = ("members", "views", "student")
        seconds = [mean([row["seconds"][part] for row in rows]) for part in parts]
        cells.append(" + ".join(f"{some:.1f}" for some in seconds if some))
        lines.append(f"| {' | '.join(cells)} |")
    return [
        *lines,
        "",
        "Means over the seeds, and in brackets the lowest and the highest. Seconds are of the members, of storing views and "
        "of the student, as far as there are any. Churn is after ELODI.",
    ]


def _words(ways: dict[str, list[dict]]) -> list[str]:
    """What each way gives up, seed by seed against eight members: the table's own numbers."""
    if EIGHT not in ways:
        return []
    eight, control = ways[EIGHT], ways["none"]
    ratios = [
        mean(flips_after(eight, old)) / mean(flips_after(control, old))
        for old in (AFTER_ELODI, AFTER_UNTREATED)
    ]
    lines = [
        f"Eight members take {mean([row['trainings'] for row in eight]):.1f} plain trainings, and break {ratios[0]:.2f} "
        f"times what the untreated update breaks after an old model that ELODI trained, and {ratios[1]:.2f} times after an "
        f"untreated one.{_cheapest(ways)} Against eight members, seed by seed, after an old model that ELODI trained, in points, and in how many seeds it is more:",
        "",
        "| | trainings | NFR more by | seeds | error more by | seeds |",
        "|---|---|---:|---:|---:|---:|",
    ]
    apart: list[str] = []
    for way, rows in ways.items():
        if way in ("none", "ensemble", EIGHT):
            continue
        pairs = paired(ways, way)
        if not pairs:
            apart.append(_apart(rows, eight))
            continue
        cells = [typed(rows[0])]
        saved = mean([b["trainings"] - a["trainings"] for a, b in pairs])
        cells.append(f"{'cheaper' if saved >= 0 else 'dearer'} by {abs(saved):.1f}")
        for values in (more_flips(pairs), more_errors(pairs)):
            cells.append(signed(100 * mean(values), 2))
            cells.append(f"{sum(value > 0 for value in values)} of {len(values)}")
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, *(line for told in apart for line in ("", told))]


def _apart(rows: list[dict], eight: list[dict]) -> str:
    return (
        f"{typed(rows[0])} was run at another time, with old models of its own: seed by seed it cannot be held "
        f"against the others, and its price is in untreated updates of that other time. It breaks "
        f"{with_range(flips_after(rows, AFTER_ELODI))} after ELODI and errs by {percent(mean([row['error_rate_new'] for row in rows]))}; "
        f"as one network, members lead to {with_range(flips_after(eight, AFTER_ELODI))} and {percent(mean([row['error_rate_new'] for row in eight]))}."
    )


def _cheapest(ways: dict[str, list[dict]]) -> str:
    """Which of the ways that save a third or more breaks least, and which breaks most."""
    price = {way: mean([row["trainings"] for row in rows]) for way, rows in ways.items()}
    breaks = {way: mean(flips_after(rows, AFTER_ELODI)) for way, rows in ways.items()}
    saving = [
        way
        for way in ways
        if way not in ("none", "ensemble") and price[way] <= price[EIGHT] * 2 / 3
    ]
    if len(saving) < 2:
        return ""
    least, most = min(saving, key=breaks.__getitem__), max(saving, key=breaks.__getitem__)
    told = [
        f"{typed(ways[way][0])} {word} ({percent(breaks[way])}, for {price[way]:.1f} trainings)"
        for way, word in ((least, "breaks least"), (most, "most"))
    ]
    return f" Of the ways that save a third of the price or more, {told[0]} and {told[1]}."
