"""Pages about the price of ensembles, from the committed rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import charts  # beside this file
from figures import mean, percent, signed, with_range

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"
CHEAPER = {"mnist1d": "MNIST-1D", "cifar100": "CIFAR-100"}
AFTER_ELODI, AFTER_UNTREATED = "elodi", "untreated"
EIGHT = "fused"  # the way that the cheaper ones are held against
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
        *_which_to_choose(documents),
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


def _which_to_choose(documents: dict[str, dict]) -> list[str]:
    """The way that saves most at a small loss, and those that lose much, of every data set."""
    chosen: dict[str, list[str]] = {}
    bad: dict[str, list[str]] = {}
    for name, document in documents.items():
        ways = _by_way(document["rows"])
        found = {way: some for way in ways if (some := against_eight(ways, way)) is not None}
        good = [
            way
            for way, some in found.items()
            if max(some.flips, some.error) <= SMALL and some.saved > 0
        ]
        if good:
            best = max(good, key=lambda way: found[way].saved)
            chosen.setdefault(_cheaper_name(ways[best][0]), []).append(
                f"{found[best].told()} on {CHEAPER[name]}"
            )
        for way, some in found.items():
            if some.error > LARGE:
                bad.setdefault(_cheaper_name(ways[way][0]), []).append(
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
            + ". In runs as short as these, members in one phase know as little as the student that follows them."
            * any("one_phase" in way for way in bad)
        )
    return lines


class Against(NamedTuple):
    """What a way saves and gives up against eight members of the same seeds: means over them."""

    price: float
    price_of_eight: float
    flips: float  # more, as a share
    error: float  # more, as a share

    @property
    def saved(self) -> float:
        """Plain trainings that it takes less."""
        return self.price_of_eight - self.price

    def told(self) -> str:
        """Its price and what it gives up, in a few words."""
        return (
            f"{self.price:.1f} trainings instead of {self.price_of_eight:.1f}, NFR {signed(100 * self.flips, 2)} and error "
            f"{signed(100 * self.error, 2)} points"
        )


def against_eight(ways: dict[str, list[dict]], way: str) -> Against | None:
    """A way held against eight members; None if it is no way of ELODI, or of other old models."""
    pairs = _pairs(ways, way)
    if way in ("none", "ensemble", EIGHT) or not pairs:
        return None
    return Against(
        price=mean([a["trainings"] for a, _ in pairs]),
        price_of_eight=mean([b["trainings"] for _, b in pairs]),
        flips=mean(_more_flips(pairs)),
        error=mean(_more_errors(pairs)),
    )


def measured(*names: str) -> str:
    """What a way gave on every data set that has it, for a page of another kind."""
    told = []
    for name, document in cheaper_documents().items():
        ways = _by_way(document["rows"])
        for way in names:
            if way in ways and (found := against_eight(ways, way)) is not None:
                beside = f", `{way}`" if len(names) > 1 else ""
                told.append(f"{CHEAPER[name]}{beside}: {found.told()}")
    return "; ".join(told)


def _pairs(ways: dict[str, list[dict]], way: str) -> list[tuple[dict, dict]]:
    """The rows of a way beside those of eight members; none if some have other old models."""
    by_seed = {row["seed"]: row for row in ways[EIGHT]}
    pairs = [
        (row, by_seed[row["seed"]])
        for row in ways[way]
        if row["seed"] in by_seed and _same_old(row, by_seed[row["seed"]])
    ]
    return pairs if len(pairs) == len(ways[way]) else []


def _more_flips(pairs: list[tuple[dict, dict]]) -> list[float]:
    return [
        a["old"][AFTER_ELODI]["negative_flip_rate"] - b["old"][AFTER_ELODI]["negative_flip_rate"]
        for a, b in pairs
    ]


def _more_errors(pairs: list[tuple[dict, dict]]) -> list[float]:
    return [a["error_rate_new"] - b["error_rate_new"] for a, b in pairs]


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
        cost = mean([row["trainings"] for row in rows])
        cells = [_cheaper_name(rows[0]), f"{cost:.1f}"]
        cells.append(percent(mean([row["error_rate_new"] for row in rows])))
        cells.append(with_range(_breaks(rows, AFTER_ELODI)))
        cells.append(percent(mean(_breaks(rows, AFTER_UNTREATED))))
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


def _cheaper_words(ways: dict[str, list[dict]]) -> list[str]:
    """What each way gives up, seed by seed against eight members: the table's own numbers."""
    if EIGHT not in ways:
        return []
    eight, control = ways[EIGHT], ways["none"]
    ratios = [
        mean(_breaks(eight, old)) / mean(_breaks(control, old))
        for old in (AFTER_ELODI, AFTER_UNTREATED)
    ]
    lines = [
        f"Eight members take {mean([row['trainings'] for row in eight]):.1f} plain trainings, and break {ratios[0]:.2f} "
        f"times what the untreated update breaks after an old model that ELODI trained, and {ratios[1]:.2f} times after an "
        f"untreated one.{_cheapest_words(ways)} Against eight members, seed by seed, after an old model that ELODI trained, in points, and in how many seeds it is more:",
        "",
        "| | trainings | NFR more by | seeds | error more by | seeds |",
        "|---|---|---:|---:|---:|---:|",
    ]
    apart: list[str] = []
    for way, rows in ways.items():
        if way in ("none", "ensemble", EIGHT):
            continue
        pairs = _pairs(ways, way)
        if not pairs:
            apart.append(_apart_words(rows, eight))
            continue
        cells = [_cheaper_name(rows[0])]
        saved = mean([b["trainings"] - a["trainings"] for a, b in pairs])
        cells.append(f"{'cheaper' if saved >= 0 else 'dearer'} by {abs(saved):.1f}")
        for values in (_more_flips(pairs), _more_errors(pairs)):
            cells.append(signed(100 * mean(values), 2))
            cells.append(f"{sum(value > 0 for value in values)} of {len(values)}")
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, *(line for told in apart for line in ("", told))]


def _same_old(one: dict, other: dict) -> bool:
    """Whether two rows were held against the same old models."""
    return all(
        one["old"][name]["error_rate_old"] == other["old"][name]["error_rate_old"]
        for name in (AFTER_ELODI, AFTER_UNTREATED)
    )


def _apart_words(rows: list[dict], eight: list[dict]) -> str:
    return (
        f"{_cheaper_name(rows[0])} was run at another time, with old models of its own: seed by seed it cannot be held "
        f"against the others, and its price is in untreated updates of that other time. It breaks "
        f"{with_range(_breaks(rows, AFTER_ELODI))} after ELODI and errs by {percent(mean([row['error_rate_new'] for row in rows]))}; "
        f"as one network, members lead to {with_range(_breaks(eight, AFTER_ELODI))} and {percent(mean([row['error_rate_new'] for row in eight]))}."
    )


def _cheapest_words(ways: dict[str, list[dict]]) -> str:
    """Which of the ways that save a third or more breaks least, and which breaks most."""
    price = {way: mean([row["trainings"] for row in rows]) for way, rows in ways.items()}
    breaks = {way: mean(_breaks(rows, AFTER_ELODI)) for way, rows in ways.items()}
    saving = [
        way
        for way in ways
        if way not in ("none", "ensemble") and price[way] <= price[EIGHT] * 2 / 3
    ]
    if len(saving) < 2:
        return ""
    least, most = min(saving, key=breaks.__getitem__), max(saving, key=breaks.__getitem__)
    told = [
        f"{_cheaper_name(ways[way][0])} {word} ({percent(breaks[way])}, for {price[way]:.1f} trainings)"
        for way, word in ((least, "breaks least"), (most, "most"))
    ]
    return f" Of the ways that save a third of the price or more, {told[0]} and {told[1]}."


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
        error=mean([row["error_rate_new"] for row in rows]),
        apart=first["method"] == "ensemble",
    )


NETS = {
    "resnet20": "ResNet-20",
    "resnet56": "ResNet-56",
    "resnet18": "ResNet-18, 64 channels wide",
    "vit": "a small ViT",
    "mlp": "a perceptron of the size of MNIST-1D",
}
# What is to be known of a net beside its name.
OF_NETS = {
    "mlp": " It has two hidden layers of 100 (40-100-100-10, as MNIST-1D has it). "
    "[Whole runs on MNIST-1D](cheaper.md#mnist-1d) cost other multiples: they are of another net, with the start of every run and what "
    "it measures after its epochs, on a machine with other work.",
}
WAYS = {
    "plain": "one plain training",
    "published": "as published code does it: fp32, one by one, teachers with gradients on",
    "loop": "straightforward: bf16, one by one, teachers without gradients",
    "one by one": "one by one, compiled in parts, steps replayed",
    "fused": "members and teachers as one network each, steps replayed",
    "fused, one order": "the same, all members see the same batches",
    "fused, parts": "as one network each, compiled in parts, steps replayed",
    "fused, wide": "the same, the student widened",
    "fused, wide, streams": "the same, members as two networks on two streams",
    "apart, streams": "four members at a time, and all teachers, with a stream each",
    "fused, stored views": "as one network, compiled in parts; the student looks answers up",
    "fused, wide, stored views": "the same, the student widened",
    "fused, wide, streams, stored views": "the same, members as two networks on two streams",
    "apart, streams, stored views": "four members at a time; the student looks answers up",
    "side by side": "a member a core, each in a process",
}
# On a CPU all is float32, and no step is replayed: there the same ways are called what they are.
ON_CPU = {
    "published": "as published code does it: one by one, teachers with gradients on",
    "loop": "straightforward: one by one, teachers without gradients",
    "fused": "members and teachers as one network each",
}


def on_a_gpu() -> tuple[str, str]:
    """The nets whose ELODI with eight members is cheapest and dearest, each with its price.

    Of every net the best way that asks the members at every step: nothing is given up.
    """
    rows = json.loads((RESULTS / "ensembles.json").read_text())["rows"]
    price: dict[str, float] = {}
    for row in rows:
        if row["way"] in ("one by one", "fused, parts", "apart, streams") and "problem" not in row:
            price[row["net"]] = min(row["trainings"], price.get(row["net"], row["trainings"]))
    least, most = min(price, key=price.__getitem__), max(price, key=price.__getitem__)
    return f"{price[least]:.1f} ({NETS[least]})", f"{price[most]:.1f} ({NETS[most]})"


def ensembles_page() -> str:
    """What an ensemble and its student cost a step, from the committed rows."""
    documents = [
        json.loads((RESULTS / name).read_text())
        for name in ("ensembles.json", "ensembles_cpu.json")
        if (RESULTS / name).exists()
    ]
    lines = [
        "# Ensembles in plain trainings",
        "",
        "ELODI with eight members is nine trainings, and eight forward passes at every step of the student: eleven to "
        "twelve plain trainings if it is written down as it is, and one and a half to three times that as published code does it. "
        "This is what a step costs in each way. Only time is measured here, on random images; what cheaper ways give up "
        "is on [another page](cheaper.md).",
        "",
        "A member's time is that of a step of all of them over eight, a student's that of its step with its teachers. "
        "*Trainings* is eight members' steps and one student's, over a step of a plain eager training of the same net, on a GPU in "
        "bf16. What comes before the first step (making the networks, proving that they are the same, measuring kernels, "
        "compiling) is not in it: 10 to 50 seconds on a GPU, and less for a way whose kernels an earlier row had compiled. Where a student looks answers up, five "
        "views of every sample were answered before, and their price is in the student's time.",
    ]
    for document in documents:
        nets = dict.fromkeys(row["net"] for row in document["rows"])
        first = document["rows"][0]
        lines += [
            "",
            f"Measured by `{document['command']}` on {_device(first)}, torch {first['torch']}."
            + (f" {document['note']}" if "note" in document else "")
            + (" There all is float32, and no steps are replayed." if _is_cpu(first) else ""),
        ]
        for net in nets:
            rows = [row for row in document["rows"] if row["net"] == net]
            lines += ["", *_ensembles_section(net, rows)]
        if "repeated" in document:
            lines += ["", *_repeated_section(document)]
    lines += ["", *IN_THE_WAY]
    return "\n".join(lines) + "\n"


def _is_cpu(row: dict) -> bool:
    return "CPU" in row["device"]


def _device(row: dict) -> str:
    told = row["device"]
    return f"{row['threads']} cores ({told})" if _is_cpu(row) else f"one {told}"


def _ensembles_section(net: str, rows: list[dict]) -> list[str]:
    plain = next(row for row in rows if row["way"] == "plain")
    unit = plain["member_step_ms"] * plain["members"]
    lines = [
        f"## {NETS[net][0].upper()}{NETS[net][1:]}",
        "",
        f"Batches of {plain['batch']}, {plain['members']} members, {plain['epochs']} epochs. A step of a plain training "
        f"takes {unit:.2f} ms.{OF_NETS.get(net, '')}",
        "",
        "| | a member, ms | the student, ms | trainings |",
        "|---|---:|---:|---:|",
    ]
    told = WAYS | (ON_CPU if _is_cpu(plain) else {})
    for row in rows:
        if row["way"] == "plain":
            continue
        if "problem" in row:
            lines.append(f"| {told[row['way']]} | — | — | — |")
            continue
        lines.append(
            f"| {told[row['way']]} | {row['member_step_ms']:.2f} | {row['student_step_ms']:.2f} | "
            f"{row['trainings']:.1f} |"
        )
    return lines


def _repeated_section(document: dict) -> list[str]:
    """The same steps on other days, each beside the plain step of its own day."""
    found: dict[tuple[str, str], list[dict]] = {}
    for row in [*document["repeated"], *_with_unit(document["rows"])]:
        found.setdefault((row["net"], row["way"]), []).append(row)
    lines = [
        "## When it is repeated",
        "",
        "The same steps on several machines of the same kind. What is replayed takes as long everywhere, to a hundredth or "
        "two. The plain step, which is the unit, does not: the host starts each of its kernels, and hosts differ, so that "
        "the same milliseconds are more or fewer trainings.",
        "",
        "| | | a plain step, ms | a member, ms | the student, ms | trainings |",
        "|---|---|---|---|---|---|",
    ]
    for (net, way), rows in found.items():
        if len(rows) > 1:
            cells = [
                ", ".join(f"{row[name]:.{places}f}" for row in rows)
                for name, places in (
                    ("plain_step_ms", 1),
                    ("member_step_ms", 2),
                    ("student_step_ms", 1),
                    ("trainings", 1),
                )
            ]
            lines.append(f"| {NETS[net]} | {WAYS[way]} | {' | '.join(cells)} |")
    return lines


def _with_unit(rows: list[dict]) -> list[dict]:
    """Rows beside the plain step that they are held against."""
    units = {r["net"]: r["member_step_ms"] * r["members"] for r in rows if r["way"] == "plain"}
    return [{**row, "plain_step_ms": units[row["net"]]} for row in rows if row["way"] != "plain"]


IN_THE_WAY = [
    "## What is in the way",
    "",
    "By a profile taken by hand: of the 69 ms that a step of eight fused ResNet-56 takes on the GPU above, 34 are convolutions, 25 normalisations, "
    "activations and sums between them, and 9 sums of gradients and copies. The library's grouped convolutions take 2.4 times as long as "
    "reading their inputs and writing their outputs would at 4 TB/s; "
    "a net of so few channels alone takes 16 ms for the step that takes it 9 among eight, "
    "which is why members gain from being one network and a student does not. Widening (`machine.widen`) puts samples side by side into "
    "a student's channels, which takes a fifth to a quarter of its step away where it looks answers up and a tenth to a seventh where "
    "teachers are asked, but measuring how wide took 17 to 20 seconds before the first step, more than forty epochs of these nets give "
    "back: it is off unless asked for. Two streams gain nothing where members are one network already.",
    "",
    "ResNet-18 at full width fills the GPU alone, and members as one network are slower than one by one (7.2 ms against 6.2). So "
    "`--fuse auto` leaves them apart, four at a time with a stream each, where one computes while another waits for "
    "memory; the rest of what is gained comes from replayed and compiled steps and from stored answers. A ViT's attention is mapped "
    "over the members, which is slower than one by one, too: they are left apart.",
]
