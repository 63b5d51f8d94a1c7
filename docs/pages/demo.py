"""The page of what `flipguard demo` shows for several seeds."""

from __future__ import annotations

from pages.places import committed


def demo_page() -> str:
    """What `flipguard demo` shows for several seeds, from the committed rows."""
    document = committed("demo")
    machine, rows = document["machine"], document["rows"]
    judged = [row for row in rows if "verdict" in row]
    seeds = sorted({row["seed"] for row in rows})
    agree = sum(_agrees([row for row in judged if row["seed"] == seed]) for seed in seeds)
    lines = [
        "# What the demo shows",
        "",
        f"Measured by `{document['command']}` ({machine['device']}, torch {machine['torch']}, Python "
        f"{machine['python']}): the updates of `flipguard demo` for {len(seeds)} seeds. Its sizes and settings were "
        "chosen by looking at seeds 0 and 1; the others were not looked at. Old is a perceptron that was itself "
        f"distilled from {document['old']['members']} members; `elodi` has {_options(judged, 'elodi')}, `fd-lm` "
        f"{_options(judged, 'fd-lm')}.",
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


def _agrees(rows: list[dict]) -> bool:
    found = {row["update"]: row for row in rows}
    flips = {name: row["negative_flip_rate"] for name, row in found.items()}
    return (
        min(flips, key=flips.__getitem__) == "elodi"
        and found["elodi"]["error_rate_new"] <= found["none"]["error_rate_new"]
    )


def _options(rows: list[dict], update: str) -> str:
    options = next(row["options"] for row in rows if row["update"] == update)
    return ", ".join(f"{name} = {value}" for name, value in options.items())
