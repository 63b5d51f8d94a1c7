"""What the examples gain: the page of all seeds, and the means in the guide to the methods."""

from __future__ import annotations

from pages.filling import filled
from pages.places import DOCS, committed

EXAMPLES = {
    "plain_loop": "focal distillation of logits (`fd-lm`), a plain loop",
    "transformers_trainer": "focal distillation of probabilities (`fd-kl`), fine-tuning with Transformers",
    "timm_model": "focal distillation of logits (`fd-lm`), two additional classes, timm",
    "lightning_module": "ELODI, both models of a pair treated, Lightning",
}


def examples_page() -> str:
    """Return the page of all seeds, from the committed rows."""
    document = committed("examples")
    machine = document["machine"]
    lines = [
        "# What the examples gain",
        "",
        f"Measured by `{document['command']}` ({machine['device']}, torch {machine['torch']}, Python "
        f"{machine['python']}): the programs of `examples/` with ten seeds each. Their settings were "
        "chosen with seeds 0 to 4; seeds 10 to 14 were not used for that. The Lightning example "
        "compares pairs (old and new both untreated, old and new both treated). The others update one "
        "old model with and without treatment.",
        "",
        "| example | seed | error of control | error of treated | NFR of control | NFR of treated | ratio |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name in dict.fromkeys(row["example"] for row in document["rows"]):
        rows = [row for row in document["rows"] if row["example"] == name]
        numbers = [
            (
                row["control"]["error_new"],
                row["treated"]["error_new"],
                row["control"]["negative_flip_rate"],
                row["treated"]["negative_flip_rate"],
            )
            for row in rows
        ]
        for row, one in zip(rows, numbers, strict=True):
            lines.append(_example_row(name, row["seed"], one))
        mean = tuple(sum(column) / len(numbers) for column in zip(*numbers, strict=True))
        lines.append(_example_row(f"**{name}**", "mean", mean))
    return "\n".join(lines) + "\n"


def _example_row(name: str, seed: object, numbers: tuple[float, ...]) -> str:
    control, treated, flips, fewer = numbers
    return (
        f"| {name} | {seed} | {control:.2f} % | {treated:.2f} % | {flips:.2f} % | {fewer:.2f} % "
        f"| {fewer / flips:.2f} |"
    )


def mean_of(key: str) -> dict[str, dict[str, float]]:
    """Return the mean over the seeds, per example and side (control or treated)."""
    rows = committed("examples")["rows"]
    found = {}
    for name in EXAMPLES:
        mine = [row for row in rows if row["example"] == name]
        found[name] = {
            side: sum(row[side][key] for row in mine) / len(mine) for side in ("control", "treated")
        }
    return found


def choose_page() -> str:
    """Return the guide to the methods, with the means of the committed rows filled in."""
    table = [
        "| example | error of control | error of treated | NFR of control | NFR of treated | ratio |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    errors, rates = mean_of("error_new"), mean_of("negative_flip_rate")
    for name, told in EXAMPLES.items():
        control, treated = errors[name]["control"], errors[name]["treated"]
        flips, fewer = rates[name]["control"], rates[name]["treated"]
        table.append(
            f"| {told} | {control:.2f} % | {treated:.2f} % | {flips:.2f} % | {fewer:.2f} % "
            f"| {fewer / flips:.2f} |"
        )
    return filled(DOCS / "guides" / "choose.md", "examples", table)
