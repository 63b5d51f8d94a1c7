"""Pages about training runs, rendered from rows that programs in benchmarks/ wrote."""

from __future__ import annotations

from pages.figures import mean, percent, with_range
from pages.places import committed

NETS = {"resnet20": "ResNet-20", "resnet56": "ResNet-56"}


def cifar_page() -> str:
    """Return the page about `flipguard train` and a plain script, from the committed rows."""
    document = committed("cifar")
    machine, found = document["machine"], _by_run(document["rows"])
    lines = [
        "# Training against a plain script",
        "",
        f"Measured by `{document['command']}` on one {machine['device']} (torch {machine['torch']}, Python "
        f"{machine['python']}). Both ways train on CIFAR-10 with the preset `{document['preset']}`, in bf16. The plain "
        "script is PyTorch code written for speed: all images on the GPU, a whole epoch augmented at once, channels last, a "
        "fused optimizer. The two take turns on a machine without other work. The time is that of an epoch with its "
        "evaluation. flipguard's epoch also measures 5,000 training samples and saves a checkpoint.",
        "",
        "| network | seed | error, plain | error, flipguard | epoch, plain | epoch, flipguard | ratio |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for (net, seed), ways in found.items():
        bare, ours = ways["bare"], ways["flipguard"]
        ratio = ours["epoch_seconds"] / bare["epoch_seconds"]
        lines.append(
            f"| {NETS[net]} | {seed} | {bare['error_rate']:.2%} | {ours['error_rate']:.2%} | "
            f"{bare['epoch_seconds']:.2f} s | {ours['epoch_seconds']:.2f} s | {ratio:.2f} |"
        )
    means = " and ".join(
        f"{sum(some) / len(some):.2f} with {net}" for net, some in epoch_ratios().items()
    )
    apart = max(abs(w["bare"]["error_rate"] - w["flipguard"]["error_rate"]) for w in found.values())
    lines += [
        "",
        f"The ratio is on average {means}. The errors differ by at most "
        f"{apart * 100:.1f} points. These networks are so small that starting a kernel takes the host longer than "
        "the GPU needs to compute it. flipguard captures a step once and replays it (`machine.cuda_graphs`). The plain "
        "script starts every kernel in every step.",
    ]
    if document.get("note"):
        lines += ["", document["note"]]
    return "\n".join(lines) + "\n"


def _by_run(rows: list[dict]) -> dict[tuple[str, int], dict[str, dict]]:
    """The two ways of each net and seed."""
    found: dict[tuple[str, int], dict[str, dict]] = {}
    for row in rows:
        found.setdefault((row["net"], row["seed"]), {})[row["way"]] = row
    return found


def epoch_ratios() -> dict[str, list[float]]:
    """Return the seconds of an epoch over those of the plain script, per net and seed."""
    ratios: dict[str, list[float]] = {}
    for (net, _), ways in _by_run(committed("cifar")["rows"]).items():
        ratio = ways["flipguard"]["epoch_seconds"] / ways["bare"]["epoch_seconds"]
        ratios.setdefault(NETS[net], []).append(ratio)
    return ratios


def texts_page() -> str:
    """Return the page about an update of an intent classifier, from the committed rows."""
    document = committed("texts")
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
        f"MiniLM-L6 fine-tuned on the 77 intents of Banking77 for {recipe['epochs']} epochs. The old model saw half of the "
        f"training samples and was not treated. The updates see all of them. There are {seeds} seeds, each with a separate old model. "
        "The table shows means, and in brackets the lowest and the highest seed. Seconds are the total time of an update, with "
        "the seeds in parallel on one GPU.",
        "",
        "| update | error of old | error of new | negative flip rate | churn | seconds |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, some in methods.items():
        options = "".join(f", {key} = {value}" for key, value in some[0]["options"].items())
        rates = ("error_rate_old", "error_rate_new", "negative_flip_rate", "churn")
        cells = [with_range([row[rate] for row in some], 2) for rate in rates]
        seconds = mean([row["seconds"] for row in some])
        lines.append(f"| `{name}`{options} | {' | '.join(cells)} | {seconds:.0f} |")
    return "\n".join([*lines, "", *_texts_words(methods)]) + "\n"


TEXTS = 3080  # in the test set of Banking77


def _texts_words(methods: dict[str, list[dict]]) -> list[str]:
    """Describe the table in words, with computed numbers, and its limits."""
    none, focal, elodi = (methods[name] for name in ("none", "fd-lm", "elodi"))
    fewer = [
        sum(
            a["negative_flip_rate"] < b["negative_flip_rate"]
            for a, b in zip(some, none, strict=True)
        )
        for some in (focal, elodi)
    ]
    higher = [
        sum(a["error_rate_new"] > b["error_rate_new"] for a, b in zip(some, none, strict=True))
        for some in (focal, elodi)
    ]
    flips, errors = (
        [mean([row[rate] for row in some]) for some in (none, focal, elodi)]
        for rate in ("negative_flip_rate", "error_rate_new")
    )
    seeds, usual = len(none), flips[2]
    deviation = (usual * (1 - usual) / TEXTS) ** 0.5
    gains = [flips[0] - flips[1], flips[0] - flips[2]]
    return [
        f"- `fd-lm` breaks least: {flips[1] / flips[0]:.2f} times as many samples as the untreated update, and fewer in {fewer[0]} "
        f"of {seeds} seeds. Its error is higher than that of the untreated update in {higher[0]} of {seeds} seeds, on average by "
        f"{100 * (errors[1] - errors[0]):.1f} points: it learns less from the new samples.",
        f"- `elodi` breaks slightly less than the untreated update in {fewer[1]} of {seeds} seeds, "
        f"{percent(flips[2], 2)} against {percent(flips[0], 2)} on average. Its error is higher in {higher[1]} of {seeds} seeds. "
        "It uses four members here, and its old model was untreated. After an old model that ELODI trained, "
        "[it gains more on other data](cheaper.md); this was not tried here.",
        f"- There is one test set of {TEXTS:,} texts. A negative flip rate of {percent(usual)} is {usual * TEXTS:.0f} texts, "
        f"with a sampling error of {100 * deviation:.2f} points (one standard deviation). `fd-lm` differs from the untreated update by "
        f"{gains[0] / deviation:.1f} standard deviations, `elodi` by {gains[1] / deviation:.1f}. All seeds share the test set. So "
        "their agreement is weaker evidence than it looks.",
    ]
