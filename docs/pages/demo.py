"""The page about the results of `flipguard demo` for several seeds, and how its settings were chosen."""

from __future__ import annotations

from collections.abc import Sequence

from pages.places import committed

NAMES = ("none", "fd-lm", "elodi")


def demo_page() -> str:
    """Return the page, from the committed rows of both programs."""
    document = committed("demo")
    machine, rows, recipe = document["machine"], document["rows"], document["recipe"]
    seeds = sorted({row["seed"] for row in rows})
    by_seed = [{row["update"]: row for row in rows if row["seed"] == seed} for seed in seeds]
    used = {name: _options(by_seed[0][name]["options"]) for name in NAMES}
    lines = [
        "# What the demo shows",
        "",
        f"Measured by `{document['command']}` on one machine ({machine['cpu']}, {machine['cores']} cores, torch "
        f"{machine['torch']}, Python {machine['python']}): the updates of `flipguard demo` for {len(seeds)} seeds, on "
        f"`{document['data']}`, {recipe['epochs']} epochs. Another type of CPU rounds differently and gives other digits. "
        "The old model is a perceptron, trained by `elodi` with "
        f"{_options(document['old'])}. `fd-lm` has {used['fd-lm']}. `elodi` has {used['elodi']} and no pull to the old "
        "model (`legacy = 0`). Its loss is the paper's equation 8, with the mean over the classes instead of the sum.",
        "",
        *_summary(by_seed),
        "",
        "| seed | error of old | control | `fd-lm` | `elodi` | NFR of control | `fd-lm` | `elodi` | verdicts |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for seed, found in zip(seeds, by_seed, strict=True):
        three = [found[name] for name in NAMES]
        cells = [three[0]["error_rate_old"], *(row["error_rate_new"] for row in three)]
        cells += [row["negative_flip_rate"] for row in three]
        verdicts = ", ".join(row["verdict"] for row in three)
        lines.append(
            f"| {seed} | " + " | ".join(f"{cell:.2%}" for cell in cells) + f" | {verdicts} |"
        )
    return "\n".join([*lines, "", *_chosen(), ""])


def _summary(by_seed: Sequence[dict[str, dict]]) -> list[str]:
    """Count over the seeds how often each update is better than the control."""
    of = len(by_seed)
    lines = []
    for name in NAMES[1:]:
        fewer, right, passed = (
            sum(found[name]["negative_flip_rate"] < found["none"]["negative_flip_rate"] for found in by_seed),
            sum(found[name]["error_rate_new"] < found["none"]["error_rate_new"] for found in by_seed),
            sum(found[name]["verdict"] == "pass" for found in by_seed),
        )  # fmt: skip
        lines.append(
            f"- `{name}` breaks fewer samples than the control in {fewer} of {of} seeds, has a lower error than the "
            f"control in {right}, and passes the gate in {passed}."
        )
    both = sum(
        found["elodi"]["negative_flip_rate"] < found["fd-lm"]["negative_flip_rate"] for found in by_seed
    )  # fmt: skip
    passed = sum(found["none"]["verdict"] == "pass" for found in by_seed)
    return [
        *lines,
        f"- `elodi` breaks fewer samples than `fd-lm` in {both} of {of} seeds.",
        f"- The control passes the gate in {passed} of {of} seeds.",
    ]


def _chosen() -> list[str]:
    """Return the settings that were tried, on data and seeds that the demo does not show."""
    document = committed("demo_settings")
    rows = document["rows"]
    draws = len({row["draw"] for row in rows})
    lines = [
        "## How the settings were chosen",
        "",
        f"They were chosen with `{document['command']}`, on {draws} other draws of MNIST-1D (other training samples and other "
        f"test samples) with other seeds, {document['epochs']} epochs ({document['cpu']}). The rule is the same for both "
        "methods: among the settings that satisfy both rules of the policy on average (NFR at most 6 %, accuracy gain at least 3 "
        "points), take the one with the lowest NFR, rounded to 0.1 points; if several are equal, the one with fewer members. "
        "With `fd-lm`, more weight breaks less and learns less. The default weight of 1 breaks least, but loses most of the "
        "larger network's gain. [The log](../log.md) says what else was tried.",
        "",
        "| update | error | accuracy gain, points | NFR | ratio to control |",
        "|---|---:|---:|---:|---:|",
    ]
    control = _mean([row for row in rows if row["update"] == "none"], "negative_flip_rate")
    settings = dict.fromkeys((row["update"], _options(row["options"])) for row in rows)
    for update, options in settings:
        some = [
            row for row in rows if (row["update"], _options(row["options"])) == (update, options)
        ]
        error, flips = _mean(some, "error_rate_new"), _mean(some, "negative_flip_rate")
        gain = 100 * (_mean(some, "error_rate_old") - error)
        name = f"`{update}`" + (f", {options}" if options else "")
        lines.append(
            f"| {name} | {error:.2%} | {gain:+.2f} | {flips:.2%} | {flips / control:.2f} |"
        )
    return lines


def _mean(rows: Sequence[dict], name: str) -> float:
    return sum(row[name] for row in rows) / len(rows)


def _options(options: dict) -> str:
    return ", ".join(f"{name} = {value}" for name, value in options.items())
