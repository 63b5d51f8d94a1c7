"""The page about the cost of ELODI, and what each cheaper way gives up."""

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

SMALL, LARGE = 0.005, 0.02  # the shares of samples that count as a small and as a large loss
LIMITS = {
    "mnist1d": "A step of such a small perceptron takes two milliseconds. So use the flips from this table, but take "
    "the costs from a task of your size. The costs differ from those of [the perceptron whose steps were "
    "measured alone](ensembles.md#a-perceptron-of-the-size-of-mnist-1d): that is another network, and here the cost is that of "
    "whole runs, with their start and the measurements after every epoch, on a machine with other work.",
    "cifar100": "Three seeds shared the GPU. This slows down work that fills the GPU more than the untreated update, whose time "
    "is spent on starting kernels. So the costs here are too high; [those on an idle machine](ensembles.md) are lower. Twenty "
    "epochs are few: the students have not reached their ensemble.",
}


def cheaper_page() -> str:
    """Return the page, from the committed rows."""
    documents = cheaper_documents()
    lines = [
        "# What ELODI costs, and how to pay less",
        "",
        "ELODI trains eight members, and then a student that needs their predictions at every step. [Several "
        "options](../methods.md#what-it-costs-and-how-to-pay-less) lower the cost. This page shows what each of them saves and what "
        "it gives up.",
        "",
        *_which_to_choose(documents),
        "",
        "How it was measured:",
        "",
        "- **Cost** is counted in plain training runs: the seconds of a row, divided by those of the untreated update with the "
        "same seed. Members that several rows share are trained once and counted in each row.",
        "- **Settings.** Members are one network (`--fuse on`), except in the row with `--fuse off`. The student follows all "
        "logits (`k` is none). There is no pull to the old model (`legacy = 0`), so all updates except `reuse=4` are independent of "
        "the old model.",
        "- **Old models.** Each update is compared with two old models of its seed: one that ELODI trained with eight members, as in "
        "a series of updates, and an untreated one, as in the first update. `reuse=4` takes four members from the ensemble of that "
        "old ELODI model, which has the old network and data; their cost belongs to the previous update.",
        "- **Test set.** All seeds share one test set of 10,000 samples. A negative flip rate of 6 % has a sampling error of "
        "0.24 points there.",
        "- The measured files also have rows of an option that [was removed](../log.md) (`one phase`): members that are trained "
        "together with the student.",
    ]
    for name, document in documents.items():
        lines += ["", *_section(name, document)]
    missing = [told for name, told in CHEAPER.items() if name not in documents]
    if missing:
        lines += ["", f"Not measured: {', '.join(missing)} on a GPU."]
    return "\n".join(lines) + "\n"


def _which_to_choose(documents: dict[str, dict]) -> list[str]:
    """Return the option that saves most at a small loss, and those that lose much, per data set."""
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
        f"**Which to choose.** Compared with eight members, some options give up at most {100 * SMALL:g} points of negative "
        "flips and at most as many of error. Of these, the one that saves most is "
        + "; ".join(f"{way}: {', and '.join(told)}" for way, told in chosen.items())
        + "."
    ]
    if bad:
        lines[0] += (
            f" Do not use options that cost more than {100 * LARGE:g} points of error: "
            + "; ".join(f"{way} ({', '.join(told)})" for way, told in bad.items())
            + "."
        )
    return lines


def _section(name: str, document: dict) -> list[str]:
    machine, settings, rows = document["machine"], document["settings"], document["rows"]
    ways = by_way(rows)
    seeds = len(ways["none"])
    at_once, loads = max(row["at_once"] for row in rows), [row["load"] for row in rows]
    told = "one seed at a time" if at_once == 1 else f"up to {at_once} seeds at once"
    on_cpu = machine["seconds"] == "of the processor"
    clock = "CPU seconds" if on_cpu else "wall-clock seconds"
    busy = (
        f", on a machine with other work (load {min(loads):g} to {max(loads):g})" if on_cpu else ""
    )
    share = settings["old_samples"]
    old = f"`{settings['old_model']}`" + ("" if share == 1 else f" on {share:.0%} of the samples")
    return [
        f"## {CHEAPER[name]}",
        "",
        f"Measured by `{document['command']}` ({machine['device']}, torch {machine['torch']}, Python {machine['python']}): "
        f"{seeds} seeds, {settings['recipe']['epochs']} epochs each, {told}{busy}; {clock}. "
        f"The old model is {old}, the updates are `{settings['model']}`. {LIMITS[name]}",
        "",
        f"![Negative flips against the cost of training on {CHEAPER[name]}](../images/cheaper-{name}.svg)",
        "",
        *_table(ways),
        "",
        *_words(ways),
    ]


def _table(ways: dict[str, list[dict]]) -> list[str]:
    lines = [
        "| option | training runs | error | NFR after ELODI | NFR after untreated | churn after ELODI | seconds |",
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
        "Means over the seeds; in brackets the lowest and the highest. Seconds are those of the members, of storing views and "
        "of the student, if the option has them.",
    ]


def _words(ways: dict[str, list[dict]]) -> list[str]:
    """Return what each option gives up, compared with eight members per seed."""
    if EIGHT not in ways:
        return []
    eight, control = ways[EIGHT], ways["none"]
    ratios = [
        mean(flips_after(eight, old)) / mean(flips_after(control, old))
        for old in (AFTER_ELODI, AFTER_UNTREATED)
    ]
    lines = [
        f"Eight members take {mean([row['trainings'] for row in eight]):.1f} plain training runs. Compared with the untreated "
        f"update, they break {ratios[0]:.2f} times as many samples after an old model that ELODI trained, and {ratios[1]:.2f} times "
        f"as many after an untreated one.{_cheapest(ways)}",
        "",
        "Differences from eight members, per seed, after an old model that ELODI trained. Differences of NFR and error are in points; "
        "*seeds* counts the seeds in which the value is higher.",
        "",
        "| option | training runs | NFR | seeds | error | seeds |",
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
        cells.append(f"{abs(saved):.1f} {'fewer' if saved >= 0 else 'more'}")
        for values in (more_flips(pairs), more_errors(pairs)):
            cells.append(signed(100 * mean(values), 2))
            cells.append(f"{sum(value > 0 for value in values)} of {len(values)}")
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, *(line for told in apart for line in ("", told))]


def _apart(rows: list[dict], eight: list[dict]) -> str:
    return (
        f"{typed(rows[0])} was run at another time, with other old models. So it cannot be compared per seed, and its cost is in "
        f"untreated updates of that time. Its NFR after ELODI is {with_range(flips_after(rows, AFTER_ELODI))} and its error "
        f"{percent(mean([row['error_rate_new'] for row in rows]))}; with the members as one network they are "
        f"{with_range(flips_after(eight, AFTER_ELODI))} and {percent(mean([row['error_rate_new'] for row in eight]))}."
    )


def _cheapest(ways: dict[str, list[dict]]) -> str:
    """Return which of the options that save a third or more breaks least, and which breaks most."""
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
        f"{typed(ways[way][0])} {word} ({percent(breaks[way])}, for {price[way]:.1f} training runs)"
        for way, word in ((least, "breaks least"), (most, "most"))
    ]
    return f" Of the options that save a third of the cost or more, {told[0]} and {told[1]}."
